"""Plan training steps for a GPU on a machine without one.

Prints, for networks of training_models.py and some of its own, how many lines of each kind the plans have. It runs in a
process with fake_gpu.environment().

    gpu_graphs.py NAME...
"""

import json
import sys

import torch
import training_models
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from torch_reformer.compiler import backend, pipeline
from torch_reformer.compiler.analysis import fake_gpu
from torch_reformer.compiler.analysis.report import report_of


class FlashAttention(nn.Module):
    """Attention by the kernel that PyTorch chooses on GPUs; some of its results and operands are undefined tensors."""

    def __init__(self, bias=True):
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192, bias=bias), nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        attention = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
        return self.out(attention.transpose(1, 2).flatten(2)).square().mean()


class Rotated(nn.Module):
    """Attention with rotary embeddings.

    Args:
        wide: queries and keys are computed in fp32, as in ModernBERT.
        by_angles: the model computes the sines.
    """

    def __init__(self, wide, by_angles=False):
        super().__init__()
        self.wide, self.qkv, self.out = wide, nn.Linear(512, 1536, bias=False), nn.Linear(512, 512)
        self.by_angles = by_angles
        self.register_buffer("cos", torch.randn(256, 64))
        self.register_buffer("sin", torch.randn(256, 64))

    def _rotated(self, x):
        kept, x = x.dtype, x.float() if self.wide else x
        first, second = x.chunk(2, -1)
        cos, sin = (self.cos.cos(), self.cos.sin()) if self.by_angles else (self.cos, self.sin)
        return (x * cos + torch.cat([-second, first], -1) * sin).to(kept)

    def forward(self, x):
        q, k, v = (each.transpose(1, 2) for each in self.qkv(x).view(*x.shape[:2], 3, 8, 64).unbind(2))
        attention = nn.functional.scaled_dot_product_attention(self._rotated(q), self._rotated(k), v)
        return self.out(attention.transpose(1, 2).flatten(2)).square().mean()


class GatedPerceptron(nn.Module):
    """A product whose halves are a value and its gate, as in ModernBERT."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(256, 1024, bias=False), nn.Linear(512, 256, bias=False)

    def forward(self, x):
        value, gate = self.inner(x).chunk(2, -1)
        return self.out(nn.functional.gelu(value) * gate).square().mean()


class CopiedHeads(nn.Module):
    """torch.nn.MultiheadAttention, which copies queries, keys and values before its attention."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(512, 8, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0].square().mean()


class BeforeAProduct(nn.Module):
    """Group norm of channels_last images; a matrix product has its result and gradient in contiguous order."""

    def __init__(self):
        super().__init__()
        self.scale, self.norm = nn.Parameter(torch.ones(32, 1, 1)), nn.GroupNorm(4, 32)
        self.out = nn.Linear(32 * 16 * 16, 8)

    def forward(self, x):
        return self.out(nn.functional.silu(self.norm(x * self.scale)).flatten(1)).square().mean()


class SplitAttention(nn.Module):
    """A block of a ResNeSt: parts of the channels are summed, weighted by each other's means."""

    def __init__(self):
        super().__init__()
        self.parts, self.out = nn.Conv2d(32, 64, 3, groups=2, bias=False), nn.Conv2d(32, 32, 1)
        self.norm, self.scale = nn.BatchNorm2d(64), nn.Linear(32, 64)

    def forward(self, x):
        parts = self.norm(self.parts(x)).relu().unflatten(1, (2, 32))
        attention = self.scale(parts.sum(1).mean((2, 3))).view(-1, 2, 32, 1, 1).softmax(1)
        return self.out((parts * attention).sum(1)).square().mean()


class NormOfRows(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(3000, 64), nn.LayerNorm(64)

    def forward(self, ids):
        return self.norm(self.table(ids)).square().mean()


class KeptTokens(nn.Module):
    """Tokens that a masked autoencoder keeps, and their norm."""

    def __init__(self):
        super().__init__()
        self.positions, self.norm = nn.Parameter(torch.zeros(100, 64)), nn.LayerNorm(64)

    def forward(self, x, index):
        x = x * self.positions
        return self.norm(x.gather(1, index[..., None].expand(-1, -1, 64))).square().mean()


class Vocabulary(nn.Module):
    """Word scores with a vocabulary size that 16-bit matrix products have to pad."""

    def __init__(self, words=1030):
        super().__init__()
        self.words, self.first, self.second = nn.Embedding(words, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.scores = nn.Linear(64, words)

    def forward(self, words, classes):
        scores = self.scores(self.second(nn.functional.gelu(self.first(self.words(words)))))
        return nn.functional.cross_entropy(scores.flatten(0, 1), classes.flatten())


class Positions(nn.Module):
    """A bias of attention by relative positions (Swin) and by buckets of distances (T5)."""

    def __init__(self):
        super().__init__()
        self.positions, self.buckets = nn.Parameter(torch.zeros(169, 12)), nn.Parameter(torch.zeros(32, 12))

    def forward(self, x, position, bucket):
        x = torch.softmax(x + self.positions[position].view(49, 49, -1).permute(2, 0, 1), -1)
        return torch.softmax(x + self.buckets[bucket].permute(2, 0, 1), -1).square().mean()


class BiasOfHeads(nn.Module):
    """Attention with a bias that is gathered from a small table: rows of numbers for each head, read by heads, of which
    Swin makes a copy."""

    def __init__(self, rows, heads, tokens, copies):
        super().__init__()
        self.copies = copies
        self.table, self.q = nn.Parameter(torch.zeros(rows, heads)), nn.Linear(16 * heads, 16 * heads)
        self.heads, self.tokens = heads, tokens

    def forward(self, x, index):
        q = self.q(x).view(*x.shape[:2], self.heads, 16).transpose(1, 2)
        bias = self.table[index.view(-1)].view(self.tokens, self.tokens, -1).permute(2, 0, 1)
        bias = bias.contiguous() if self.copies else bias
        return (torch.softmax(q @ q.transpose(-1, -2) + bias, -1) @ q).square().mean()


class Messages(nn.Module):
    """Two graph-network layers; each node gets a sum of its neighbors' features, weighted by edge."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(2))

    def forward(self, x, source, target, weight):
        for layer in self.layers:
            x = layer(x)
            x = torch.zeros_like(x).index_add(0, target, x[source] * weight[:, None].to(x.dtype)).relu()
        return x.square().mean()


class TalkingHeads(nn.Module):
    """Attention whose scores are mixed before and after the softmax, as in CaiT."""

    def __init__(self):
        super().__init__()
        self.qkv, self.before, self.after, self.out = (
            nn.Linear(*each) for each in ((64, 192), (4, 4), (4, 4), (64, 64))
        )

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 16).permute(2, 0, 3, 1, 4)
        scores = self.before((q @ k.transpose(-2, -1)).permute(0, 2, 3, 1)).permute(0, 3, 1, 2).softmax(-1)
        scores = self.after(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.out((scores @ v).transpose(1, 2).flatten(2)).square().mean()


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return (x + self.second(nn.functional.gelu(self.first(x)))).square().mean()


class NormalizedRows(nn.Module):
    """Rows divided by their lengths, which the forward saves: more numbers than those that each kernel recomputes."""

    def __init__(self):
        super().__init__()
        self.first, self.weight = nn.Linear(96, 96), nn.Parameter(torch.ones(96))

    def forward(self, x):
        return (nn.functional.normalize(self.first(x), dim=-1) * self.weight).sum()


class ReadTurned(nn.Module):
    """A product with a bias that two kernels read, one of them in the order of its columns."""

    def __init__(self):
        super().__init__()
        self.product = nn.Linear(1024, 1024)

    def forward(self, x):
        y = self.product(x)
        return y.t()[:, :64].float().sum() + y.float().square().mean()


class LookedUpTwice(nn.Module):
    """A table whose rows are looked up by the same ids in two shapes: not the same operation twice."""

    def __init__(self):
        super().__init__()
        self.table, self.first, self.second = nn.Embedding(30000, 256), nn.Linear(256, 256), nn.Linear(256, 256)

    def forward(self, ids):
        return self.first(self.table(ids)).square().mean() + self.second(self.table(ids.flatten())).square().mean()


class Unrolled(nn.Module):
    """A recurrent layer over embedded ids; its first state comes from the same table."""

    def __init__(self, steps):
        super().__init__()
        self.steps, self.table = steps, nn.Embedding(30000, 64)
        self.input, self.state = nn.Linear(64, 192), nn.Linear(64, 192)

    def forward(self, ids, more):
        x = self.table(ids)
        h = self.table(more)
        for i in range(self.steps):
            (a, b, c), (d, e, f) = self.input(x[:, i]).chunk(3, -1), self.state(h).chunk(3, -1)
            gate = torch.sigmoid(a + d)
            h = (1 - gate) * h + gate * torch.tanh(c + torch.sigmoid(b + e) * f)
        return h.square().mean()


class EqualLabels(nn.Module):
    """A supervised contrastive loss: scores of all pairs, and those whose labels are equal."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(64, 64)

    def forward(self, x, labels):
        x = nn.functional.normalize(self.out(x).float(), dim=-1)
        of_others = torch.where(labels[:, None] < labels.clamp(max=99), 0.0, x @ x.t())
        scores = of_others.log_softmax(-1)
        return -torch.where(labels[:, None] == labels, scores, 0.0).sum(-1).mean()


class Cells(nn.Module):
    """An unrolled recurrent cell. PyTorch has no fake kernel of GRU's."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(64, 64)

    def forward(self, x):
        state = cell = torch.zeros_like(x[:, 0])
        for each in x.unbind(1):
            state, cell = self.cell(each, (state, cell))
        return state.square().mean()


def reports(model: nn.Module, inputs: list) -> list:
    """Reports of the forward and the backward under autocast; images are channels_last."""
    found = []

    def compiled(module, _):
        executable = pipeline.plan(module, gpu="sm_90")
        found.append(report_of(executable.graph, executable.fusion, "sm_90"))
        module.recompile()  # the stages change graphs only
        return module.forward

    def on_gpu(tensor):
        tensor = tensor.detach()
        tensor = tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")

    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with fake_gpu.answered(), FakeTensorMode(allow_non_fake_inputs=True):
        flat = [on_gpu(value).requires_grad_(isinstance(value, nn.Parameter)) for value in state.values()]
        tensors = [on_gpu(each) for each in inputs]

        def step(*flat):
            values = dict(zip(state, flat, strict=False))
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return torch.func.functional_call(model, values, tuple(flat[len(state) :]))

        backend.compile_graphs(step, compiled)(*flat, *tensors).backward()
    return found


def kinds(report) -> dict[str, int]:
    names = [line.kind for line in report.lines]
    products = [line for line in report.lines if line.kind.startswith(("aten::mm", "aten::addmm"))]
    names += [f"{line.kind}: {line.operations[0]}" for line in products]
    return {kind: names.count(kind) for kind in sorted(set(names))}


if __name__ == "__main__":
    assert fake_gpu.begin()
    models = {name: training_models.make(name) for name in sys.argv[1:]}
    models["flash attention"] = FlashAttention(), [torch.randn(8, 32, 64)]
    models["attention without biases"] = FlashAttention(bias=False), [torch.randn(8, 32, 64)]
    models["rotated"] = Rotated(wide=False), [torch.randn(8, 256, 512)]
    models["rotated in fp32"] = Rotated(wide=True), [torch.randn(8, 256, 512)]
    models["gated perceptron"] = GatedPerceptron(), [torch.randn(16, 256, 256)]
    models["rotated by angles"] = Rotated(wide=True, by_angles=True), [torch.randn(8, 256, 512)]
    models["copied heads"] = CopiedHeads(), [torch.randn(64, 256, 512)]
    models["before a product"] = BeforeAProduct(), [torch.randn(4, 32, 16, 16)]
    models["split attention"] = SplitAttention(), [torch.randn(8, 32, 30, 30)]
    models["norm of rows"] = NormOfRows(), [torch.randint(0, 3000, (16, 512))]
    models["kept tokens"] = KeptTokens(), [torch.randn(128, 100, 64), torch.zeros(128, 25, dtype=torch.int64)]
    models["vocabulary"] = Vocabulary(), [torch.zeros(8, 128, dtype=torch.int64)] * 2
    indices = torch.zeros(2401, dtype=torch.int64), torch.zeros(49, 49, dtype=torch.int64)
    models["large vocabulary"] = Vocabulary(20011), [torch.zeros(8, 1024, dtype=torch.int64)] * 2
    models["positions"] = Positions(), [torch.randn(64, 12, 49, 49), *indices]
    for name, sizes in {"bias of Swin": (169, 3, 49, True), "bias of T5": (32, 8, 512, False)}.items():
        _, heads, tokens, _ = sizes
        given = torch.randn(64, tokens, 16 * heads), torch.zeros(tokens, tokens, dtype=torch.int64)
        models[name] = BiasOfHeads(*sizes), list(given)
    models["read turned"] = ReadTurned(), [torch.randn(8192, 1024)]
    models["equal labels"] = EqualLabels(), [torch.randn(1024, 64), torch.zeros(1024, dtype=torch.int64)]
    models["cells"] = Cells(), [torch.randn(32, 4, 64)]
    models["looked up twice"] = LookedUpTwice(), [torch.zeros(8, 512, dtype=torch.int64)]
    edges = [torch.zeros(1 << 14, dtype=torch.int64)] * 2
    models["messages"] = Messages(), [torch.randn(3000, 64), *edges, torch.zeros(1 << 14)]
    models["talking heads"] = TalkingHeads(), [torch.randn(16, 100, 64)]
    models["perceptron"] = Perceptron(), [torch.randn(8, 32, 64)]
    models["normalized rows"] = NormalizedRows(), [torch.randn(256, 64, 96)]
    for steps in (7, 8):  # more parts of a concatenation than a program reads (passes/read_parts.py)
        ids = torch.randint(30000, (256, steps)), torch.randint(30000, (256,))
        models[f"unrolled {steps}"] = Unrolled(steps), list(ids)
    print(json.dumps({name: list(map(kinds, reports(*model))) for name, model in models.items()}))
