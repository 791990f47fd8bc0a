"""The stub of MIOpen (test/miopen), on which other tests rely: its convolutions, answers and counters."""

import pickle
import subprocess

import pytest
import torch
from miopen import stub
from miopen.processes import aborts, run, works

TYPES = {torch.float16: "HALF", torch.float32: "FLOAT", torch.bfloat16: "BFLOAT16", torch.float64: "DOUBLE"}
NAIVE = {
    "Forward": (85, "ConvDirectNaiveConvFwd"),
    "BackwardData": (86, "ConvDirectNaiveConvBwd"),
    "BackwardWeights": (87, "ConvDirectNaiveConvWrw"),
}
DIRECTIONS = tuple(NAIVE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stub")
    stub.build_hip(folder)
    stub.build(folder)
    return folder


CASES = {
    "plain": dict(),
    "1x1": dict(w=(4, 6, 1, 1), pad=(0, 0)),
    "strides": dict(stride=(2, 3), pad=(1, 2)),
    "dilations": dict(x=(2, 6, 9, 11), dilation=(2, 3), pad=(0, 1)),
    "groups": dict(w=(9, 2, 3, 2), groups=3, stride=(2, 1)),
    "depthwise": dict(w=(6, 1, 5, 3), groups=6, pad=(2, 0)),
    "one channel": dict(x=(3, 1, 4, 4), w=(1, 1, 2, 2), pad=(0, 0)),
}


def of_torch(direction: str, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, options: dict) -> torch.Tensor:
    arguments = options["stride"], options["pad"], options["dilation"]
    grad = torch.nn.grad
    if direction == "Forward":
        return torch.nn.functional.conv2d(x, w, None, *arguments, options["groups"])
    if direction == "BackwardData":
        return grad.conv2d_input(x.shape, w, y, *arguments, options["groups"])
    return grad.conv2d_weight(x, w.shape, y, *arguments, options["groups"])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", CASES)
def test_convolutions_are_those_of_torch(folder, name, direction):
    """Small integers, whose sums are exact in all data types and in any order."""
    options = dict(x=(2, 6, 5, 7), w=(4, 6, 3, 3), pad=(1, 1), stride=(1, 1), dilation=(1, 1), groups=1) | CASES[name]
    x, w = (torch.randint(-1, 2, options[which]).double() for which in "xw")
    y = torch.randint(-1, 2, of_torch("Forward", x, w, x, options).shape).double()
    expected = of_torch(direction, x, w, y, options)
    operands = {"Forward": (w, x), "BackwardData": (y, w), "BackwardWeights": (y, x)}[direction]

    def in_memory(tensor: torch.Tensor, dtype: torch.dtype, layout: str) -> torch.Tensor:
        return (tensor.permute(0, 2, 3, 1) if layout == "NHWC" else tensor).to(dtype).contiguous().flatten()

    kinds = [(dtype, layout) for dtype in TYPES for layout in ("NCHW", "NHWC")]
    given = [
        (TYPES[dtype], layout, *(bytes(in_memory(t, dtype, layout).view(torch.uint8).numpy()) for t in operands))
        for dtype, layout in kinds
    ]
    code = f"""
        import pickle, sys
        stub.set_applicable("*={NAIVE[direction][1]}")  # by the rules it does no doubles
        for kind, layout, first, second in pickle.load(sys.stdin.buffer):
            it = Run("{direction}", Case(**{options!r}, type=globals()[kind], layout=globals()[layout]))
            it.memory[0][:], it.memory[1][:] = first, second
            assert it.immediate({NAIVE[direction][0]}) == 0
            sys.stdout.buffer.write(it.memory[2].raw)
            it.destroy()
        assert stub.live_handles() == stub.live_tensors() == stub.live_convolutions() == 0
    """
    actual = works(folder, code, pickle.dumps(given))
    at = 0
    for dtype, layout in kinds:
        wanted = in_memory(expected, dtype, layout)
        size = wanted.numel() * wanted.element_size()
        assert torch.equal(torch.frombuffer(bytearray(actual[at : at + size]), dtype=dtype), wanted)
        at += size
    assert at == len(actual)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rounding_is_that_of_torch(folder, dtype):
    """A 1x1 convolution by 1.0009765625: the products need more bits than the data types have."""
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    x = bits.view(dtype)
    w = torch.tensor([1 + 2.0 ** (-10 if dtype == torch.float16 else -7)]).to(dtype)
    code = f"""
        import sys
        it = Run(FORWARD, Case(x=(1, 1, 256, 256), w=(1, 1, 1, 1), pad=(0, 0), type={TYPES[dtype]}))
        given = sys.stdin.buffer.read()
        it.memory[0][:], it.memory[1][:] = given[:2], given[2:]
        assert it.immediate(85) == 0
        sys.stdout.buffer.write(it.memory[2].raw)
    """
    given = bytes(w.view(torch.uint8).numpy()) + bytes(x.view(torch.uint8).numpy())
    actual = torch.frombuffer(bytearray(works(folder, code, given)), dtype=dtype)
    expected = (x.double() * w.double()).float().to(dtype)  # a product has 16 or 22 bits, which fit into a float
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.nan_to_num(0, 1, -1), expected.nan_to_num(0, 1, -1))


def test_queries(folder):
    """Class A refuses, class B always answers 0; a query about either is counted."""
    works(
        folder,
        """
        it = Run()
        assert it.query(91) == (0, 6 * 9 * 35 * 4)
        assert it.query(88)[0] == it.query(107)[0] == it.query(97)[0] == 3
        assert it.query(84) == it.query(86) == it.query(3) == (0, 0)
        assert it.query(11)[0] == it.query(9999)[0] == 3
        assert (stub.queries(), stub.queries(of_thread=True), stub.failures()) == (9, 9, 5)
        weights = Run(BACKWARD_WEIGHTS, Case(type=HALF))
        assert weights.query(73) == (0, 4 * 6 * 9 * 4) and Run(BACKWARD_WEIGHTS).query(73) == (0, 0)
        assert call("SetConvolutionAttribute", weights.convolution, 1, 1) == 0
        assert weights.query(73)[0] == 3, "sums in no order"
        assert weights.query(102)[0] == 0
    """,
    )


def test_a_find_db(folder):
    works(
        folder,
        """
        key = "6-5-7-3x3-4-5-7-2-1x1-1x1-1x1-0-NCHW-FP32-F"
        stub.set_applicable(f"{key}=GemmFwd1x1_0_1:0.1,80,x;ConvDirectNaiveConvFwd")
        it = Run()
        assert it.query(88) == (0, 80) and it.query(91)[0] == 3
        assert it.with_workspace(88).immediate(88) == 0 and stub.last_run() == key + "=88"
        other = Run(BACKWARD_DATA, Case(layout=NHWC, w=(4, 3, 3, 3), groups=2, type=HALF))
        assert other.query(108) == (0, 0)
        assert other.immediate(108) == 0
        assert stub.last_run() == "4-5-7-3x3-6-5-7-2-1x1-1x1-1x1-0-NHWC-NHWC-NHWC-FP16-B_g2=108"
    """,
    )


def test_results_and_workspaces_are_written_wholly(folder):
    works(
        folder,
        """
        it = Run().with_workspace(91)
        it.memory[2] = ctypes.create_string_buffer(it.case.bytes_of(it.case.y) + 8)
        assert it.immediate(91) == 0
        assert it.memory[2].raw == bytes(len(it.memory[2])), "zeros give zeros, and nothing is behind them"
        assert it.workspace.raw == b"\\xff" * it.workspace_bytes
        stub.inject("miopenConvolutionForwardImmediate", 5, 1)
        assert it.immediate(91) == 5
        numbers = (ctypes.c_float * (len(it.memory[2]) // 4)).from_buffer(it.memory[2])
        assert all(number != number for number in numbers[:-2]) and numbers[-2:] == [0, 0]
        assert it.immediate(91) == 0 and stub.runs(91) == 2
    """,
    )


def test_captures(folder):
    works(
        folder,
        """
        it, later = Run().with_workspace(91), Run(case=Case(x=(1, 6, 5, 7))).with_workspace(91)
        again = Run().with_workspace(91)
        assert it.immediate(91) == later.immediate(85) == 0
        hip.fake_set_capturing(1)
        assert it.immediate(91) == 0
        assert it.immediate(85) == later.immediate(91) == it.compile(91) == 7
        assert again.immediate(91) == 7, "another handle has run it"
        handle = ctypes.c_void_p()
        assert call("CreateWithStream", ctypes.byref(handle), None) == 7 and not handle.value
        stub.fail_blas_in_capture(1)
        assert it.immediate(91) == 7 and later.immediate(85) == 0
        hip.fake_set_capturing(0)
        assert it.immediate(85) == it.compile(91) == 0 and stub.compilations(91) == 1
    """,
    )


def test_devices_and_streams(folder):
    works(
        folder,
        """
        count, device = ctypes.c_int(), ctypes.c_int()
        assert hip.hipGetDeviceCount(ctypes.byref(count)) == 0 and count.value == 2
        assert hip.hipSetDevice(2) == hip.hipSetDevice(-1) == 101
        hip.hipSetDevice(1)
        set_before = hip.fake_set_device_calls()
        it = Run(handle=handle(5))
        stub.expect_stream(6)
        assert call("SetStream", it.handle, 6) == 0 and it.immediate(85) == 0
        assert stub.last_stream() == 6 and stub.calls("miopenSetStream") == 1
        assert hip.fake_set_device_calls() == set_before + 2, "making a handle and running set the thread's device"
        import threading
        def other():
            assert hip.hipGetDevice(ctypes.byref(device)) == 0 and device.value == 0
            stub.expect_stream_of_thread(7)
            assert Run(handle=handle(7)).immediate(85) == 0
            assert stub.calls_of_thread("miopenCreateWithStream") == 1
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert stub.last_stream() == 7 and stub.calls("miopenCreateWithStream") == stub.live_handles() == 2
        assert it.immediate(85) == 0
    """,
    )


def test_registries(folder):
    works(
        folder,
        """
        def algorithm(id):
            result = ctypes.c_int(-1)
            return call("GetSolverIdConvAlgorithm", id, ctypes.byref(result)), result.value
        def version():
            numbers = [ctypes.c_size_t() for _ in range(3)]
            assert call("GetVersion", *map(ctypes.byref, numbers)) == 0
            return [number.value for number in numbers]
        assert version() == [3, 5, 2]
        assert algorithm(8) == algorithm(217) == (0, 1) and algorithm(64) == (0, 5) and algorithm(91) == (0, 0)
        assert [algorithm(id)[0] for id in (9, 11, 13, *range(18, 24), 25, 128, 129, 0, 12, 2**40)] == [2] * 15
        it = Run()
        assert call("SetConvolutionAttribute", it.convolution, 3, 1) == 0
        stub.use_registry("changed:16")
        assert algorithm(16) == (0, 0) and algorithm(17) == (0, 1)
        stub.use_registry("old")
        assert version() == [3, 1, 0] and algorithm(16) == (0, 1)
        assert call("SetConvolutionAttribute", it.convolution, 3, 1) == 3
        assert [algorithm(id) for id in (11, 18, 128)] == [(0, 1), (0, 1), (0, 5)] and algorithm(217)[0] == 2
    """,
    )


def test_solutions(folder):
    works(
        folder,
        """
        class Solution(ctypes.Structure):
            _fields_ = [("time", ctypes.c_float), ("workspace", U), ("id", U), ("algorithm", ctypes.c_int)]
        it, count, found = Run(), ctypes.c_size_t(), (Solution * 3)()
        assert call("ConvolutionForwardGetSolutionCount", *it.descriptors, ctypes.byref(count)) == 0
        assert count.value == 4
        assert call("ConvolutionForwardGetSolution", *it.descriptors, 3, ctypes.byref(count), found) == 0
        assert [(each.id, each.algorithm) for each in found] == [(1, 1), (14, 3), (26, 5)] and count.value == 3
        assert stub.looks_at_solutions() == 2
    """,
    )


def test_statuses_of_tests(folder):
    works(
        folder,
        """
        functions = [name for name in FUNCTIONS if name not in ("GetErrorString",)]
        it = Run()
        out = ctypes.create_string_buffer(64)
        pairs = ints(1, 1)
        arguments = {
            "GetVersion": (out, out, out),
            "GetSolverIdConvAlgorithm": (1, out),
            "CreateWithStream": (out, None),
            "SetStream": (it.handle, None),
            "CreateTensorDescriptor": (out,),
            "CreateConvolutionDescriptor": (out,),
            "SetNdTensorDescriptorWithLayout": (it.first, FLOAT, NCHW, ints(4, 6, 3, 3), 4),
            "InitConvolutionNdDescriptor": (it.convolution, 2, pairs, pairs, pairs, 0),
            "SetConvolutionGroupCount": (it.convolution, 1),
            "SetConvolutionAttribute": (it.convolution, 0, 0),
            "ConvolutionForwardGetSolutionCount": (*it.descriptors, out),
            "ConvolutionForwardGetSolution": (*it.descriptors, 1, out, out),
            "ConvolutionForwardGetSolutionWorkspaceSize": (*it.descriptors, 85, out),
            "ConvolutionForwardCompileSolution": (*it.descriptors, 85),
        }
        for name, given in arguments.items():
            for status in 1, 4, 10:
                stub.inject(f"miopen{name}", status, 1)
                assert call(name, *given) == status, name
            assert call(name, *given) == 0, name
        stub.inject("miopenConvolutionForwardCompileSolution", 8, 2)
        assert [it.compile(85) for _ in range(3)] == [8, 8, 0] and stub.compilations(85) == 2
        stub.reset()
        assert stub.compilations(85) == stub.calls("miopenSetStream") == stub.failures() == 0
        function = stub.library.miopenGetErrorString
        function.restype = ctypes.c_char_p
        assert [function(status) for status in (0, 3, 7)] == [
            b"miopenStatusSuccess", b"miopenStatusBadParm", b"miopenStatusUnknownError"
        ]
    """,
    )


WINOGRAD = {  # architecture, direction and sizes; applicable ones of 15, 37, 53 and 84
    "gfx908": ("gfx908", "FORWARD", dict(x=(2, 18, 8, 8), w=(8, 18, 3, 3)), (15, 37, 84)),
    "gfx90a": ("gfx90a", "FORWARD", dict(x=(2, 18, 8, 8), w=(8, 18, 3, 3)), (37, 84)),
    "few channels": ("gfx908", "FORWARD", dict(x=(2, 16, 8, 8), w=(8, 16, 3, 3)), (37, 84)),
    "tiny images": ("gfx908", "FORWARD", dict(x=(4, 4, 6, 6), w=(80, 4, 3, 3)), ()),
    "groups": ("gfx942", "FORWARD", dict(x=(2, 8, 8, 8), w=(8, 4, 3, 3), groups=2), (37, 53)),
    "weights": ("gfx942", "BACKWARD_WEIGHTS", dict(x=(2, 8, 8, 8), w=(8, 8, 3, 3)), (37, 53, 84)),
    "weights by stride 2": ("gfx942", "BACKWARD_WEIGHTS", dict(x=(2, 8, 8, 8), w=(8, 8, 3, 3), stride=(2, 2)), ()),
    "input by stride 2": ("gfx942", "BACKWARD_DATA", dict(x=(2, 8, 8, 8), w=(8, 8, 3, 3), stride=(2, 2)), (37, 84)),
    "stride 3": ("gfx942", "FORWARD", dict(x=(2, 8, 9, 9), w=(8, 8, 3, 3), stride=(3, 3)), ()),
    "dilation": ("gfx942", "FORWARD", dict(x=(2, 8, 9, 9), w=(8, 8, 3, 3), dilation=(2, 2)), ()),
    "padding beyond the filter": ("gfx942", "BACKWARD_DATA", dict(x=(2, 8, 9, 9), w=(8, 8, 3, 3), pad=(3, 3)), ()),
    "nhwc": ("gfx942", "FORWARD", dict(x=(2, 8, 8, 8), w=(8, 8, 3, 3), layout=1), ()),
    "fp16": ("gfx90a", "FORWARD", dict(x=(2, 8, 8, 8), w=(8, 8, 3, 3), type=0), (37, 84)),
    "a gradient by bf16": ("gfx90a", "BACKWARD_DATA", dict(x=(2, 8, 8, 8), w=(8, 8, 3, 3), type=0), ()),
    "bf16": ("gfx942", "FORWARD", dict(x=(2, 8, 8, 8), w=(8, 8, 3, 3), type=5), ()),
}


@pytest.mark.parametrize("name", WINOGRAD)
def test_winograd(folder, name):
    architecture, direction, sizes, expected = WINOGRAD[name]
    code = f"""
        for id in 15, 37, 53, 84:
            if not (child := os.fork()):
                os._exit(Run({direction}, Case(**{sizes!r})).compile(id))
            if os.waitpid(child, 0)[1] == 0:
                print(id)
    """
    assert works(folder, code, FAKE_HIP_ARCHS=architecture).split() == [b"%d" % id for id in expected]


def test_other_libraries(folder, tmp_path):
    decoy = stub.build(tmp_path, soname="libMIOpen_private.so.1", defines=("STUB_DECOY",))
    aborts(folder, "handle()", "this library must not be used", MIOPEN=str(decoy))
    older = stub.build(tmp_path, without=("miopenGetSolverIdConvAlgorithm", "miopenConvolutionForwardImmediate"))
    works(
        folder,
        """
        for name in "GetSolverIdConvAlgorithm", "ConvolutionForwardImmediate":
            assert not hasattr(stub.library, f"miopen{name}")
        assert Run(BACKWARD_DATA).immediate(86) == 0
        """,
        MIOPEN=str(older),
    )


def test_sanitizers_find_nothing(tmp_path):
    stub.build_hip(tmp_path, sanitize=True)
    stub.build(tmp_path, sanitize=True)
    runtime = subprocess.run(["g++", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True)
    options = {"LD_PRELOAD": runtime.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    code = """
        for direction, nchw, nhwc in zip(DIRECTIONS, (91, 97, 102), (85, 86, 87)):
            for layout, solver in (NCHW, nchw), (NHWC, nhwc):
                for type in HALF, FLOAT, BFLOAT16:
                    it = Run(direction, Case(type=type, layout=layout)).with_workspace(solver)
                    assert it.compile(solver) == it.immediate(solver) == 0
                    it.destroy()
        assert stub.live_handles() == 0
    """
    works(tmp_path, code, **options)
    small = "it = Run(); it.memory[2] = ctypes.create_string_buffer(8); it.immediate(85)"
    assert b"heap-buffer-overflow" in run(tmp_path, small, **options).stderr
