"""A training step that runs as one plan: forward, backward, clipping and the optimizer's update."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel
from torch.utils._pytree import tree_map_only

from .data_parallel import DataParallel, without_sync
from .fused import Fused, is_fused
from .micro_batches import joined, parts
from .scaling import Scaling
from .two_plans import TwoPlans, with_own_code
from .update import MissingState, Untraceable, Update, settings, trained, why_apart

if TYPE_CHECKING:
    from ..compiler.analysis.report import Report
    from .averaging import Average

MOST_PLANS = 4  # made anew because settings of the optimizer changed


class TrainingStep:
    """A training step, as :func:`training_step` makes it. Call it with a batch.

    Attributes:
        reports: of planned graphs, which are added as the step runs.
        reason: why steps run by two plans and the optimizer's step(); None if they run by one.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        optimizer: Optimizer,
        clip_grad_norm: float | None,
        accumulate: int,
        mode: str | None,
        memory_budget: float,
        keep_grads: bool,
        grad_scaler: GradScaler | None,
        ema: AveragedModel | None,
    ):
        self.model, self.optimizer, self.ema, self.reason = model, optimizer, ema, None
        self.reports: list[Report] = []
        self._replicas = DataParallel(model) if isinstance(model, DistributedDataParallel) else None
        self._module = self._replicas.module if self._replicas else model  # what the loss gets
        self._loss, self._clip, self._accumulate, self._mode = loss, clip_grad_norm, accumulate, mode
        self._budget, self._keeps = memory_budget, keep_grads
        self.grad_scaler = grad_scaler
        self._scaling = Scaling(grad_scaler) if grad_scaler is not None and grad_scaler.is_enabled() else None
        self._two_plans = TwoPlans(loss, mode, memory_budget, self.reports)
        self._plans, self._settings = 0, None
        self._has_begun = False
        self._earlier: Any = None  # of micro-batches before the last
        self._why_update: str | None = None
        self._untraceable: str | None = None
        self._compile: Callable | None = None  # None: the compiler's own
        self._average: Average | None = None  # that the plan updates
        if ema is not None:
            from .averaging import Average  # imports Dynamo, which takes seconds

            self._average = Average(ema, model)

    def __call__(self, *batch):
        with torch.enable_grad():
            hooked = self.reason is None and any(map(_has_hooks, self._trained()))
            why = "a parameter has hooks of its gradient" if hooked else None
            if self._replicas and (why := why or self._replicas.why_by_ddp()):
                self._replicas, self._module = None, self.model
            if why:
                self._go_apart(why)
            if self._replicas:
                self._replicas.begin()
            if self.reason is not None:
                return self._apart(self._two_plans.for_all(), batch)
            self._prepare()
            if self._scaling and not self._update:
                self._go_apart(f"the plan has no update that a scaler could leave out: {self._why_update}")
                return self._apart(self._two_plans.for_all(), batch)
            if self._update and self._is_first():
                return self._first(batch)
            self._has_begun = True
            return self._whole(batch)

    def __str__(self) -> str:
        how = "one plan" if self.reason is None else f"two plans and the optimizer's step(): {self.reason}"
        names = type(self.model).__name__, type(self.optimizer).__name__
        return "\n\n".join(["a training step of {} and {} by {}".format(*names, how), *map(str, self.reports)])

    def _is_first(self) -> bool:
        """True if the plan lacks state that the optimizer's step() makes, or the average has nothing to start from."""
        if not self._has_begun and (self._average or not self._update.has_state()):
            return True
        return self._average is not None and self._average.is_empty()

    def _first(self, batch: tuple):
        """Run such a step by two plans, which need less memory than the eager loss."""
        scaler = self._scaling.scaler if self._scaling else None
        scale = scaler.get_scale() if scaler else 0
        weights = self._average.weights() if self._average else None
        result = self._apart(self._two_plans.at_first(), batch)
        self._has_begun = not scaler or scaler.get_scale() >= scale  # else there was no update
        if weights and weights.have_changed():
            self._average_apart("a step puts other tensors in the place of the model's")
        return result

    def _prepare(self) -> None:
        """Make functions to compile, anew if settings of the optimizer have changed."""
        if self._average and (why := self._average.why_apart()):
            self._average_apart(why)
        scaling = self._scaling.settings() if self._scaling else None
        current = [trained(self.optimizer), scaling, self._average is not None]
        if self._why_update is None:  # else the optimizer's step() reads its settings
            current.append(settings(self.optimizer))
        if current == self._settings:
            return
        why = self._why_update or why_apart(self.optimizer) or self._untraceable
        self._plans += 1
        if self._plans > MOST_PLANS and why is None:
            why = "settings of the optimizer other than the learning rate change again and again"
        if why is not None and self._why_update is None and not self._scaling:
            warnings.warn(f"the optimizer's step() runs after the plan: {why}", stacklevel=4)
        self._why_update = why
        self._settings, self._sums = current[: 4 if why is None else 3], {}
        self._update = self._new_update() if why is None else None
        self._has_begun = False
        self._last = self._compiled(is_last=True)
        self._earlier = self._compiled(is_last=False) if self._accumulate > 1 else None

    def _new_update(self) -> Update:
        if is_fused(self.optimizer):
            return Fused(self.optimizer)
        from .traced import Traced  # imports Dynamo, which takes seconds

        return Traced(self.optimizer)

    def _compiled(self, is_last: bool) -> Callable:
        from ..compiler import backend as compiler  # imports Dynamo, which takes seconds
        from .capture import StepBackend
        from .logged import without_loggers

        needs_grads = self._keeps or self._update is None
        backend = StepBackend(
            self._trainable(),
            self._update,
            clip=self._clip,
            share=1 / self._accumulate,
            sums=self._sums if self._accumulate > 1 else None,
            is_last=is_last,
            keep=_set_grads if needs_grads else None,
            scaling=self._scaling,
            average=self._average,
            replicas=self._replicas,
            mode=self._mode,
            budget=self._budget,
            compile=self._compile or (lambda module: compiler.compile_graph(module, self.reports.append)),
        )
        model, loss = self._module, self._loss

        def run(*batch):
            result = loss(model, *batch)
            return (result[0] if isinstance(result, (tuple, list)) else result), result

        return without_loggers(torch.compile(with_own_code(run), backend=backend, fullgraph=True))

    def _whole(self, batch: tuple):
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        from .capture import ChangedParameters

        *earlier, last = parts(batch, self._accumulate)
        results = []
        for param in self._trained() if self._update is None or self._keeps else ():
            param.grad = None
        try:
            for part in earlier:
                results.append(self._own(self._earlier(*part)[1]))
            results.append(self._own(self._last(*last)[1]))
        except (MissingState, ChangedParameters, TorchDynamoException, FailOnRecompileLimitHit) as error:
            if self.reason_to_begin_anew(error):
                return self._apart(self._two_plans.at_first(), batch, results)
            try:
                result = self._apart(self._two_plans.for_all(), batch, results)  # raises what the loss raises
            finally:
                self._drop_sums()
            self._go_apart(_sentence(error))
            return result
        except BaseException:
            self._drop_sums()
            raise
        self._two_plans.drop_first()
        if self._update is None:
            self.optimizer.step()
        else:
            setattr(self.optimizer, "_opt_called", True)  # noqa: B010, schedulers look at it
        if not (self._update and self._average):
            self._update_average()
        if not self._keeps:
            self._drop_grads()
        return joined(results)

    def reason_to_begin_anew(self, error: BaseException) -> Exception | None:
        """The error, or its cause, if another plan may do. The next step then makes its functions, and sums, anew."""
        from .capture import ChangedParameters

        for reason in (error, error.__cause__, getattr(error, "inner_exception", None)):
            if isinstance(reason, (MissingState, ChangedParameters, Untraceable)):
                self._settings = None
                if isinstance(reason, Untraceable) and reason.of_average:
                    self._average_apart(str(reason))
                elif isinstance(reason, Untraceable):
                    self._untraceable = str(reason)
                return reason
        return None

    def record(self, batch: tuple, compiled: Callable, replace: Callable[[Tensor], Tensor]) -> list:
        """Plan a step for other tensors, for ``python -m torch_reformer plan`` (training/recording.py)."""
        from .recording import record

        return record(self, batch, compiled, replace)

    def _own(self, result: Any) -> Any:
        """A copy, if the next replay of a CUDA graph would write over the result."""
        return tree_map_only(Tensor, Tensor.clone, result) if self._mode == "reduce-overhead" else result

    def _apart(self, loss: Callable, batch: tuple, done: Sequence = ()):
        """Run the step by autograd and the optimizer's own step().

        Args:
            done: results of the first micro-batches, whose gradients are summed up. They do not run again, as they
                have updated buffers and drawn random numbers.
        """
        scaler = self._scaling.scaler if self._scaling else None
        self._drop_grads()
        for param, total in self._sums.items() if done else ():
            param.grad = total.clone()
        results = [*done]
        for number, part in enumerate(parts(batch, self._accumulate)):
            if number < len(done):
                continue
            with without_sync(self._module, number + 1 < self._accumulate):
                result = loss(self._module, *part)
                first = result[0] if isinstance(result, (tuple, list)) else result
                first = first / self._accumulate if self._accumulate > 1 else first
                (scaler.scale(first) if scaler else first).backward()
            results.append(_detached(result))
        if self._replicas:
            self._replicas.reduce(self._trainable())
        if self._clip is not None:
            if scaler:
                scaler.unscale_(self.optimizer)
            trained = [param for param in self._trained() if param.grad is not None]
            torch.nn.utils.clip_grad_norm_(trained, self._clip)
        if scaler:
            scaler.step(self.optimizer)
            scaler.update()
        else:
            self.optimizer.step()
        self._update_average()
        if not self._keeps:
            self._drop_grads()
        return joined(results)

    def _update_average(self) -> None:
        if self.ema is not None:
            self.ema.update_parameters(self.model)

    def _average_apart(self, reason: str) -> None:
        self._average = None
        warnings.warn(f"averaged weights are updated after the plan: {reason}", stacklevel=5)

    def _go_apart(self, reason: str) -> None:
        self.reason = reason
        warnings.warn(f"the training step runs by two plans and the optimizer's step(): {reason}", stacklevel=4)

    def _trained(self) -> Iterator[nn.Parameter]:
        return (param for group in self.optimizer.param_groups for param in group["params"])

    def _trainable(self) -> set[nn.Parameter]:
        return {param for param in self._trained() if param.requires_grad}

    def _drop_grads(self) -> None:
        for param in self._trained():
            param.grad = None

    def _drop_sums(self) -> None:
        for tensor in self._sums.values():
            tensor.zero_()


def _has_hooks(param: nn.Parameter) -> bool:
    return bool(param._backward_hooks or param._post_accumulate_grad_hooks)


def _set_grads(params: list[nn.Parameter], grads: list[Tensor]) -> None:
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad


def _detached(result: Any) -> Any:
    return tree_map_only(Tensor, Tensor.detach, result)


def _sentence(error: Exception) -> str:
    """Why a loss was not planned, and what the user can do, in one sentence."""
    inner = getattr(error, "inner_exception", None)
    if inner is not None:
        return f"the step could not be planned as one graph ({type(inner).__name__}: {_first_line(inner)})"
    return (
        f"the loss is not one graph ({_first_line(error)}): write branches on values of tensors by torch.where, and "
        "leave .item(), print() and the like out of it"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def training_step(
    model: nn.Module,
    loss: Callable[..., Any],
    optimizer: Optimizer,
    *,
    clip_grad_norm: float | None = None,
    accumulate: int = 1,
    mode: str | None = None,
    memory_budget: float = 1.0,
    keep_grads: bool = False,
    grad_scaler: GradScaler | None = None,
    ema: AveragedModel | None = None,
) -> TrainingStep:
    """A function that runs a whole training step as one plan: forward, backward, clipping and the optimizer's update.

    ``step = training_step(model, loss, optimizer); step(*batch)`` does what ``optimizer.zero_grad();
    loss(model, *batch).backward(); optimizer.step()`` does, and returns the loss, without a gradient. Parameters,
    buffers and ``optimizer.state_dict()`` stay where they are. Learning rates may change at any time. The first step
    runs by two plans and the optimizer's step() if only that can make its state.

    Args:
        model: any module, also in DistributedDataParallel (``docs/training_step.md``).
        loss: called as ``loss(model, *batch)``. It gives the loss, one number, or a tuple that begins with it; the
            step returns the same.
        optimizer: any whose step() can be traced, as element-wise ones can. The step() of others runs after the plan,
            with a warning.
        clip_grad_norm: the largest norm of the gradients of all that the optimizer has, as of
            torch.nn.utils.clip_grad_norm_.
        accumulate: the number of micro-batches into which a batch is split along the first dimension of its tensors.
            The loss is the mean of theirs; what the loss gives besides comes in lists.
        mode: None, "default", or "reduce-overhead", which records the step as a CUDA graph.
        memory_budget: as the backend's option: the share of activations that the step may keep. It computes the others
            again.
        keep_grads: whether parameters have their gradients after a step; otherwise ``grad`` is None.
        grad_scaler: scales the loss of a step in fp16. The step does what ``scaler.step(optimizer); scaler.update()``
            do: if a gradient is not finite, there is no update, and the scale falls.
        ema: averaged weights. The step does what ``ema.update_parameters(model)`` does after the optimizer's update.
            Its first step runs by two plans.

    Raises:
        TypeError: `model` is no module, `optimizer` no optimizer of PyTorch's, or `ema` no AveragedModel; or the model
            is in FSDP.
        ValueError: an unknown mode, a number that is out of range, or a scaler for parameters in fp16.
    """
    if not isinstance(model, nn.Module) or not isinstance(optimizer, Optimizer):
        raise TypeError("training_step takes a torch.nn.Module, a loss, and a torch.optim.Optimizer")
    if any(hasattr(param, "device_mesh") for group in optimizer.param_groups for param in group["params"]):
        raise TypeError(
            "training_step takes no model in FSDP, whose collectives it does not plan: compile such a model by "
            "torch.compile(model, backend='reformer') and call the optimizer's step()"
        )
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(f"training_step: accumulate must be a whole number from 1 on, got {accumulate!r}")
    if clip_grad_norm is not None and not clip_grad_norm > 0:
        raise ValueError(f"training_step: clip_grad_norm must be positive, got {clip_grad_norm!r}")
    if grad_scaler is not None and not isinstance(grad_scaler, GradScaler):
        raise TypeError(f"training_step: grad_scaler must be a torch.amp.GradScaler, got {type(grad_scaler).__name__}")
    if ema is not None and not isinstance(ema, AveragedModel):
        raise TypeError(
            f"training_step: ema must be a torch.optim.swa_utils.AveragedModel, got {type(ema).__name__}, whose update "
            "you can call after the step"
        )
    params = (param for group in optimizer.param_groups for param in group["params"])
    if grad_scaler is not None and any(param.dtype == torch.float16 for param in params):
        raise ValueError(
            "training_step: a GradScaler unscales no gradients of parameters in fp16: keep parameters in fp32, and use "
            "torch.autocast inside of the loss"
        )
    from ..compiler.backend import check_memory_budget, known_mode  # imports Dynamo, which takes seconds

    mode, memory_budget = known_mode(mode), check_memory_budget(memory_budget)
    return TrainingStep(
        model, loss, optimizer, clip_grad_norm, accumulate, mode, memory_budget, keep_grads, grad_scaler, ema
    )
