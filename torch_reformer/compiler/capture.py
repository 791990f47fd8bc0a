"""AOTAutograd's graphs as the compiler's (ir.py): the only place that knows PyTorch's operators by their names, with
element_wise.py's table. Sizes are numbers here: a graph with symbols is traced for those of a call first
(execute.py)."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node

from ..operators import fake
from ..program import Value as Expression
from ..runtime.plan import geometry_number
from .element_wise import COMPARISONS, CONSTANTS, EXPRESSIONS, GIVE_TRUTHS, OF_TRUTHS, NotElementWise
from .ir import Call, Conv, ConvGrads, Geometry, Graph, Layout, Map, Reduce, View, views_of
from .space import digits_of, find_space, without

aten = torch.ops.aten
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

# Left whole: each is a kernel of PyTorch's that reads its rows once, or an anchor.
_WHOLE = (
    *(aten.native_layer_norm, aten.native_layer_norm_backward, aten.native_group_norm, aten.native_group_norm_backward),
    *(aten._softmax, aten._softmax_backward_data, aten._log_softmax, aten._log_softmax_backward_data),
    *(aten.nll_loss_forward, aten.nll_loss_backward, aten.nll_loss2d_forward, aten.nll_loss2d_backward),
    *(aten.native_dropout, aten.embedding, aten.embedding_dense_backward, aten.index_put, aten.index_add),
    *(
        aten.gelu,
        aten.silu,
        aten.relu,
        aten.rsub,
        aten.upsample_bilinear2d,
        aten.upsample_nearest2d,
        *(aten._fused_rms_norm, aten._scaled_dot_product_flash_attention_for_cpu),
    ),
    *(aten.addmm, aten.baddbmm, aten.mm, aten.bmm, aten.max_pool2d_with_indices_backward, aten.im2col, aten.col2im),
    *(aten.grid_sampler_2d, aten.native_batch_norm, aten._unsafe_index, aten._unsafe_index_put, aten.cat),
)
_BROKEN_UP = (
    *(aten.native_batch_norm_backward, aten._native_batch_norm_legit, aten._native_batch_norm_legit_functional),
    *(aten._native_batch_norm_legit_no_training, aten._batch_norm_with_update_functional, aten.batch_norm_backward),
    *(aten.cudnn_batch_norm, aten.cudnn_batch_norm_backward, aten.miopen_batch_norm, aten.miopen_batch_norm_backward),
    *(aten.gelu_backward, aten.silu_backward, aten.hardswish, aten.hardswish_backward, aten.hardsigmoid),
    *(aten.hardsigmoid_backward, aten.sigmoid_backward, aten.tanh_backward, aten.threshold_backward),
    *(aten.native_dropout_backward, aten.addcmul, aten.addcdiv, aten.leaky_relu, aten.leaky_relu_backward),
    *(aten.binary_cross_entropy_with_logits, aten.elu, aten.elu_backward, aten.softplus, aten.softplus_backward),
    *(aten.mse_loss, aten.mse_loss_backward, aten.smooth_l1_loss, aten.smooth_l1_loss_backward, aten.hardtanh),
    *(aten.hardtanh_backward, aten.mish, aten.mish_backward, aten.native_batch_norm),
)


def decompositions() -> dict:
    """What AOTAutograd takes apart before the compiler sees it."""
    table = dict(core_aten_decompositions()) | get_decompositions(list(_BROKEN_UP))
    whole = set(_WHOLE) - set(_BROKEN_UP)
    return {op: rule for op, rule in table.items() if getattr(op, "overloadpacket", op) not in whole}


class Unsupported(Exception):
    """What no plan can have; a sentence."""


def capture(module: GraphModule) -> tuple[Graph, list[Tensor]]:
    """The graph, and the tensors that are part of it: they follow the module's own inputs among the graph's.

    Raises:
        Unsupported: with a sentence.
    """
    return _Capture(module).run()


def _layout(tensor: Tensor, offset: int = 0) -> Layout:
    numbers = (*tensor.shape, *tensor.stride())
    if not all(isinstance(each, int) for each in numbers):
        raise Unsupported("a tensor's size depends on the values of another")
    return Layout(tuple(tensor.shape), tuple(tensor.stride()), offset)


def _typed(tensor: Tensor):
    return _layout(tensor), tensor.dtype, tensor.device


def _is_number(value) -> bool:
    return isinstance(value, (int, float, bool, complex))


def _tensor_of(number, args) -> Tensor:
    """The number as an operand of these arguments: in fp64 beside such a tensor, as PyTorch has it."""
    wide = isinstance(number, float) and any(each.value.dtype == torch.float64 for each in views_of(list(args)))
    with unset_fake_temporarily():
        return torch.tensor(number, dtype=torch.float64 if wide else None)


def _takes_tensor(argument) -> bool:
    type_ = argument.real_type
    return (type_.getElementType() if type_.kind() == "OptionalType" else type_).kind() == "TensorType"


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_conj() and not tensor.is_neg()


class _Capture:
    def __init__(self, module: GraphModule):
        self.module, self.graph = module, Graph()
        self.known: dict[Node, Any] = {}  # views, lists of these, or constants
        self.constants: list[Tensor] = []

    def run(self) -> tuple[Graph, list[Tensor]]:
        nodes = list(self.module.graph.nodes)
        for node in nodes:
            if node.op == "placeholder":
                self.known[node] = self._given(node.meta["val"])
        for node in nodes:
            if node.op == "get_attr":
                self.known[node] = self._constant(operator.attrgetter(node.target)(self.module))
        for node in nodes:
            if node.op == "call_function":
                self.known[node] = self._called(node)
            elif node.op == "output":
                self.graph.outputs = [self._value(each) for each in node.args[0]]
        return self.graph, self.constants

    def _given(self, value):
        if isinstance(value, Tensor):
            if not _is_plain(value):
                raise Unsupported("a tensor is sparse, quantised or a lazy conjugate")
            given = self.graph.give(*_typed(value))
            return View(given, given.layout)
        if isinstance(value, (int, float, bool)) or value is None:
            return value
        raise Unsupported(f"an input is of the type {type(value).__name__}")

    def _constant(self, value):
        if not isinstance(value, Tensor):
            raise Unsupported(f"the graph has a {type(value).__name__}")
        self.constants.append(value)
        return self._given(value)

    def _value(self, argument):
        """What an argument of a node is here."""
        if isinstance(argument, Node):
            return self.known[argument]
        if isinstance(argument, (list, tuple)):
            return [self._value(each) for each in argument]
        return argument

    def _called(self, node: Node):
        args, value, target = self._value(node.args), node.meta.get("val"), node.target
        if target is operator.getitem:
            return args[0][args[1]]
        if isinstance(value, (int, float, bool)):
            return value  # arithmetic of sizes
        if not isinstance(target, torch._ops.OpOverload):
            raise Unsupported(f"{target} is no operator")
        kwargs = {name: self._value(each) for name, each in node.kwargs.items()}
        if (found := self._view(node, args, value)) is not None:
            return found
        if target in _RULES and (found := _RULES[target](self, value, *args, **kwargs)) is not None:
            return found
        if target in CONSTANTS and isinstance(value, Tensor) and value.dtype in (*_FLOATS, torch.bool):
            if (number := CONSTANTS[target](*args)) is not None and _layout(value).is_dense and value.numel():
                number = float(bool(number) if value.dtype == torch.bool else number)
                return self._map(f"full[{number}]", lambda: Expression("constant", attribute=number), [], value)
        if (found := self._element_wise(target, args, kwargs, value)) is not None:
            return found
        return self._call(target, args, kwargs, value)

    def _view(self, node: Node, args, value):
        """For what only looks at memory in another way: the fake tensors know how."""
        infos = [each.alias_info for each in node.target._schema.returns]
        if node.target is not aten._unsafe_view.default:
            if not any(infos) or any(info is not None and info.is_write for info in infos):
                return None
        if not args or not isinstance(args[0], View):
            return None
        of, before = args[0], node.args[0].meta["val"].storage_offset()

        def view(tensor: Tensor) -> View:
            if not _is_plain(tensor):
                raise Unsupported(f"{node.target.name()} gives a lazy conjugate or the like")
            if tensor.dtype != of.value.dtype:
                raise Unsupported(f"{node.target.name()} looks at memory in another data type")
            return View(of.value, _layout(tensor, of.layout.offset + tensor.storage_offset() - before))

        return [view(each) for each in value] if isinstance(value, (list, tuple)) else view(value)

    def _map(self, name: str, expression, inputs: list[View | float], like: Tensor, dtype=None) -> View:
        """A new tensor with the sizes and strides of `like`; the inputs have its sizes, or are numbers."""
        layout = _layout(like)
        (result,) = self.graph.add(Map(inputs, name, expression), [(layout, dtype or like.dtype, like.device)])
        return View(result, layout)

    def _element_wise(self, target, args, kwargs, value):
        truths = isinstance(value, Tensor) and value.dtype == torch.bool
        rule = EXPRESSIONS.get(target) or (OF_TRUTHS.get(target) if truths else None)
        if rule is None or not isinstance(value, Tensor) or not _is_plain(value):
            return None
        layout = _layout(value)
        if not layout.is_dense or layout.numel == 0 or value.dtype not in (*_FLOATS, torch.bool):
            return None
        inputs, places = [], []
        for place, each in enumerate(args):
            if isinstance(each, View):
                each = _broadcast(each, layout.sizes)
                if each is None or each.value.device != value.device:
                    return None
                places.append(place)
                inputs.append(each)
            elif not (each is None or isinstance(each, (int, float, bool, str))):
                return None
        digits = {digits_of(layout, each.layout) for each in inputs}
        if None in digits or find_space(layout.numel, digits, set()) is None:
            return None
        types = {each.value.dtype for each in inputs}
        floats = types & set(_FLOATS)
        if not inputs or not types <= {*_FLOATS, torch.bool}:
            return None
        wide = torch.float64 in floats or value.dtype == torch.float64
        if wide and (value.device.type != "cpu" or {*floats, value.dtype} - {torch.float64, torch.bool}):
            return None
        if not floats and not truths:
            return None  # whole numbers' arithmetic of truth values
        if any(isinstance(each, View) for each in kwargs.values()):
            return None
        words, numbers = dict(kwargs), list(args)
        if target in COMPARISONS and floats and not isinstance(numbers[-1], View):
            with unset_fake_temporarily():  # rounded to the tensor's type
                numbers[-1] = torch.tensor(numbers[-1], dtype=inputs[0].value.dtype).item()

        def expression(*operands: Expression) -> Expression:
            given = list(numbers)
            for place, operand in zip(places, operands, strict=True):
                given[place] = operand
            found = rule(*given, **words)
            return Expression("ne", found, 0.0) if truths and target not in GIVE_TRUTHS else found

        try:
            expression(*(Expression("full", attribute=f"t{i}") for i in range(len(inputs))))
        except NotElementWise:
            return None
        told = [str(each) for i, each in enumerate(args) if i not in places and each is not None]
        name = target._schema.name.split("::")[1] + "".join(f"[{each}]" for each in told)
        return self._map(name, expression, inputs, value)

    def _reduce(self, kind: str, view: View, dims, like: Tensor) -> list[View] | None:
        """In fp32 or fp64, with the sizes of `like`: a sum or maximum, or mean and sum of squared differences."""
        dtype, layout = view.value.dtype, view.layout
        if dtype not in _FLOATS or layout.numel == 0 or (dtype == torch.float64 and view.value.device.type != "cpu"):
            return None
        over = tuple(d % len(layout.sizes) for d in (dims or range(len(layout.sizes)))) if layout.sizes else ()
        if not layout.is_dense or not view.is_whole or not over:
            return None
        digits = without(layout, over)
        if digits is None or len(digits) > 1:
            return None
        if find_space(layout.numel, {((1, layout.numel),)}, {digits}) is None:
            return None  # nothing is added up
        left = [d for d in range(len(layout.sizes)) if d not in over]
        strides, expected = dict.fromkeys(left, 0), 1
        for d in sorted(left, key=lambda d: (layout.strides[d], -d)):
            strides[d] = expected
            expected *= layout.sizes[d]
        result = Layout(tuple(layout.sizes[d] for d in left), tuple(strides.values()))
        wanted = _layout(like)
        if wanted.in_memory_order() != result.in_memory_order():
            return None  # PyTorch's lies in another order
        count = 2 if kind == "moments" else 1
        stacked = Layout((2, *result.sizes), (expected, *result.strides)) if count == 2 else result
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        (made,) = self.graph.add(Reduce(kind, view, over), [(stacked, wide, view.value.device)])
        return [View(made, _layout(like, i * expected)) for i in range(count)]

    def _sum(self, value, view, dims=None, keepdim=False, dtype=None, scale: float = 1.0):
        if dtype not in (None, value.dtype) or value.dtype not in _FLOATS:
            return None
        if torch.float64 in (view.value.dtype, value.dtype) and view.value.dtype != value.dtype:
            return None
        found = self._reduce("sum", view, dims, value)
        if found is None:
            return None
        if scale == 1 and found[0].value.dtype == value.dtype:
            return found[0]
        return self._map("scaled" if scale != 1 else "cast", lambda x: x * scale if scale != 1 else x, found, value)

    def _mean(self, value, view, dims=None, keepdim=False, dtype=None):
        count = view.layout.numel // max(value.numel(), 1)
        return self._sum(value, view, dims, keepdim, dtype, scale=1 / count) if count else None

    def _max(self, value, view, dims=(), keepdim=False):
        found = self._reduce("max", view, dims, value)
        if found is None:
            return None
        return found[0] if found[0].value.dtype == value.dtype else self._map("cast", lambda x: x, found, value)

    def _var_mean(self, value, view, dims=None, correction=None, keepdim=False):
        variance, mean = value
        count = view.layout.numel // max(mean.numel(), 1)
        divisor = count - (1 if correction is None else correction)
        if divisor <= 0 or mean.dtype != (torch.float64 if view.value.dtype == torch.float64 else torch.float32):
            return None
        found = self._reduce("moments", view, dims, mean)
        if found is None:
            return None
        return [self._map("scaled", lambda x: x * (1 / divisor), [found[1]], variance), found[0]]

    def _convolution(self, value, input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
        geometry = self._geometry(value, input, weight, (stride, padding, dilation, groups), transposed)
        if geometry is None:
            return None
        layout = _result_layout(input, weight, tuple(value.shape))
        if layout != _layout(value):
            return None
        spread = bias and View(bias.value, Layout(layout.sizes, (0, *bias.layout.strides, 0, 0), bias.layout.offset))
        if spread and digits_of(layout, spread.layout) is None:
            return None
        (made,) = self.graph.add(Conv(input, weight, geometry), [(layout, value.dtype, value.device)])
        if spread is None:
            return View(made, layout)
        return self._map("add", lambda x, y: x + y, [View(made, layout), spread], value)

    def _convolution_backward(
        self, value, grad, input, weight, bias_sizes, stride, padding, dilation, transposed, _, groups, mask
    ):
        geometry = self._geometry(grad, input, weight, (stride, padding, dilation, groups), transposed)
        if geometry is None or grad.layout.numel == 0:
            return None
        wanted, found = (mask[0], mask[1]), [None, None, None]
        results = [
            (_result_layout(*others, tuple(each.shape)), each.dtype, each.device)
            for each, want, others in zip(value[:2], wanted, ((grad, weight), (grad, input)), strict=True)
            if want
        ]
        if mask[2]:
            found[2] = self._sum(value[2], grad, [0, 2, 3])
            if found[2] is None:
                return None
        if results:
            made = iter(self.graph.add(ConvGrads(grad, input, weight, geometry, wanted), results))
            for i in range(2):
                if wanted[i]:
                    found[i] = self._strided(next(made), value[i])
        return found

    def _strided(self, made, like: Tensor) -> View:
        """The value with the strides that PyTorch's would have, copied if need be."""
        layout = _layout(like)
        if layout.in_memory_order() == made.layout.in_memory_order():
            return View(made, layout)
        return self._call(aten.alias.default, (View(made, made.layout),), {}, like)

    @staticmethod
    def _geometry(value, input: View, weight: View, numbers, transposed: bool) -> Geometry | None:
        types = {input.value.dtype, weight.value.dtype}
        if transposed or len(types) > 1 or not types <= set(_FLOATS) or input.value.device.type not in ("cpu", "cuda"):
            return None
        if len(input.layout.sizes) != 4 or len(weight.layout.sizes) != 4 or not input.layout.numel:
            return None
        if not weight.layout.numel or (isinstance(value, Tensor) and not value.numel()):
            return None
        stride, padding, dilation, groups = numbers
        pairs = [tuple(each) * 2 if len(each) == 1 else tuple(each) for each in (stride, padding, dilation)]
        if geometry_number(*pairs, groups) is None:
            return None
        return Geometry(*pairs, groups)

    def _call(self, target, args, kwargs, value):
        if len(args) == 2 and _is_number(args[1]) and target._schema.overload_name == "Tensor":
            target = getattr(target.overloadpacket, "Scalar", target)
        schema = target._schema
        several = len(schema.returns) != 1
        values = [] if not schema.returns else list(value) if several else [value]
        flat, lengths = [], []
        for each, returned in zip(values, schema.returns, strict=True):
            if str(returned.real_type) == "List[Tensor]":
                lengths.append(len(each))
                flat += each
            elif isinstance(each, Tensor) or each is None:
                flat.append(each)
            else:
                raise Unsupported(f"{target.name()} gives a result of the type {type(each).__name__}")
        if not all(each is None or _is_plain(each) for each in flat):
            raise Unsupported(f"{target.name()} gives a sparse or quantised tensor")
        args = [
            self._constant(_tensor_of(each, args)) if _is_number(each) and _takes_tensor(argument) else each
            for argument, each in zip(schema.arguments, args, strict=False)
        ]
        written = tuple(
            each
            for argument, each in zip(schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(each, View)
        )
        nothing = Layout((0,), (1,)), torch.float32, torch.device("cpu")
        call = Call(target, tuple(args), kwargs, tuple(lengths), written)
        made = self.graph.add(call, [nothing if each is None else _typed(each) for each in flat])
        if written:
            return written[0] if len(written) == 1 else list(written)
        views = iter(None if each is None else View(new, new.layout) for new, each in zip(made, flat, strict=True))
        found = [[next(views) for _ in each] if isinstance(each, (list, tuple)) else next(views) for each in values]
        return found if several else found[0]


_RULES = {
    aten.sum.default: _Capture._sum,
    aten.sum.dim_IntList: _Capture._sum,
    aten.mean.default: _Capture._mean,
    aten.mean.dim: _Capture._mean,
    aten.amax.default: _Capture._max,
    aten.var_mean.correction: _Capture._var_mean,
    aten.convolution.default: _Capture._convolution,
    aten.convolution_backward.default: _Capture._convolution_backward,
}


def _broadcast(view: View, sizes: tuple[int, ...]) -> View | None:
    """The view with these sizes: dimensions of one element, and those that it has not, repeat."""
    own, missing = view.layout, len(sizes) - len(view.layout.sizes)
    if missing < 0 or any(a != b and a != 1 for a, b in zip(own.sizes, sizes[missing:], strict=True)):
        return None
    strides = [0 if a == 1 else stride for a, stride in zip(own.sizes, own.strides, strict=True)]
    return View(view.value, Layout(sizes, (*[0] * missing, *strides), own.offset))


def _result_layout(first: View, second: View, sizes: tuple[int, ...]) -> Layout:
    """As csrc/operators/tensors.h has it, by the fake tensors' rule."""
    n, c, h, w = sizes
    if fake.result_is_channels_last(*(_like(each) for each in (first, second))):
        return Layout(sizes, (h * w * c, 1, w * c, c))
    return Layout(sizes, (c * h * w, h * w, w, 1))


def _like(view: View) -> Tensor:
    """A tensor without memory."""
    return torch.empty_strided(view.layout.sizes, view.layout.strides, dtype=view.value.dtype, device="meta")
