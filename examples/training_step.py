"""A whole step as one plan: forward, loss, backward, clipping and the optimizer's update. The loss may give more, here
the share of right answers."""

import torch
from torch import nn
from torch.nn import functional as F

import torch_reformer


def loss_of(model, rows, classes):
    scores = model(rows)
    return F.cross_entropy(scores, classes), (scores.argmax(1) == classes).float().mean()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)  # learning rates are inputs of the plan
    step = torch_reformer.training_step(model, loss_of, optimizer, clip_grad_norm=1.0)
    rows = torch.randn(128, 32)
    classes = rows[:, :4].argmax(1)
    losses = []
    for _ in range(20):
        loss, right = step(rows, classes)
        schedule.step()
        losses.append(loss.item())
    print(f"right: {right:.0%}")
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; plans: {len(step.reports)}")


if __name__ == "__main__":
    main()
