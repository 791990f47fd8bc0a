"""Code that tests run in each of two processes. A separate file is quicker to import."""

import contextlib
import gc
import os
import warnings

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from training_models import MODELS, vgg

from torch_reformer import fuse, training_step
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


class Replica(torch.nn.Module):
    """Layers in another order than they are used in, so that buckets are not complete in their order."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(8, 5)
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8)

    def forward(self, x):
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


def scores_loss(model, x, y):
    return torch.nn.functional.cross_entropy(model(x), y)


def one_sided_loss(model, x, y):
    """A loss that is one graph on the first process only."""
    loss = scores_loss(model, x, y)
    return loss * 2 if torch.distributed.get_rank() and loss.item() > 100 else loss


def overflowing_loss(model, x, y):
    """A loss whose gradient is infinite where the first process has a large number in its batch."""
    return scores_loss(model, x, y) * torch.where(x.max() > 100, 1e37, 1.0)


def _adamw(params):
    return torch.optim.AdamW(params, 1e-2)


def _sgd(params):
    return torch.optim.SGD(params, 0.05, momentum=0.9)


def _thirds(state, bucket):
    """A hook that gets a third of the gradients."""
    bucket.buffer().mul_(1 / 3)
    return torch.distributed.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])


SMALL = {"bucket_cap_mb": 2e-4}  # buckets of one or two parameters
# Loss, optimizer, options of the step, options of DDP.
STEPS = {
    "sgd": (scores_loss, _sgd, {}, SMALL),
    "adamw, clipped": (scores_loss, _adamw, {"clip_grad_norm": 0.1}, SMALL | {"static_graph": True}),
    "rmsprop, accumulated": (
        scores_loss,
        lambda params: torch.optim.RMSprop(params, 1e-2),
        {"clip_grad_norm": 0.1, "accumulate": 2},
        SMALL | {"gradient_as_bucket_view": True, "broadcast_buffers": False},
    ),
    "scaled": (overflowing_loss, _sgd, {"grad_scaler": True}, SMALL),
    "one graph on one process": (one_sided_loss, _adamw, {"accumulate": 2}, SMALL),
    "by DDP": (scores_loss, _sgd, {"accumulate": 2}, {"hook": _thirds}),
}


def train_replicas(rank: int, folder: str):
    """Save losses and tensors of training steps in DDP, eager and by training_step(), why these ran apart, and how many
    collectives their plans begin."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    results = {}
    for name, settings in STEPS.items():
        eager, _ = _train_replica(rank, False, *settings)
        planned, step = _train_replica(rank, True, *settings)
        begun = [str(report).count("all_reduce") for report in step.reports]
        results[name] = eager, planned, step.reason, begun
        gc.collect()
    torch.save(results, f"{folder}/{rank}.pt")
    leave()


def _train_replica(rank, is_planned, loss, make, options, of_ddp):
    generator = torch.Generator().manual_seed(rank)
    torch.manual_seed(0)
    model = Replica().to(memory_format=torch.channels_last)
    model = model if "grad_scaler" in options else model.double()
    model.norm.running_mean += rank
    ddp = DistributedDataParallel(model, **{name: value for name, value in of_ddp.items() if name != "hook"})
    if hook := of_ddp.get("hook"):
        ddp.register_comm_hook(None, hook)
    optimizer, losses = make(model.parameters()), []
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if "grad_scaler" in options else None
    step = training_step(ddp, loss, optimizer, **options | ({"grad_scaler": scaler} if scaler else {}))
    for number in range(4):
        x = torch.randn(4, 3, 8, 8, generator=generator, dtype=torch.float64).to(model.head.weight.dtype)
        x[0, 0, 0, 0] = 1000 if number == 2 and not rank and scaler else x[0, 0, 0, 0]
        batch = x, torch.randint(5, (4,), generator=generator)
        losses.append(step(*batch) if is_planned else _eager_step(ddp, loss, optimizer, batch, scaler, **options))
    tensors = [*losses, *model.state_dict().values(), *([scaler._scale] if scaler else [])]
    return [tensor.detach().clone() for tensor in tensors], step


def _eager_step(ddp, loss, optimizer, batch, scaler, clip_grad_norm=None, accumulate=1, **_):
    optimizer.zero_grad()
    losses = []
    for number, part in enumerate(zip(*(tensor.chunk(accumulate) for tensor in batch), strict=True)):
        with ddp.no_sync() if number + 1 < accumulate else contextlib.nullcontext():
            losses.append(loss(ddp, *part) / accumulate)
            (scaler.scale(losses[-1]) if scaler else losses[-1]).backward()
    if clip_grad_norm:
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), clip_grad_norm)
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    return sum(losses).detach()
