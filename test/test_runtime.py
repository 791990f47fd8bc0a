"""Behavior in a process: threads, forks, modes, shared memory."""

import gc
import itertools
import multiprocessing
import os
import threading
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from cases import Case, by_pytorch, directions, solvers_for
from torch._C import _AutoDispatchBelowAutograd

import torch_reformer
from torch_reformer import config, program
from torch_reformer.program import Program
from torch_reformer.runtime import native

CASES = [
    Case(2, 3, 9, 8, 5, padding=(1, 1)),
    Case(2, 16, 7, 7, 24, 1, 1),
    Case(2, 8, 9, 9, 8, groups=8, padding=(1, 1)),
]


def operands(case):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, generator=generator) for size in (case.input_size, case.weight_size, case.output_size)]


def all_results() -> list[torch.Tensor]:
    return [run(*tensors) for case in CASES for tensors, run in directions(case, *operands(case)).values()]


def expected_results() -> list[torch.Tensor]:
    results = []
    for case in CASES:
        for direction, (tensors, _) in directions(case, *operands(case)).items():
            results.append(by_pytorch(case, direction, *tensors))
    return results


def assert_right():
    torch.testing.assert_close(all_results(), expected_results(), atol=1e-4, rtol=1e-4)


def test_concurrent_calls():
    """Eight threads at once, each with its own decisions and its own results."""
    right, failures = all_results(), []
    barrier = threading.Barrier(8)

    def work():
        try:
            before = native.cache_counts()
            assert before == (0, 0), "decisions are remembered per thread"
            barrier.wait()
            for _ in range(20):
                torch.testing.assert_close(all_results(), right, atol=1e-4, rtol=1e-4)
            hits, misses = native.cache_counts()
            assert (hits, misses) == (19 * len(right), len(right))
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures[0]


def test_concurrent_training():
    """Backward passes run in autograd's own threads."""
    failures = []

    def work(seed):
        try:
            torch.manual_seed(seed)
            conv = torch_reformer.nn.Conv2d(3, 4, 3)
            x = torch.randn(2, 3, 8, 8)
            for _ in range(10):
                conv.zero_grad()
                conv(x).square().sum().backward()
                want = torch.autograd.grad(torch.conv2d(x, conv.weight, conv.bias).square().sum(), conv.weight)[0]
                torch.testing.assert_close(conv.weight.grad, want, atol=1e-3, rtol=1e-4)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures[0]


def test_decisions_follow_the_settings():
    """A setting changed by another thread reaches a thread that has decided before."""
    case = CASES[0]
    (tensors, run) = directions(case, *operands(case))["F"]
    run(*tensors)
    _, before = native.cache_counts()
    worker = threading.Thread(target=lambda: config(workspace_limit=1).__enter__())
    defaults = config.settings()
    try:
        worker.start()
        worker.join()
        run(*tensors)
        assert native.cache_counts()[1] == before + 1
    finally:
        config(workspace_limit=defaults.workspace_limit)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_numbers_of_threads(threads):
    torch.set_num_threads(threads)
    for case in CASES:
        for direction, (tensors, run) in directions(case, *operands(case)).items():
            want = by_pytorch(case, direction, *tensors)
            for solver in solvers_for(case.problem(direction, *tensors)):
                with config(force=solver):
                    torch.testing.assert_close(run(*tensors), want, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_fork_after_use():
    """The child of a process that has computed uses one thread, as with PyTorch's own operators: the pool's threads are
    not forked."""
    assert_right()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            assert_right()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert_right()


class Augmented(torch.utils.data.Dataset):
    """Images that a convolution blurs in the worker process."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        image = torch.full((1, 6, 6), float(index))
        return torch_reformer.conv2d(image, torch.ones(1, 1, 3, 3))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_data_loader_workers(method):
    assert_right()
    loader = torch.utils.data.DataLoader(
        Augmented(), batch_size=2, num_workers=2, multiprocessing_context=multiprocessing.get_context(method)
    )
    batches = torch.cat(list(loader))
    assert torch.equal(batches, torch.arange(6.0).mul(9).view(6, 1, 1, 1).expand(6, 1, 4, 4))


def test_modes_without_gradients():
    x, w, _ = operands(CASES[0])
    w.requires_grad_()
    with torch.no_grad():
        assert not torch_reformer.conv2d(x, w).requires_grad
    with torch.inference_mode():
        assert torch_reformer.conv2d(x, w).is_inference()
        made_inside = torch.ones(2, 3, 5, 5)
        result = torch_reformer.conv2d(made_inside, w)
    torch.testing.assert_close(result, torch.conv2d(made_inside, w.detach()))
    frozen = torch_reformer.conv2d(made_inside, w.detach())  # an inference tensor outside
    assert torch.equal(frozen, result)


def test_deterministic_algorithms():
    torch.use_deterministic_algorithms(True)
    try:
        assert all(map(torch.equal, all_results(), all_results()))
    finally:
        torch.use_deterministic_algorithms(False)
    with config(deterministic=True):
        assert all(map(torch.equal, all_results(), all_results()))


def test_memory_of_a_file(tmp_path):
    """A read-only mapping: inputs must not be written."""
    x, w, _ = operands(CASES[0])
    path = tmp_path / "input.bin"
    path.write_bytes(x.numpy().tobytes())
    mapped = torch.from_file(str(path), shared=False, size=x.numel(), dtype=x.dtype).view(x.shape)
    path.chmod(0o400)
    assert torch.equal(torch_reformer.conv2d(mapped, w), torch_reformer.conv2d(x, w))
    assert path.read_bytes() == x.numpy().tobytes()


def test_shared_memory():
    x, w, _ = (tensor.share_memory_() for tensor in operands(CASES[0]))
    torch.testing.assert_close(torch_reformer.conv2d(x, w), torch.conv2d(x, w, None), atol=1e-5, rtol=1e-4)


def test_inputs_are_not_written():
    for case in CASES:
        for tensors, run in directions(case, *operands(case)).values():
            before = [tensor.clone() for tensor in tensors]
            for tensor in tensors:
                version = tensor._version
                run(*tensors)
                assert tensor._version == version
            assert all(map(torch.equal, tensors, before))


def test_leaf_updated_in_place_between_calls():
    """Optimizers update leaves in place; no stale copy of the weight may be used."""
    x, w, _ = operands(CASES[1])
    w.requires_grad_()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(torch_reformer.conv2d(x, w).sum(), w)
        with torch.no_grad():
            w -= 0.1 * gradient
        torch.testing.assert_close(torch_reformer.conv2d(x, w), torch.conv2d(x, w), atol=1e-4, rtol=1e-4)


def test_repeated_calls_do_not_leak():
    resource = pytest.importorskip("resource")
    x, w, _ = (tensor.requires_grad_() for tensor in operands(CASES[0]))

    def calls(count):
        for _ in range(count):
            torch_reformer.conv2d(x, w).sum().backward()

    calls(300)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    calls(3000)
    assert (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096
    )  # KiB; less than 2 B per call escapes notice


def step_with(kind: str, number: float) -> None:
    """A training step with this number as part of a program."""
    x, w = torch.ones(1, 2, 4, 4, requires_grad=True), torch.ones(2, 2, 1, 1, requires_grad=True)
    running = torch.zeros(2), torch.ones(2)
    if kind == "eps":
        y = torch_reformer.conv2d_batch_norm_act(x, w, None, *running, training=True, eps=number)
    elif kind == "dropout":
        y = torch_reformer.linear_act(x, torch.ones(4, 4, requires_grad=True), dropout=number)
    else:
        tested = Program(program.store(program.acc() * number))
        with _AutoDispatchBelowAutograd():
            (y,) = torch.ops.reformer.stitch(x.detach(), [], tested.code)
        return
    y.sum().backward()


@pytest.mark.parametrize(
    "kind", ["operator", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("dropout", "eps"))]
)
def test_numbers_that_change_at_each_step_do_not_leak(kind):
    """Each number makes a new program, new derivatives and new plans that run them."""

    numbers = itertools.count()

    def steps(count):
        for i in itertools.islice(numbers, count):
            step_with(kind, 0.1 + 1e-6 * i)
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return resident, *native.interned_counts()

    before, programs, plans_before = steps(800)  # more than the caches hold
    after, _, plans = steps(400)
    assert after - before < 8 << 20
    assert plans < plans_before + 100
    # Unused programs are freed once they are as many as the used ones, which may belong to other tests.
    for _ in range(20):
        programs_before, programs = programs, steps(200)[1]
        if programs < programs_before:
            return
    pytest.fail("no program was ever freed")
