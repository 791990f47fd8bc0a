"""Small networks of the zoo (zoo.py) that need no other package: recurrent, adversarial, random, detecting."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from training_models import conv_norm, step
from zoo_case import Case, of_images


class InterestEvolution(nn.Module):
    """DIEN: a GRU over a user's items, then another whose update gate attends to the offered item."""

    def __init__(self, width=12):
        super().__init__()
        self.items, self.width = nn.Embedding(40, width), width
        self.interest = nn.GRUCell(width, width)
        self.gates, self.new = nn.Linear(2 * width, 2 * width), nn.Linear(2 * width, width)
        self.attend, self.nearby = nn.Linear(width, width, bias=False), nn.Bilinear(width, width, 1)
        self.out = nn.Sequential(nn.Linear(3 * width, 24), nn.PReLU(), nn.Linear(24, 1))

    def forward(self, seen, offered, clicked):
        seen, offered = self.items(seen), self.items(offered)
        state, states = seen.new_zeros(seen.shape[0], self.width), []
        for x in seen.unbind(1):
            state = self.interest(x, state)
            states.append(state)
        interests = torch.stack(states, 1)
        attention = (interests @ self.attend(offered)[:, :, None]).squeeze(2).softmax(1)
        state = torch.zeros_like(state)
        for x, score in zip(states, attention.unbind(1), strict=True):
            update, reset = self.gates(torch.cat([x, state], 1)).sigmoid().chunk(2, 1)
            new = self.new(torch.cat([x, reset * state], 1)).tanh()
            update = update * score[:, None]
            state = (1 - update) * state + update * new
        y = self.out(torch.cat([state, offered, seen.mean(1)], 1)).squeeze(1)
        following = self.nearby(interests[:, :-1], seen[:, 1:]).sigmoid().clamp_min(1e-6).log().mean()
        return F.binary_cross_entropy_with_logits(y, clicked) - 0.5 * following


def dien() -> Case:
    seen, offered = torch.randint(40, (6, 5)), torch.randint(40, (6,))
    return Case([InterestEvolution()], [seen, offered, torch.rand(6).round()])


class TextReader(nn.Module):
    """A CRNN: columns of an image as a sequence, read by an LSTM in both directions."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(conv_norm(1, 8), nn.MaxPool2d(2), conv_norm(8, 16), nn.MaxPool2d((2, 1)))
        self.lstm, self.out = nn.LSTM(16 * 4, 16, bidirectional=True), nn.Linear(32, 11)

    def forward(self, x):
        columns = self.body(x).flatten(1, 2).permute(2, 0, 1)
        return self.out(self.lstm(columns)[0]).log_softmax(2)


def crnn() -> Case:
    """CRNN; its loss is outside of the compiled model."""

    def train(calls, models, inputs):
        x, texts = inputs
        lengths = torch.full((4,), 16), torch.full((4,), 5)
        return step(lambda x: F.ctc_loss(calls[0](x), texts, *lengths), models[0], [x])

    return Case([TextReader()], [torch.randn(4, 1, 16, 32), torch.randint(1, 11, (4, 5))], train)


def encoder() -> Case:
    """A layer of torch.nn's transformer, the batch first and second."""
    layers = (nn.TransformerEncoderLayer(64, 4, 96, dropout=0.0, batch_first=first) for first in (True, False))
    return of_images(nn.Sequential(*layers, nn.Linear(64, 10)), 12, 40, 64)


def gan() -> Case:
    """Three steps of two models, each with an optimizer."""
    generator = nn.Sequential(
        *(nn.Linear(8, 16 * 4 * 4, bias=False), nn.Unflatten(1, (16, 4, 4)), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh()),
    )
    discriminator = nn.Sequential(
        *(nn.Conv2d(3, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 16, 4, 2, 1, bias=False), nn.BatchNorm2d(16)),
        *(nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(16 * 4 * 4, 1)),
    )

    def train(calls, models, inputs):
        optimizers = [torch.optim.Adam(each.parameters(), 1e-3, betas=(0.5, 0.99), eps=1e-4) for each in models]
        losses = []
        for noise, real in zip(*inputs, strict=True):
            fake = calls[0](noise)
            loss = F.softplus(calls[1](fake.detach())).mean() + F.softplus(-calls[1](real)).mean()
            optimizers[1].zero_grad()
            loss.backward()
            optimizers[1].step()
            losses.append(loss.detach())
            loss = F.softplus(-calls[1](fake)).mean()
            optimizers[0].zero_grad()
            loss.backward()
            optimizers[0].step()
            losses.append(loss.detach())
        grads = [parameter.grad for model in models for parameter in model.parameters()]
        return losses + grads + [each.detach() for model in models for each in model.parameters()]

    return Case([generator, discriminator], [torch.randn(3, 8, 8), torch.randn(3, 8, 3, 16, 16)], train)


class RandomAutoencoder(nn.Module):
    """A variational autoencoder, whose random numbers are equal in each precision."""

    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(conv_norm(3, 8, stride=2), nn.Flatten(), nn.Linear(8 * 8 * 8, 16))
        self.decode = nn.Sequential(nn.Linear(8, 8 * 8 * 8), nn.SiLU(), nn.Unflatten(1, (8, 8, 8)))
        self.out = nn.ConvTranspose2d(8, 3, 2, 2)

    def forward(self, x):
        mean, log_variance = self.encode(x).chunk(2, 1)
        noise = torch.randn(mean.shape, dtype=torch.float64).to(x)
        y = self.out(self.decode(mean + (0.5 * log_variance).exp() * noise))
        divergence = 0.5 * (log_variance.exp() + mean.square() - 1 - log_variance).sum(1).mean()
        return F.binary_cross_entropy_with_logits(y, x.sigmoid()) + 0.1 * divergence


def vae() -> Case:
    def train(calls, models, inputs):
        torch.manual_seed(3)
        return step(calls[0], models[0], inputs)

    return Case([RandomAutoencoder()], [torch.randn(4, 3, 16, 16)], train)


class Detector(nn.Module):
    """Boxes and classes at each position of a grid; the loss depends on overlaps with the target boxes."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(conv_norm(3, 8, stride=2), conv_norm(8, 16, stride=2))
        self.scores, self.boxes = nn.Conv2d(16, 4, 3, 1, 1), nn.Conv2d(16, 4, 3, 1, 1)

    @staticmethod
    def overlap(one, other):
        one, other = one[:, :, None], other[:, None]
        left, right = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
        both = (right - left).clamp_min(0).prod(3)
        area = lambda boxes: (boxes[..., 2:] - boxes[..., :2]).prod(3)  # noqa: E731
        return both / (area(one) + area(other) - both + 1e-6)

    def forward(self, x, boxes, classes):
        x = self.body(x)
        scores, moves = (each.flatten(2).transpose(1, 2) for each in (self.scores(x), self.boxes(x)))
        across = [torch.arange(size, dtype=x.dtype, device=x.device) for size in x.shape[2:]]
        corner = torch.stack(torch.meshgrid(*across, indexing="ij")[::-1], 2).flatten(0, 1)
        actual = torch.cat([corner - moves[..., :2].exp(), corner + moves[..., 2:].exp()], 2)
        best, which = self.overlap(actual.detach(), boxes).max(2)
        hits = best > 0.3
        expected = F.one_hot(classes.gather(1, which), 4).to(x.dtype) * hits[..., None]
        chance = scores.sigmoid()
        weight = ((1 - expected) * chance + expected * (1 - chance)).square()
        loss = (weight * F.binary_cross_entropy_with_logits(scores, expected, reduction="none")).sum()
        if hits.any():
            loss = loss + F.smooth_l1_loss(actual[hits], boxes.gather(1, which[..., None].expand(-1, -1, 4))[hits])
        if (count := int(hits.sum())) > 3:
            loss = loss / math.sqrt(count)
        return loss * 2


def detector() -> Case:
    corner = torch.rand(3, 2, 2) * 4
    corner[2] += 100  # no position overlaps these
    boxes = torch.cat([corner, corner + 2 + torch.rand(3, 2, 2)], 2)
    return Case([Detector()], [torch.randn(3, 3, 32, 32), boxes, torch.randint(4, (3, 2))])


QUICK = {"dien": dien, "crnn": crnn, "vae": vae, "detector": detector, "encoder": encoder}
