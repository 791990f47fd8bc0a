"""A plain training loop: one more line, ``fuse``, compiles the model's forward, backward and loss."""

import torch
from torch import nn
from torch.nn import functional as F

import torch_reformer


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, images, classes):
        features = self.body(self.stem(images)).mean((2, 3))
        return F.cross_entropy(self.head(features), classes)  # with the loss, kernels need fewer bytes


def main():
    torch.manual_seed(0)
    model = Classifier()
    fusion = torch_reformer.fuse(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    images, classes = torch.randn(32, 3, 16, 16), torch.randint(10, (32,))
    losses = []
    for _ in range(20):
        loss = model(images, classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(fusion)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; plans: {len(fusion.reports)}")


if __name__ == "__main__":
    main()
