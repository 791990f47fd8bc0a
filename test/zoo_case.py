"""A model of the zoo (zoo.py) with its inputs and its training step."""

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from training_models import WithLoss, step


@dataclasses.dataclass
class Case:
    """A test case.

    Args:
        models: models to compile, each by itself.
        train: train(calls, models, inputs) returns the tensors to compare; `calls` are the models, compiled or not.
    """

    models: Sequence[nn.Module]
    inputs: Sequence[Tensor]
    train: Callable = lambda calls, models, inputs: step(calls[0], models[0], inputs)


def of_images(model: nn.Module, *shape: int) -> Case:
    return Case([WithLoss(model)], [torch.randn(shape), torch.arange(10)])
