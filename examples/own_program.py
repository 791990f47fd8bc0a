"""An operator of your own: a convolution with a program as its epilogue, in one kernel, with its derivative.

The program scales each channel, adds a residual, and squashes the sum; no kernel has to be written for it."""

import torch
from torch import nn

import torch_reformer
from torch_reformer import program as ep

SQUASHED = ep.Program(ep.store(ep.tanh(ep.acc() * ep.channel("scale") + ep.full("residual"))))


class Squashed(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels, 3, 3) / (3 * channels**0.5))
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        tensors = {"scale": self.scale, "residual": x}
        return torch_reformer.conv2d_epilogue(x, self.weight, SQUASHED, tensors, padding=1)


def main():
    torch.manual_seed(0)
    print(SQUASHED)
    layer, x = Squashed(16), torch.randn(4, 16, 12, 12)
    expected = torch.tanh(nn.functional.conv2d(x, layer.weight, padding=1) * layer.scale.view(-1, 1, 1) + x)
    torch.testing.assert_close(layer(x), expected)

    reports = []
    model = torch.compile(nn.Sequential(layer, Squashed(16)), backend="reformer", options={"report": reports.append})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    target, losses = x.roll(1, 3).tanh(), []
    for _ in range(20):
        loss = nn.functional.mse_loss(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; plans: {len(reports)}")


if __name__ == "__main__":
    main()
