"""Code that test_fuse.py and test_compiler.py run in each of two processes. A separate file is quicker to import."""

import gc
import os

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from training_models import MODELS, vgg

from torch_reformer import fuse
from torch_reformer.compiler.backend import reformer


def leave():
    """End this process without taking Python down, which Gloo's threads do not always survive (run_example.py)."""
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    os._exit(0)


def data():
    torch.manual_seed(5)
    return torch.randn(4, 3, 12, 12, dtype=torch.float64)


def resnet():
    model = MODELS["resnet"]()
    model(data().float())  # initializes lazy layers
    return model


def train(rank: int, folder: str):
    """Save gradients and buffers of models, fused and not, after two steps on this process's half of the data."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    results = {}
    for make in (vgg, resnet):
        for fused in (False, True):
            torch.manual_seed(rank)  # DistributedDataParallel sends the first process's parameters to the other
            model = make().double()
            if fused:
                fuse(model)
            wrapped = DistributedDataParallel(model)
            for _ in range(2):
                model.zero_grad()
                wrapped(data()[2 * rank : 2 * rank + 2]).square().mean().backward()
            gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
            results[make.__name__, fused] = gradients, {name: b.clone() for name, b in model.named_buffers()}
            del wrapped, model  # before its process group: otherwise gloo's threads and Python can wait for each other
            gc.collect()
    torch.save(results, f"{folder}/{rank}.pt")
    leave()


def _distributed(model, sharded: bool):
    if not sharded:
        return DistributedDataParallel(model)
    for module in model:
        if any(True for _ in module.parameters()):
            fully_shard(module)
    return fully_shard(model)


def train_tensor_parallel(rank: int, folder: str):
    """Save losses and gradients of two layers whose weights are split, compiled and not, and how many graphs have a
    plan."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8)).double()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (2,)), plan)
    x, reports, results = torch.randn(4, 8, dtype=torch.float64), [], []
    for run in (model, torch.compile(model, backend=reformer, options={"report": reports.append})):
        model.zero_grad()
        loss = (run(x) + x).square().mean()
        loss.backward()
        results.append([loss.detach(), *(parameter.grad.to_local() for parameter in model.parameters())])
    torch.save((results, len(reports)), f"{folder}/{rank}.pt")
    leave()


def train_compiled(rank: int, folder: str, sharded: bool):
    """Save the parameters of a model after three steps, compiled and not."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = vgg().double()
        wrapped = _distributed(model, sharded)
        run = torch.compile(wrapped, backend=reformer) if compiled else wrapped
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            run(data()[2 * rank : 2 * rank + 2]).square().mean().backward()
            optimizer.step()
        tensors = [each.detach() for each in (*model.parameters(), *model.buffers())]
        results.append([(tensor.to_local() if isinstance(tensor, DTensor) else tensor).clone() for tensor in tensors])
        del run, wrapped, model, optimizer
        gc.collect()
    torch.save(results, f"{folder}/{rank}.pt")
    leave()
