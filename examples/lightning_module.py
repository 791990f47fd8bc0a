"""A LightningModule: compile the network inside of it, so that Lightning's own code stays as it is."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_reformer


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layers = nn.Conv2d(1, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        self.network = nn.Sequential(*layers, nn.Linear(16, 4))
        self.fusion = torch_reformer.fuse(self.network)
        self.losses = []

    def training_step(self, batch, _):
        images, classes = batch
        loss = nn.functional.cross_entropy(self.network(images), classes)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-2)


def main():
    lightning.seed_everything(0)
    images = torch.randn(64, 1, 8, 8) + torch.arange(4.0).repeat(16).view(-1, 1, 1, 1)
    data = DataLoader(TensorDataset(images, torch.arange(4).repeat(16)), batch_size=16)
    module = Module()
    trainer = lightning.Trainer(
        max_epochs=8, accelerator="auto", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(module, data)
    print(f"loss {module.losses[0]:.3f} -> {module.losses[-1]:.3f}; plans: {len(module.fusion.reports)}")


if __name__ == "__main__":
    main()
