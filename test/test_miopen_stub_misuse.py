"""The stub of MIOpen (test/miopen) ends the process at each misuse with a message."""

import pytest
from miopen import stub
from miopen.processes import aborts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stub")
    stub.build_hip(folder)
    stub.build(folder)
    return folder


MISUSES = {
    "a tensor where a handle belongs": (
        "call('SetStream', tensor((1, 2, 3, 4)), None)",
        "a tensor descriptor where a handle",
    ),
    "nothing where a handle belongs": ("call('SetStream', None, None)", "null where a handle belongs"),
    "memory where a tensor belongs": (
        "it = Run(); it.first = ctypes.addressof(ints(1)); it.query(85)",
        "something unknown",
    ),
    "a destroyed handle": ("it = Run(); call('Destroy', it.handle); it.query(85)", "a handle that was destroyed"),
    "a destroyed tensor": (
        "it = Run(); call('DestroyTensorDescriptor', it.first); [tensor((1, 1, 1, 1)) for _ in range(9)]; it.query(85)",
        "a tensor descriptor that was destroyed",
    ),
    "twice destroyed": (
        "c = convolution(); [call('DestroyConvolutionDescriptor', c) for _ in 'ab']",
        "a convolution descriptor that was destroyed",
    ),
    "groups before the initialisation": (
        "call('SetConvolutionGroupCount', made('CreateConvolutionDescriptor'), 2)",
        "the group count before",
    ),
    "an attribute before the initialisation": (
        "call('SetConvolutionAttribute', made('CreateConvolutionDescriptor'), 1, 1)",
        "an attribute before",
    ),
    "a convolution that was never initialised": (
        "it = Run(); it.convolution = made('CreateConvolutionDescriptor'); it.query(85)",
        "never initialised",
    ),
    "a tensor that was never set": ("it = Run(); it.third = made('CreateTensorDescriptor'); it.query(85)", "never set"),
    "no groups": ("convolution(groups=0)", "0 groups"),
    "negative padding": ("convolution(pad=(0, -1))", "padding below 0"),
    "no stride": ("convolution(stride=(0, 1))", "strides below 1"),
    "no dilation": ("convolution(dilation=(1, 0))", "dilations below 1"),
    "a deprecated mode": (
        "call('InitConvolutionNdDescriptor', made('CreateConvolutionDescriptor'), 2, *[ints(1, 1)] * 3, 2)",
        "mode 2",
    ),
    "three dimensions": (
        "call('InitConvolutionNdDescriptor', made('CreateConvolutionDescriptor'), 3, *[ints(1, 1, 1)] * 3, 0)",
        "3 dimensions",
    ),
    "an empty tensor": ("tensor((1, 0, 3, 3))", "lengths that are not positive"),
    "a tensor of three dimensions": ("tensor((1, 3, 3))", "of 3 dimensions"),
    "an unknown type": ("tensor((1, 1, 3, 3), 4)", "no data type 4"),
    "an unknown layout": ("tensor((1, 1, 3, 3), FLOAT, 2)", "no layout 2"),
    "integers": (
        "it = Run(case=Case(type=FLOAT)); [setattr(it, n, tensor(l, INT8)) for n, l in zip("
        "('first', 'second', 'third'), it.case.lens(FORWARD))]; it.query(85)",
        "a convolution of integers",
    ),
    "two types": ("it = Run(); it.first = tensor(it.case.w, HALF); it.query(85)", "more than one data type"),
    "two layouts": ("it = Run(); it.third = tensor(it.case.y, FLOAT, NHWC); it.query(85)", "more than one layout"),
    "lengths in the order of NHWC": (
        "it = Run(); it.second = tensor((2, 5, 7, 6), FLOAT, NHWC); it.query(85)",
        "layout",
    ),
    "a height that the padding doesn't give": (
        "it = Run(); it.third = tensor((2, 4, 5, 6)); it.query(85)",
        "the width of y",
    ),
    "groups that the filter hasn't": (
        "it = Run(); call('SetConvolutionGroupCount', it.convolution, 2); it.query(85)",
        "channels of x",
    ),
    "output channels that groups don't divide": (
        "it = Run(case=Case(w=(4, 2, 3, 3), groups=3)); it.query(85)",
        "the rest of the output channels",
    ),
    "x before w": ("it = Run(); it.first, it.second = it.second, it.first; it.query(85)", "another order"),
    "w before dy": (
        "it = Run(BACKWARD_DATA); it.first, it.second = it.second, it.first; it.query(86)",
        "another order",
    ),
    "x before dy": (
        "it = Run(BACKWARD_WEIGHTS); it.first, it.second = it.second, it.first; it.query(87)",
        "another order",
    ),
    "dx for dw": (
        "it = Run(BACKWARD_WEIGHTS); it.second, it.third = it.third, it.second; it.query(87)",
        "another order",
    ),
    "strides of both layouts": (
        "it = Run(case=Case((2, 1, 4, 5), (3, 1, 1, 1), (0, 0))); "
        "call('SetTensorDescriptor', it.second, FLOAT, 4, ints(2, 1, 4, 5), ints(20, 20, 5, 1)); it.query(85)",
        "name the layout",
    ),
    "strides with gaps": (
        "it = Run(); strides = ints(420, 70, 14, 2)\n"
        "call('SetTensorDescriptor', it.second, FLOAT, 4, ints(2, 6, 5, 7), strides); it.query(85)",
        "strides of neither",
    ),
    "another thread": (
        "import threading; it = Run(); t = threading.Thread(target=it.query, args=[85]); t.start(); t.join()",
        "the handle of another thread",
    ),
    "another device": (
        "it = Run(); hip.hipSetDevice(1); it.query(85)",
        "the handle's device is 0, but the current one is 1",
    ),
    "another stream": ("it = Run(handle=handle(1234)); it.immediate(85)", "unexpected stream"),
    "another stream than the thread's": (
        "it = Run(handle=handle(1)); stub.expect_stream(1); stub.expect_stream_of_thread(2); it.immediate(85)",
        "unexpected stream",
    ),
    "a solver that isn't registered": ("Run().immediate(11)", "solver 11 is not registered"),
    "compiling what isn't registered": ("Run().compile(12)", "solver 12 is not registered"),
    "a solver of another direction": (
        "Run().immediate(86)",
        "ConvDirectNaiveConvBwd (86) is not applicable to 6-5-7-3x3-4-5-7-2-",
    ),
    "a solver of another layout": ("Run().immediate(107)", "(107) is not applicable"),
    "compiling what isn't applicable": ("Run().compile(15)", "(15) is not applicable"),
    "what another architecture can do": ("hip.hipSetDevice(1); Run(case=Case(type=HALF)).immediate(74)", "on gfx90a"),
    "implicit GEMM where order matters": (
        "it = Run(); call('SetConvolutionAttribute', it.convolution, 1, 1); it.immediate(64)",
        "(64) is not applicable",
    ),
    "no workspace": ("Run().immediate(91)", "a workspace of 0 bytes, where 7560 were asked for"),
    "too little workspace": ("it = Run().with_workspace(91); it.workspace_bytes -= 1; it.immediate(91)", "7559 bytes"),
    "bytes of a workspace at null": ("it = Run(); it.workspace_bytes = 9; it.immediate(85)", "a workspace at null"),
    "a workspace of no bytes": ("it = Run(); it.workspace = it.memory[2]; it.immediate(85)", "a workspace at null"),
    "a workspace in a tensor": (
        "it = Run(); it.workspace, it.workspace_bytes = it.memory[0], 4; it.immediate(85)",
        "the workspace overlaps the first operand",
    ),
    "a workspace that another thread uses": (
        "import threading; case = Case(x=(8, 32, 32, 32), w=(32, 32, 3, 3))\n"
        "space = ctypes.create_string_buffer(10**7)\n"
        "def other():\n"
        "    it = Run(case=case); it.workspace, it.workspace_bytes = space, len(space); it.immediate(91)\n"
        "thread = threading.Thread(target=other); thread.start()\n"
        "while thread.is_alive(): space[99] = b'\\0'",
        "somebody wrote to the workspace",
    ),
    "a result over an operand": ("it = Run(); it.memory[2] = it.memory[1]; it.immediate(85)", "the result overlaps"),
    "a tensor at null": ("it = Run(); it.memory[1] = None; it.immediate(85)", "a tensor at null"),
    "nowhere for a result": ("call('CreateWithStream', None, None)", "null where the result belongs"),
    "a registry that there isn't": ("stub.use_registry('changed:12')", "no registry"),
    "a solver that there isn't": ("stub.set_applicable('*=Conv')", 'no solver is called "Conv"'),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse(folder, name):
    aborts(folder, *MISUSES[name])
