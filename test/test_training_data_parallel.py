"""Whole training steps of models in DistributedDataParallel: gradients are reduced by steps of the plan."""

import warnings
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import two_processes
from gpu_rules import as_on_gpus, as_on_hopper
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import torch_reformer
from torch_reformer.compiler import pipeline
from torch_reformer.compiler.fusion.schedule import schedule


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    torch.multiprocessing.spawn(two_processes.train_replicas, (str(folder),), nprocs=2)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("rank", range(2))
@pytest.mark.parametrize("name", two_processes.STEPS)
def test_against_eager_ddp(results, name, rank):
    expected, actual, reason, begun = results[rank][name]
    tolerance = 1e-5 if name == "scaled" else 1e-12
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    if name == "by DDP":
        assert "communication hooks" in reason
    elif name == "one graph on one process" and rank:
        assert "torch.where" in reason
    else:
        assert reason is None
        assert begun[-1] > 1 and not any(begun[:-1])  # micro-batches before the last begin none


@pytest.mark.slow
def test_steps_differ_without_reduction(results):
    """Batches of the two processes differ, so losses do, and what is left equal is what was reduced."""
    losses = [results[rank]["sgd"][1][:4] for rank in range(2)]
    assert not any(torch.equal(one, other) for one, other in zip(*losses, strict=True))


@pytest.mark.slow
def test_a_scaler_leaves_out_the_update_of_all(results):
    for rank in range(2):
        *_, scale = results[rank]["scaled"][1]
        assert scale == 512


@pytest.fixture
def group():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    torch._dynamo.reset()
    yield
    dist.destroy_process_group()


def loss_of(model, x, y):
    return F.cross_entropy(model(x), y)


def layers(count=6):
    layers = [layer for _ in range(count) for layer in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(64, 8))


def batch():
    return torch.randn(8, 64), torch.randint(5, (8,))


def planned(ddp, monkeypatch, **options):
    """The executable of a training step."""
    found, plan = [], pipeline.plan

    def noted(*args, **kwargs):
        found.append(plan(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(pipeline, "plan", noted)
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
    step = torch_reformer.training_step(ddp, loss_of, optimizer, **options)
    for _ in range(2):  # the first makes the optimizer's state
        step(*batch())
    assert step.reason is None
    return found[-1]


def steps_of(executable):
    return [step.call.name if step.call else step.kind for step in executable.plan.steps]


def test_values(group):
    """The fake group's sums are its own operands, so all gradients become a fourth."""
    one, other = (layers(2).double() for _ in range(2))
    other.load_state_dict(one.state_dict())
    ddp = DistributedDataParallel(other, bucket_cap_mb=0.05)
    options = {"accumulate": 2, "memory_budget": 0.5}
    expected = torch_reformer.training_step(one, loss_of, torch.optim.SGD(one.parameters(), 0.1), **options)
    actual = torch_reformer.training_step(ddp, loss_of, torch.optim.SGD(other.parameters(), 0.4), **options)
    for _ in range(3):
        x, y = batch()
        x = x.double()
        torch.testing.assert_close(actual(x, y), expected(x, y), rtol=1e-12, atol=1e-12)
    assert actual.reason is None
    torch.testing.assert_close(other.state_dict(), one.state_dict(), rtol=1e-12, atol=1e-12)


def places(steps, name):
    return [place for place, step in enumerate(steps) if name in step]


@pytest.mark.parametrize("rules", [nullcontext, as_on_gpus, as_on_hopper])
def test_collectives_run_beside_the_backward(group, monkeypatch, rules):
    """Each begins before gradients of a later bucket are computed. They are waited for when all have begun."""
    with rules():
        ddp = DistributedDataParallel(layers(), bucket_cap_mb=2 * 65 * 64 * 4 / 2**20)
        steps = steps_of(planned(ddp, monkeypatch))
    assert not places(steps, "aten::cat")  # kernels write buckets
    begun, waited, products = (places(steps, name) for name in ("all_reduce", "wait_tensor", "mm"))
    assert len(begun) == len(waited) == 3
    assert all(steps[place].endswith("all_reduce_") for place in begun)  # in place: only the collective reads a bucket
    assert begun[-1] < waited[0] and waited[-1] < places(steps, "_fused_sgd_")[0]
    for one, other in zip(begun, begun[1:], strict=False):
        assert any(one < place < other for place in products)


class Backwards(nn.Module):
    """Layers in the reverse order of their use: the gradients that DDP expects first are complete last."""

    def __init__(self):
        super().__init__()
        self.head, self.second, self.first = nn.Linear(32, 8), nn.Linear(48, 32), nn.Linear(64, 48)

    def forward(self, x):
        return self.head(self.second(self.first(x).relu()).relu())


def test_buckets_begin_in_order(group, monkeypatch):
    """Another process may run by two plans and begin them after its backward."""
    model = Backwards()
    fusion = planned(DistributedDataParallel(model, bucket_cap_mb=1e-5), monkeypatch).fusion
    begun = [fusion.extern_calls[number] for number in schedule(fusion) if number in fusion.ordered]
    sizes = [call.operands[0].layout.numel for call in begun]
    assert sizes == [param.numel() for param in model.parameters()][::-1]


def test_clipping_waits(group, monkeypatch):
    steps = steps_of(planned(DistributedDataParallel(layers()), monkeypatch, clip_grad_norm=1.0))
    assert "stitch" in steps[places(steps, "wait_tensor")[-1] :]


def test_buckets_are_those_of_ddp(group):
    """By default the first has a MiB, so that it begins early, and others 25."""
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)], nn.Linear(512, 5))
    ddp = DistributedDataParallel(model)
    buckets = torch_reformer.training.data_parallel.DataParallel(ddp)._buckets([*model.parameters()][::-1])
    assert [param for bucket in buckets for param in bucket] == [*model.parameters()][::-1]
    sizes = [sum(param.numel() * 4 for param in bucket) for bucket in buckets]
    assert 1 << 20 <= sizes[0] < 3 << 20 and len(sizes) == 2


def test_missing_gradients_are_an_error(group):
    model = layers(1)
    model.unused = nn.Linear(2, 2)

    def loss(model, x, y):
        return F.cross_entropy(model[2](model[0](x)), y)

    step = torch_reformer.training_step(DistributedDataParallel(model), loss, torch.optim.SGD(model.parameters(), 0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="unused.weight.*find_unused_parameters=True"):
            step(*batch())


def test_parameters_outside_of_ddp_stay_local(group):
    """The fake group's sums are its own operands, so what is reduced becomes a fourth."""
    model, head = nn.Linear(64, 16), nn.Linear(16, 5)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
    ddp, data = DistributedDataParallel(model), batch()
    step = torch_reformer.training_step(
        ddp, lambda model, x, y: F.cross_entropy(head(model(x)), y), optimizer, keep_grads=True
    )
    loss = F.cross_entropy(head(model(data[0])), data[1])
    expected = torch.autograd.grad(loss, [model.weight, head.weight])
    step(*data)
    torch.testing.assert_close([model.weight.grad * 4, head.weight.grad], list(expected))


def test_no_sync_is_refused(group):
    ddp = DistributedDataParallel(layers(1))
    step = torch_reformer.training_step(ddp, loss_of, torch.optim.SGD(ddp.parameters(), 0.1))
    with ddp.no_sync(), pytest.raises(RuntimeError, match="accumulate"):
        step(*batch())


@pytest.mark.parametrize(
    ("options", "change", "reason"),
    [
        ({}, lambda ddp: None, None),
        ({"static_graph": True, "gradient_as_bucket_view": True}, lambda ddp: None, None),
        ({"find_unused_parameters": True}, lambda ddp: None, "unused"),
        ({}, lambda ddp: ddp.register_comm_hook(None, lambda state, bucket: bucket), "communication hooks"),
        ({}, lambda ddp: ddp.register_forward_pre_hook(lambda module, args: None), "hooks of its forward"),
    ],
)
def test_what_needs_ddp(group, options, change, reason):
    ddp = DistributedDataParallel(layers(1), **options)
    change(ddp)
    why = torch_reformer.training.data_parallel.DataParallel(ddp).why_by_ddp()
    assert why is None if reason is None else reason in why


def test_sparse_gradients_need_ddp(group):
    ddp = DistributedDataParallel(nn.Embedding(4, 4, sparse=True))
    assert "sparse" in torch_reformer.training.data_parallel.DataParallel(ddp).why_by_ddp()
