"""A loop of Hugging Face's Accelerate. Its ``dynamo_backend`` accepts only the backends that it lists, so the model is
compiled before ``prepare``, which wraps it for devices, processes and mixed precision."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_reformer


def main():
    torch.manual_seed(0)
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 4))
    fusion = torch_reformer.fuse(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = torch.randn(128, 32)
    data = DataLoader(TensorDataset(rows, rows[:, :4].argmax(1)), batch_size=32)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    losses = []
    for _ in range(8):
        for inputs, classes in data:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), classes)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; plans: {len(fusion.reports)}")


if __name__ == "__main__":
    main()
