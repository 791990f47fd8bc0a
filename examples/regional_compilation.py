"""Regional compilation: compile the block that a deep model repeats, instead of the whole model. The blocks share one
compilation, so planning takes the time of one block."""

import torch
from torch import nn

DEPTH = 8


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def main():
    torch.manual_seed(0)
    reports = []
    model = nn.Sequential(*(Block(32) for _ in range(DEPTH)), nn.Linear(32, 4))
    for block in model[:DEPTH]:
        block.compile(backend="reformer", options={"report": reports.append})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    inputs = torch.randn(64, 32)
    classes = inputs[:, :4].argmax(1)
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(inputs), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(f"{DEPTH} blocks")
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; plans: {len(reports)}")


if __name__ == "__main__":
    main()
