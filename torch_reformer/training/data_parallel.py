"""Gradients of a model in DistributedDataParallel, which plans reduce in buckets, as DDP's reducer does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class DataParallel:
    """Reductions of the gradients of a model in DDP, without DDP's reducer.

    All processes begin the same collectives in the same order in each step, whether a plan begins them or, where a step
    runs by autograd, PyTorch after the backward. So a process may run by autograd alone.

    Attributes:
        module: the module in DDP.
    """

    def __init__(self, model: DistributedDataParallel):
        self._model, self.module = model, model.module
        self._params, sparse = model._build_params_for_reducer()
        self._has_sparse = any(sparse)

    def why_by_ddp(self) -> str | None:
        """Why DDP has to reduce the gradients, as the end of a sentence; None if plans can."""
        model = self._model
        if model._comm_hooks or hasattr(model, "buffer_hook"):
            return "the model in DDP has communication hooks"
        if model._forward_hooks or model._forward_pre_hooks:
            return "the model in DDP has hooks of its forward"
        if model.find_unused_parameters:
            return "DDP looks for unused parameters: plans need find_unused_parameters=False"
        if model._join_config.enable:
            return "DDP's join() lets processes leave early"
        if model.mixed_precision is not None:
            return "the model in DDP has mixed_precision"
        if model._delay_all_reduce_params or model._use_python_reducer:
            return "DDP reduces gradients by hooks of parameters"
        return "a gradient is sparse" if self._has_sparse else None

    def begin(self) -> None:
        """Do what DDP's forward does before the module's: send buffers of the first process to the others.

        Raises:
            RuntimeError: in DDP's no_sync().
        """
        if not self._model.require_backward_grad_sync:
            raise RuntimeError("training_step reduces gradients in each step: take accumulate=n instead of no_sync()")
        if self._model.will_sync_module_buffers():
            self._model._sync_buffers()

    def reduced(
        self, trained: Collection[nn.Parameter], params: Sequence[nn.Parameter], grads: Sequence[Tensor]
    ) -> list[Tensor]:
        """Means of the gradients over all processes. Gradients of parameters outside of DDP stay as they are.

        Each is divided before the sum, as DDP does. All sums begin before one is waited for.

        Args:
            trained: parameters that need gradients.
            params: those that have one.

        Raises:
            RuntimeError: a parameter in DDP has no gradient.
        """
        means = dict(zip(params, grads, strict=True))
        expected = [param for param in reversed(self._params) if param in trained]
        self._check(expected, means)
        group = self._model.process_group
        share, name = 1 / dist.get_world_size(group), group.group_name
        collectives = torch.ops._c10d_functional
        buckets = self._buckets(expected)
        flat = [torch.cat([_flat(means[param], param) * share for param in bucket]) for bucket in buckets]
        sums = [collectives.all_reduce(each, "sum", name) for each in flat]
        for bucket, total in zip(buckets, sums, strict=True):
            parts = collectives.wait_tensor(total).split([param.numel() for param in bucket])
            means |= {param: _shaped(part, param) for param, part in zip(bucket, parts, strict=True)}
        return [means[param] for param in params]

    def reduce(self, trained: Collection[nn.Parameter]) -> None:
        """Reduce the gradients that parameters have."""
        params = [param for param in trained if param.grad is not None]
        grads = [param.grad for param in params if param.grad is not None]
        with torch.no_grad():
            for param, grad in zip(params, self.reduced(trained, params, grads), strict=True):
                param.grad = grad

    def _buckets(self, params: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
        """The parameters in order, in buckets of the sizes that DDP was given, each of one data type."""
        if not params:
            return []
        model = self._model
        first = dist._DEFAULT_FIRST_BUCKET_BYTES if model.bucket_bytes_cap_default else model.bucket_bytes_cap
        limits = getattr(model, "bucket_bytes_cap_list", None) or [first, model.bucket_bytes_cap]
        buckets, _ = dist._compute_bucket_assignment_by_size(list[Tensor](params), limits)
        return [[params[place] for place in bucket] for bucket in buckets]

    def _check(self, expected: list[nn.Parameter], means: dict[nn.Parameter, Tensor]) -> None:
        missing = {param for param in expected if param not in means}
        names = [name for name, param in self.module.named_parameters() if param in missing]
        if names:
            raise RuntimeError(
                f"the loss does not depend on parameters of a model in DDP ({', '.join(names[:5])}): give DDP "
                "find_unused_parameters=True, or leave them out"
            )


def without_sync(module: nn.Module, is_without: bool) -> AbstractContextManager:
    """Context in which DDP, if the module is in it, reduces no gradients if `is_without`."""
    return module.no_sync() if is_without and isinstance(module, DistributedDataParallel) else nullcontext()


def _order(param: nn.Parameter) -> list[int]:
    """Dimensions of a parameter, as they follow one another in its memory."""
    return sorted(range(param.dim()), key=lambda dim: -param.stride(dim))


def _flat(grad: Tensor, param: nn.Parameter) -> Tensor:
    """The gradient's elements in the order of the parameter's memory, so that the parts of a bucket need no copy."""
    return grad.permute(_order(param)).reshape(-1)


def _shaped(part: Tensor, param: nn.Parameter) -> Tensor:
    order = _order(param)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return part.view([param.shape[dim] for dim in order]).permute(inverse)
