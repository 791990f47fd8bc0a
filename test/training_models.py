"""Small networks of many kinds, each with its loss, for tests of the compiler. They need no other package."""

import torch
import torch.nn.functional as F
from torch import nn


def conv_norm(inputs, outputs, size=3, stride=1, groups=1, act=nn.ReLU):
    layers = [nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs)]
    return nn.Sequential(*layers, *([act()] if act else []))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride=1, groups=1):
        super().__init__()
        width = max(outputs // 4, groups)
        self.main = nn.Sequential(
            conv_norm(inputs, width, 1),
            conv_norm(width, width, 3, stride, groups),
            conv_norm(width, outputs, 1, act=None),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride, act=None)

    def forward(self, x):
        return F.relu(self.main(x) + self.shortcut(x))


class SqueezeExcite(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x):
        return x * F.hardsigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    """MobileNet's and EfficientNet's block."""

    def __init__(self, channels, act):
        super().__init__()
        wide = channels * 3
        self.layers = nn.Sequential(
            conv_norm(channels, wide, 1, act=act),
            conv_norm(wide, wide, 5, groups=wide, act=act),
            SqueezeExcite(wide),
            conv_norm(wide, channels, 1, act=None),
        )

    def forward(self, x):
        return x + self.layers(x)


class Dense(nn.Module):
    """DenseNet's layer: batch norm before the convolution, results concatenated."""

    def __init__(self, channels, growth=8, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels + i * growth), nn.ReLU(), nn.Conv2d(channels + i * growth, growth, 3, 1, 1)
            )
            for i in range(layers)
        )

    def forward(self, x):
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels, response_norm=False):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 7, padding=3, groups=channels), nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.1))
        self.response = nn.Parameter(torch.ones(4 * channels)) if response_norm else None

    def forward(self, x):
        y = F.gelu(self.up(self.norm(self.conv(x).permute(0, 2, 3, 1))))
        if self.response is not None:
            size = y.norm(dim=(1, 2), keepdim=True)
            y = y + y * self.response * (size / (size.mean(-1, keepdim=True) + 1e-6))
        return x + (self.down(y) * self.scale).permute(0, 3, 1, 2)


class Standardised(nn.Conv2d):
    """NFNet's convolution: the weight is normalised at each use."""

    def forward(self, x):
        mean, variance = self.weight.mean((1, 2, 3), keepdim=True), self.weight.var((1, 2, 3), keepdim=True)
        weight = (self.weight - mean) * torch.rsqrt(variance * self.weight[0].numel() + 1e-4)
        return F.conv2d(F.silu(x) * 1.7, weight, self.bias, self.stride, self.padding)


class Attention(nn.Module):
    def __init__(self, width, heads=4, causal=False, written_out=False):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal, self.written_out = heads, causal, written_out

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(x).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.written_out:
            y = ((q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(n, length, width))


class Layer(nn.Module):
    def __init__(self, width, act=F.gelu, norm=nn.LayerNorm, first=True, **options):
        super().__init__()
        self.attention, self.act, self.first = Attention(width, **options), act, first
        self.norms = nn.ModuleList([norm(width), norm(width)])
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        feed = lambda y: self.down(self.act(self.up(y)))  # noqa: E731
        if self.first:
            x = x + self.attention(self.norms[0](x))
            return x + feed(self.norms[1](x))
        x = self.norms[0](x + self.attention(x))
        return self.norms[1](x + feed(x))


class Gated(nn.Module):
    """Llama's feed-forward layer, with RMS norm."""

    def __init__(self, width):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(width, 64), nn.Linear(width, 64), nn.Linear(64, width)
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Patches(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv, self.place = nn.Conv2d(3, width, 8, 8), nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.token = nn.Parameter(torch.zeros(1, 1, width))

    def forward(self, x):
        x = self.conv(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place


class Mixer(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.of_tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.of_channels = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.of_tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.of_channels(self.norms[1](x))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.middle = conv_norm(3, 8), conv_norm(8, 16, stride=2)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 4, 1)

    def forward(self, x):
        x = self.down(x)
        y = self.up(self.middle(x)) + F.interpolate(self.middle(x)[:, :8], scale_factor=2, mode="bilinear")
        return self.out(torch.cat([x, y], 1)).mean((2, 3))


class GroupNormed(nn.Module):
    """A diffusion model's block: group norm, SiLU, a time embedding added to each channel."""

    def __init__(self, channels):
        super().__init__()
        self.norm, self.conv, self.time = (
            nn.GroupNorm(4, channels),
            nn.Conv2d(channels, channels, 3, 1, 1),
            nn.Linear(4, channels),
        )

    def forward(self, x):
        time = self.time(x[:, :4, 0, 0])
        return x + self.conv(F.silu(self.norm(x))) + time[:, :, None, None]


class Recurrent(nn.Module):
    """A GRU cell over a sequence of 4, with attention of the last state."""

    def __init__(self, width=16):
        super().__init__()
        self.embed, self.cell, self.score = nn.Embedding(30, width), nn.GRUCell(width, width), nn.Linear(2 * width, 1)

    def forward(self, tokens):
        x = self.embed(tokens[:, :4])
        state, states = torch.zeros_like(x[:, 0]), []
        for i in range(4):
            state = self.cell(x[:, i], state)
            states.append(state)
        states = torch.stack(states, 1)
        score = self.score(torch.cat([states, state[:, None].expand_as(states)], -1)).softmax(1)
        return (states * score).sum(1)


class Autoencoder(nn.Module):
    """A variational autoencoder; the noise is an input, so that two runs are equal."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode = (
            nn.Linear(3 * 32 * 32, 16),
            nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 10)),
        )

    def forward(self, x):
        mean, log_variance = self.encode(x.flatten(1)).chunk(2, 1)
        z = mean + (log_variance * 0.5).exp() * x[:, 0, 0, :8]
        return self.decode(z) + 0.1 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1, keepdim=True)


class GraphConvolution(nn.Module):
    """Messages along edges, added up at their targets."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(96, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = x.flatten(0, 1).flatten(1)[:, :96]
        source = torch.arange(x.shape[0]).repeat(2)
        target = (source * 5 + 1) % x.shape[0]
        for layer in (self.first, self.second):
            y = layer(x)
            x = torch.zeros_like(y).index_add(0, target, y[source]).relu() + y
        return x


class Texts(nn.Module):
    """XML-CNN: convolutions over embedded words, many labels."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 12)
        self.convs = nn.ModuleList(nn.Conv1d(12, 6, size) for size in (2, 3))
        self.out = nn.Linear(12, 10)

    def forward(self, tokens):
        x = self.embed(tokens).transpose(1, 2)
        return self.out(torch.cat([F.relu(conv(x)).amax(2) for conv in self.convs], 1))


class Language(nn.Module):
    def __init__(self, *layers, width=16):
        super().__init__()
        self.embed, self.layers, self.out = nn.Embedding(30, width), nn.Sequential(*layers), nn.Linear(width, 30)

    def forward(self, tokens):
        return self.out(self.layers(self.embed(tokens)))


class Decision(nn.Module):
    """A head with a branch that depends on the data: two graphs."""

    def __init__(self):
        super().__init__()
        self.body, self.one, self.other = conv_norm(3, 8), nn.Linear(8, 10), nn.Linear(8, 10)

    def forward(self, x):
        x = self.body(x).mean((2, 3))
        return self.one(x) if x.sum() > 0 else self.other(x)


def images(*layers, channels):
    return nn.Sequential(conv_norm(3, channels), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(10))


def vgg():
    """VGG for images of 12x12."""
    convolutions = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(True), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(True)]
    products = [nn.Linear(8 * 36, 16), nn.ReLU(True), nn.Dropout(0.0), nn.Linear(16, 8), nn.Tanh(), nn.Dropout(0.0)]
    return nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), *products, nn.Linear(8, 4))


MODELS = {
    "resnet": lambda: images(Residual(16, 32, 2), Residual(32, 32), channels=16),
    "resnext": lambda: images(Residual(16, 32, 1, groups=4), nn.MaxPool2d(2), channels=16),
    "densenet": lambda: images(Dense(8), nn.AvgPool2d(2), channels=8),
    "mobilenet": lambda: images(Inverted(8, nn.Hardswish), channels=8),
    "efficientnet": lambda: images(Inverted(8, nn.SiLU), channels=8),
    "convnext": lambda: images(ConvNeXtBlock(8), channels=8),
    "convnext v2": lambda: images(ConvNeXtBlock(8, response_norm=True), channels=8),
    "nfnet": lambda: images(Standardised(8, 8, 3, 2, 1), Standardised(8, 16, 3, 1, 1), channels=8),
    "leaky": lambda: images(
        nn.Conv2d(8, 8, 3, padding=2, dilation=2), nn.LeakyReLU(0.1), nn.ELU(), nn.Softplus(), channels=8
    ),
    "unet": UNet,
    "diffusion": lambda: images(GroupNormed(8), channels=8),
    "vit": lambda: nn.Sequential(Patches(16), Layer(16), Layer(16), nn.Flatten(), nn.Linear(17 * 16, 10)),
    "mixer": lambda: nn.Sequential(Patches(16), Mixer(17, 16), nn.Flatten(), nn.Linear(17 * 16, 10)),
    "bert": lambda: Language(Layer(16, first=False), Layer(16, first=False, written_out=True)),
    "gpt": lambda: Language(Layer(16, causal=True, act=lambda x: F.gelu(x, approximate="tanh"))),
    "llama": lambda: Language(Gated(16), Layer(16, causal=True, act=F.silu)),
    "gru": Recurrent,
    "vae": Autoencoder,
    "gcn": GraphConvolution,
    "texts": Texts,
    "decision": Decision,
}
_OF_WORDS = ("bert", "gpt", "llama", "gru", "texts")


class WithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, classes):
        y = self.model(x).flatten(0, -2)
        return F.cross_entropy(y, classes.repeat(y.shape[0])[: y.shape[0]] % y.shape[1], label_smoothing=0.1)


def make(name):
    """A model that returns its loss, and its inputs."""
    torch.manual_seed(0)
    model = WithLoss(MODELS[name]())
    x = torch.randint(30, (4, 8)) if name in _OF_WORDS else torch.randn(4, 3, 32, 32)
    inputs = [x, torch.arange(10)]
    with torch.no_grad():
        model(*inputs)  # initializes lazy layers
    return model, inputs


def relative_error(actual: list, expected: list) -> float:
    """Relative error by the norm of all tensors."""
    difference = sum((a.double() - b.double()).square().sum() for a, b in zip(actual, expected, strict=True))
    size = sum(tensor.double().square().sum() for tensor in expected)
    return float((difference / size.clamp_min(1e-30)).sqrt())


def step(run, model, inputs):
    """Loss of a training step and all gradients."""
    loss = run(*inputs)
    loss.backward()
    grads = [
        parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        for parameter in model.parameters()
    ]
    return [loss.detach(), *grads]
