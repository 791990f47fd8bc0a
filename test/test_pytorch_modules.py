"""PyTorch's own samples of its modules (ModuleInfo) under the backend: alone, and between element-wise operations."""

from __future__ import annotations

import pytest
import torch
from against_eager import between, differences, with_dynamo
from pytorch_suites import DTYPES, assert_known, few, modules, of_known_version
from torch import nn

SAMPLES = 2  # per module, in training and in evaluation

pytestmark = [pytest.mark.slow, pytest.mark.nightly, of_known_version]


def pytest_generate_tests(metafunc):
    infos = modules(metafunc.config)
    cases = [(info, name) for info in infos for name in DTYPES]
    metafunc.parametrize("info, dtype", cases, ids=[f"{info.name}-{dtype}" for info, dtype in cases])


def test_module(info, dtype):
    assert_known(info.name, dtype, found_differences(info, DTYPES[dtype]))


def found_differences(info, dtype: torch.dtype) -> list[str]:
    found = []
    for training in (True, False) if info.train_and_eval_differ else (True,):
        inputs = info.module_inputs_func(info, "cpu", dtype, requires_grad=True, training=training)
        for number, each in enumerate(few(inputs, SAMPLES)):
            module = info.module_cls(*each.constructor_input.args, **each.constructor_input.kwargs).to(dtype)
            args = module.train(training), each.forward_input.args, each.forward_input.kwargs
            if info.is_lazy:
                call(*args)  # lazy parameters get their sizes
            for place, function in {"alone": call, "between": between(call)}.items():
                of = f"{place}, sample {number} in {'training' if training else 'evaluation'}"
                found += [f"{of}: {difference}" for difference in differences(function, args, with_dynamo)]
    return found


def call(module: nn.Module, args: tuple, kwargs: dict):
    return module(*args, **kwargs)
