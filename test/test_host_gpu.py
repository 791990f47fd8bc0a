"""host_gpu.cpp's GPUs compute what the CPU does, and distinguish their memory from the CPU's and from each other's."""

import host_gpu
import pytest
from marks import needs_aten, needs_cpu_build

pytestmark = [needs_cpu_build, pytest.mark.slow]

STEPS = """
def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.BatchNorm2d(16), nn.MaxPool2d(2),
        nn.Conv2d(16, 8, 3, padding=2, dilation=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(8),
        nn.Linear(8, 10))

def steps(device, optimizer, order, loss_of=F.cross_entropy, autocast=False):
    model = network().to(device).to(memory_format=order)
    optimizer, losses = optimizer(model.parameters()), []
    for step in range(3):
        x = torch.randn(4, 3, 16, 16).to(device).to(memory_format=order)
        labels = torch.randint(10, (4,)).to(device)
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=autocast):
            y = model(x)
        assert y.device == torch.device(device)
        loss = loss_of(y.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [torch.tensor(losses), *(each.detach().cpu() for each in model.state_dict().values())]

def check_steps(**options):
    for order in torch.contiguous_format, torch.channels_last:
        wanted = steps("cpu", order=order, **options)
        for device in "cuda:0", "cuda:1":
            for a, b in zip(wanted, steps(device, order=order, **options), strict=True):
                assert torch.equal(a, b), (order, device, a, b)
"""


def test_training_steps():
    host_gpu.run(
        STEPS
        + """
check_steps(optimizer=lambda of: torch.optim.SGD(of, lr=0.1, momentum=0.9))
check_steps(optimizer=lambda of: torch.optim.SGD(of, lr=0.1, foreach=True))
check_steps(optimizer=lambda of: torch.optim.AdamW(of, fused=True))
"""
    )


def test_autocast():
    """PyTorch's list of autocast operators for GPUs decides; up to here it equals the CPU's."""
    host_gpu.run(
        STEPS
        + """
network_of_all = network
def network():
    return nn.Sequential(*(each for each in network_of_all() if not isinstance(each, nn.LayerNorm)))
check_steps(optimizer=lambda of: torch.optim.SGD(of, lr=0.1), autocast=True)
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert network().cuda()(torch.randn(4, 3, 16, 16, device="cuda")).dtype == torch.bfloat16
"""
    )


GEOMETRIES = """
def results(device, dims, transposed=False, groups=1, stride=1, dilation=1, bias=True):
    torch.manual_seed(0)
    def random(*size):
        return torch.randn(size, dtype=torch.float64).to(device).requires_grad_()
    given = [random(2, 8, *[9] * dims), random(8, 8 // groups, *[3] * dims), random(8) if bias else None]
    numbers = [stride] * dims, [1] * dims, [dilation] * dims, transposed, [0] * dims, groups
    y = torch.ops.aten.convolution(*given, *numbers)
    y.backward(torch.randn(y.shape).to(y))
    return y, *(each.grad for each in given if each is not None)

def check_convolutions(*all_dims):
    for dims in all_dims:
        for options in (
            {}, {"groups": 8}, {"groups": 4, "stride": 2}, {"dilation": 2}, {"transposed": True},
            {"bias": False, "groups": 2, "dilation": 2}, {"bias": False, "groups": 8, "dilation": 2},
        ):
            for a, b in zip(results("cpu", dims, **options), results("cuda:1", dims, **options), strict=True):
                assert b.device == torch.device("cuda:1")
                torch.testing.assert_close(a, b.cpu(), rtol=1e-12, atol=1e-12)
"""


def test_convolutions():
    host_gpu.run(GEOMETRIES + "check_convolutions(1, 2, 3)")


@needs_aten
def test_convolutions_past_the_dispatcher():
    """PyTorch's own function for all backends, which the package calls in its place, asks the device for kernels."""
    host_gpu.run(
        GEOMETRIES
        + """
import torch_reformer
torch_reformer.enable()
check_convolutions(1, 2, 3)
""",
        hip=True,
    )


def test_views_and_memory():
    host_gpu.run("""
        x = torch.arange(12.0).cuda().view(3, 4)
        part = x.t()[1:3]
        assert part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and not part.is_contiguous()
        assert part.mul_(10) is part and x.tolist()[0] == [0, 10, 20, 3]
        x[torch.tensor([0, 2]).cuda(), 1] = torch.tensor(-1.0)
        x[torch.tensor([1])] += 1
        assert x.tolist() == [[0, -1, 20, 3], [5, 51, 61, 8], [8, -1, 100, 11]]
        assert x[x > 50].tolist() == [51, 61, 100] and x.max().item() == 100

        out = torch.empty(0, device="cuda")
        other = out.view(0)
        assert torch.add(x, x, out=out) is out and torch.equal(out, 2 * x)
        assert other.untyped_storage().nbytes() == 48, "views have the memory that resizing gave"
        out.set_(x.untyped_storage(), 1, (2,), (4,))
        assert out.data_ptr() == x.data_ptr() + 4 and out.tolist() == [-1, 51]
        out.set_(x)
        assert out.shape == x.shape and out.fill_(7).sum() == x.sum() == 84

        leaf = torch.ones(3, device="cuda", requires_grad=True)
        twice = leaf * 2
        first, second = twice[:2], twice[2:]
        first += 1
        (first.sum() * second.sum()).backward()
        assert leaf.grad.tolist() == [4, 4, 12] and leaf.grad.is_cuda

        fresh = torch.empty(5, device="cuda")
        assert fresh.isnan().all() and fresh.data_ptr() % 64 == 0
        assert torch.empty_strided((2, 3), (1, 2), device="cuda", dtype=torch.int32).eq(-1).all()
        numbers = torch.stack([torch.arange(3, device="cuda"), torch.tensor([3, 4, 5]).cuda()])
        assert numbers.cpu().to("cuda").tolist() == [[0, 1, 2], [3, 4, 5]]
        query = torch.randn(2, 4, 8, 16, device="cuda")
        assert F.scaled_dot_product_attention(query, query, query).is_cuda
    """)


def test_two_devices():
    host_gpu.run("""
        import ctypes, threading
        assert torch.cuda.is_available() and torch.cuda.device_count() == 2 and torch.cuda.current_device() == 0
        x, y = torch.ones(3, device="cuda"), torch.ones(3, device="cuda:1")
        def refused(call, words):
            try:
                call()
            except RuntimeError as error:
                assert words in str(error), error
            else:
                raise AssertionError("nothing was refused")
        for a, b in (x, y), (y, x), (x, torch.ones(3)), (torch.ones(3), x):
            refused(lambda: a + b, "same device")
            refused(lambda: torch.cat([a, b]), "same device")
        refused(lambda: torch.empty(3, device="cuda:2"), "invalid device")
        refused(lambda: torch.ops.aten.q_scale(x), "CUDA")
        assert (x + torch.tensor(1.0)).tolist() == [2, 2, 2]
        assert x.copy_(y * 5) is x and x.to("cuda:1").device.index == 1 and x.tolist() == [5, 5, 5]
        with torch.cuda.device(1):
            assert torch.empty(3, device="cuda").device.index == torch.cuda.current_device() == 1
            elsewhere = []
            thread = threading.Thread(target=lambda: elsewhere.append(torch.cuda.current_device()))
            thread.start(), thread.join()
        torch.cuda.synchronize(1)
        assert elsewhere == [0] and torch.cuda.current_device() == 0
        assert [torch.cuda.current_stream(i).device_index for i in (None, 0, 1)] == [0, 0, 1]

        leaf = torch.ones(3, device="cuda:1", requires_grad=True)
        (leaf.to("cuda:0") * x).sum().backward()
        assert leaf.grad.device.index == 1 and leaf.grad.tolist() == [5, 5, 5]
    """)


@needs_aten
def test_operators_of_the_package():
    """Without a compiler for them this package's kernels are refused, and PyTorch's run."""
    host_gpu.run(
        """
import torch_reformer
from torch_reformer.runtime import gpu
assert [gpu.architecture(i) for i in range(2)] == ["gfx942", "gfx90a"]
if why := gpu.unavailable("gfx942"):
    assert why.startswith("no kernels for gfx942 are packaged, and hipRTC")
    def results(device, order, groups, bias):
        torch.manual_seed(0)
        x, weight = torch.randn(4, 16, 9, 9), torch.randn(32, 16 // groups, 3, 3)
        given = [each.double().to(device).to(memory_format=order) for each in (x, weight)]
        given += [torch.randn(32).double().to(device)] if bias else []
        given = [each.requires_grad_() for each in given]
        op = F.conv2d if device == "cpu" else torch.ops.reformer.conv2d
        y = op(*given, *([] if bias else [None]), [2, 1], [1, 1], [1, 1], groups)
        y.backward(torch.randn(y.shape).to(y))
        return y, *(each.grad for each in given)
    for order in torch.contiguous_format, torch.channels_last:
        for groups in 1, 4, 16:
            for bias in True, False:
                wanted = results("cpu", order, groups, bias)
                for device in "cuda:0", "cuda:1":
                    for a, b in zip(wanted, results(device, order, groups, bias), strict=True):
                        assert b.device == torch.device(device)
                        torch.testing.assert_close(a, b.cpu(), rtol=1e-12, atol=1e-12)
""",
        hip=True,
    )


@needs_aten
def test_a_model_of_the_package():
    """fuse() and torch.compile: the plans run on both GPUs."""
    host_gpu.run(
        STEPS
        + """
import torch_reformer
from torch_reformer.runtime import gpu
if gpu.unavailable("gfx942"):
    options = {"optimizer": lambda of: torch.optim.SGD(of, lr=0.1, momentum=0.9), "order": torch.channels_last}
    torch.set_default_dtype(torch.float64)
    plain = network
    wanted = steps("cpu", **options)
    def network():
        model = plain()
        fusions.append(torch_reformer.fuse(model))
        return model
    for device in "cuda:0", "cuda:1":
        torch._dynamo.reset()
        fusions = []
        for a, b in zip(wanted, steps(device, **options), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
        assert len(fusions[0].reports) == 2, "a forward and a backward were planned"
""",
        hip=True,
    )
