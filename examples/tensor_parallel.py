"""Tensor parallelism by DTensors: parallelize the model, then compile it. Run it by

torchrun --nproc-per-node 2 examples/tensor_parallel.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import torch_reformer


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.head = nn.Linear(32, 128), nn.Linear(128, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(x + self.down(nn.functional.gelu(self.up(x))))


def main():
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", dist.get_rank()) if on_gpu else torch.device("cpu")
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    torch.manual_seed(0)  # all processes have the same data, and parts of the same weights
    model = parallelize_module(Network().to(device), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fusion = torch_reformer.fuse(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    inputs = torch.randn(64, 32, device=device)
    classes = inputs[:, :4].argmax(1)
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(inputs), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; plans: {len(fusion.reports)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
