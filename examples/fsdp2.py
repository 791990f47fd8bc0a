"""FSDP2: shard each block, then the model, then compile each block. Run it by

torchrun --nproc-per-node 2 examples/fsdp2.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import torch_reformer


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def main():
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", dist.get_rank()) if on_gpu else torch.device("cpu")
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(32) for _ in range(2)), nn.Linear(32, 4)).to(device)
    fusions = []
    for block in model[:2]:
        fully_shard(block, mesh=mesh)
        fusions.append(torch_reformer.fuse(block))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(dist.get_rank())
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
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; plans: {sum(len(each.reports) for each in fusions)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
