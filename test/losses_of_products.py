"""Losses of scores that a product with a weight gives: loss(x, weight, bias, labels)."""

import torch
import torch.nn.functional as F

DEPTH, CLASSES = 24, 90


def scores(x, weight, bias=None):
    return F.linear(x, weight, bias)


def plain(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight), labels)


def with_bias(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight, bias), labels)


def as_sum(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight), labels, reduction="sum")


def each_row(x, weight, bias, labels):
    losses = F.cross_entropy(scores(x, weight), labels, reduction="none")
    mask = (labels % 3 > 0).to(losses.dtype)
    return (losses * mask).sum() / mask.sum()


def smoothed(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight), labels, label_smoothing=0.1)


def ignoring(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight), torch.where(labels % 4 == 0, -100, labels))


def ignoring_another(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight), labels, ignore_index=7, label_smoothing=0.2)


def weighted(x, weight, bias, labels):
    weights = torch.linspace(0, 2, CLASSES, dtype=x.dtype)
    return F.cross_entropy(scores(x, weight), torch.where(labels % 4 == 0, -100, labels), weights)


def weighted_sum(x, weight, bias, labels):
    weights = torch.linspace(0, 2, CLASSES, dtype=x.dtype)
    return F.cross_entropy(scores(x, weight), labels, weights, reduction="sum", label_smoothing=0.1)


def with_z_loss(x, weight, bias, labels):
    s = scores(x, weight)
    return F.cross_entropy(s, labels) + 1e-2 * s.logsumexp(-1).square().mean()


def capped(x, weight, bias, labels):
    return F.cross_entropy(3 * torch.tanh(scores(x, weight, bias) / 3), labels)


def of_sequences(x, weight, bias, labels):
    s = scores(x.view(4, -1, DEPTH), weight)
    return F.cross_entropy(s.flatten(0, 1), labels)


def shifted_scores(x, weight, bias, labels):
    s = scores(x.view(12, -1, DEPTH), weight)[:, :-1].contiguous()
    return F.cross_entropy(s.view(-1, CLASSES), labels.view(12, -1)[:, 1:].reshape(-1))


def shifted_labels(x, weight, bias, labels):
    later = F.pad(labels.view(4, -1), (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(scores(x.view(4, -1, DEPTH), weight).view(-1, CLASSES), later.view(-1))


def soft_labels(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight), F.one_hot(labels, CLASSES).to(x.dtype) * 0.9 + 0.1 / CLASSES)


def transposed_weight(x, weight, bias, labels):
    return F.cross_entropy(x @ weight.view(DEPTH, CLASSES), labels)


def by_gather(x, weight, bias, labels):
    return -scores(x, weight).log_softmax(-1).gather(-1, labels[:, None]).mean()


def tied(x, weight, bias, labels):
    return F.cross_entropy(scores(x + weight[labels], weight), labels.roll(1))


def written(x, weight, bias, labels):
    """In place, which functionalisation turns into other tensors."""
    s = scores(x, weight)
    s.div_(3).tanh_()
    s = s * 3
    s += bias
    return F.cross_entropy(s, labels)


def two_heads(x, weight, bias, labels):
    other = F.cross_entropy(scores(x.sin(), weight.cos(), bias), labels.roll(1))
    return F.cross_entropy(scores(x, weight), labels) + 0.5 * other


def two_heads_of_a_weight(x, weight, bias, labels):
    """One kernel adds the gradient of one head to that of the other, once both are multiplied."""
    other = F.cross_entropy(scores(x, weight.sin(), bias), labels)
    return F.cross_entropy(scores(x, weight), labels) + 0.5 * other


def with_penalty(x, weight, bias, labels):
    return F.cross_entropy(scores(x, weight, bias), labels) + 0.1 * (weight.sin() * weight.cos()).sum()


def with_means(x, weight, bias, labels):
    s = scores(x, weight, bias)
    return F.cross_entropy(s, labels) + 0.1 * s.square().mean() + 0.01 * s.mean()


def several_labels(x, weight, bias, labels):
    return F.binary_cross_entropy_with_logits(scores(x, weight, bias), F.one_hot(labels, CLASSES).to(x.dtype))


def with_temperature(x, weight, bias, labels):
    return F.cross_entropy(scores(F.normalize(x), F.normalize(weight)) * bias[0].exp(), labels)


class Rows(torch.autograd.Function):
    """Rows of a table, with the gradient that graphs on GPUs have."""

    @staticmethod
    def forward(ctx, table, numbers):
        ctx.save_for_backward(numbers)
        ctx.rows = len(table)
        return table[numbers]

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.reformer._embedding_grad(grad, *ctx.saved_tensors, ctx.rows, 3, False), None


def looked_up(x, weight, bias, labels):
    return F.cross_entropy(scores(x * Rows.apply(weight, labels.roll(1)), weight), labels)


LOSSES = [plain, with_bias, as_sum, each_row, smoothed, ignoring, ignoring_another, weighted, weighted_sum, with_z_loss]
LOSSES += [capped, of_sequences, shifted_scores, shifted_labels, soft_labels, transposed_weight, tied]
LOSSES += [written, two_heads, two_heads_of_a_weight, with_penalty, with_means, several_labels, with_temperature]
LOSSES += [looked_up]
