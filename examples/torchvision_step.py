"""The training step of torchvision's references (``references/classification/train.py``): label smoothing, autocast,
average of weights. Convolutions are fastest in channels_last."""

import torch
import torchvision
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import torch_reformer


def main():
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=4)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    fusion = torch_reformer.fuse(model, channels_last=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    images = torch.randn(8, 3, 32, 32).to(memory_format=torch.channels_last)
    classes = torch.arange(8) % 4
    losses = []
    for _ in range(12):
        with torch.autocast("cpu", torch.bfloat16):
            loss = criterion(model(images), classes)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(model)
        losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; plans: {len(fusion.reports)}")


if __name__ == "__main__":
    main()
