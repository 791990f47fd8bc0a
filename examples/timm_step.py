"""The training step of timm's ``train.py``: its model, mixup, loss, optimizer, average of weights and gradient
clipping. ``train.py`` itself takes ``--torchcompile reformer``."""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3, dispatch_clip_grad


def main():
    torch.manual_seed(0)
    reports = []
    model = timm.create_model("resnet10t", num_classes=4).train()
    average = ModelEmaV3(model, decay=0.9)
    compiled = torch.compile(model, backend="reformer", options={"report": reports.append})
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
    mixup, loss_of = Mixup(mixup_alpha=0.2, num_classes=4), SoftTargetCrossEntropy()
    images, classes = torch.randn(8, 3, 32, 32), torch.arange(8) % 4
    losses = []
    for step in range(12):
        mixed, targets = mixup(images.clone(), classes)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(compiled(mixed), targets)
        optimizer.zero_grad()
        loss.backward()
        dispatch_clip_grad(model.parameters(), 1.0)
        optimizer.step()
        average.update(model, step)
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; plans: {len(reports)}")


if __name__ == "__main__":
    main()
