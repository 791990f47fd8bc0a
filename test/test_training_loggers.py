"""Losses that log are planned as one graph, without their messages."""

import functools
import logging
import warnings

import pytest
import torch
from marks import needs_aten
from test_training_step import batches, eager, loss_of, net, quiet, same  # noqa: F401

import torch_reformer

pytestmark = needs_aten
LOGGER = logging.getLogger(__name__)


@functools.cache
def once(self, message):
    self.warning(message)


def logged(model, x, y):
    LOGGER.warning("a loss of %d images", len(x))
    return loss_of(model, x, y)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_that_log(accumulate, caplog):
    one, other, data = net(), net(), batches(4)
    expected = eager(one, torch.optim.AdamW(one.parameters()), loss_of, data, accumulate=accumulate)
    step = torch_reformer.training_step(other, logged, torch.optim.AdamW(other.parameters()), accumulate=accumulate)
    with pytest.warns(UserWarning, match="messages of loggers are left out"):
        results = [step(*batch) for batch in data]
    assert step.reason is None and LOGGER.name not in {record.name for record in caplog.records}
    same([result.mean() for result in results], expected)
    same([*other.parameters()], [*one.parameters()])


def test_methods_that_others_add(monkeypatch):
    """transformers adds a method that logs once, whose function is no plain one."""
    monkeypatch.setattr(logging.Logger, "warning_once", once, raising=False)

    def loss(model, x, y):
        LOGGER.warning_once("once")
        return loss_of(model, x, y)

    model, data = net(), batches(2)
    step = torch_reformer.training_step(model, loss, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.warns(UserWarning, match="messages of loggers are left out"):
        step(*data[0])
    step(*data[1])
    assert step.reason is None


def test_other_sizes():
    """Each is planned without messages."""
    model, ((x, y),) = net(), batches(1)
    step = torch_reformer.training_step(model, logged, torch.optim.SGD(model.parameters(), 0.1))
    for count in (len(x), len(x) - 1, len(x) - 2):
        with torch.no_grad():
            expected = loss_of(model, x[:count], y[:count])
        assert torch.allclose(step(x[:count], y[:count]), expected, atol=1e-5)
    assert step.reason is None


def is_enabled(x):
    return 100.0 if LOGGER.isEnabledFor(logging.ERROR) else 1.0


def level_set(x):
    LOGGER.setLevel(logging.DEBUG)
    return float(LOGGER.level)


def printed(x):
    print("a loss")
    return 1.0


@pytest.mark.parametrize("factor", [is_enabled, level_set, printed])
def test_calls_that_do_more_than_log(factor, monkeypatch):
    """They run, by two plans, and so do the messages."""
    monkeypatch.setattr(LOGGER, "level", logging.INFO)

    def loss(model, x, y):
        LOGGER.warning("a loss")
        return loss_of(model, x, y) * factor(x)

    model, ((x, y),) = net(), batches(1)
    expected = loss(model, x, y)
    LOGGER.setLevel(logging.INFO)
    step = torch_reformer.training_step(model, loss, torch.optim.SGD(model.parameters(), 0.1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same(step(x, y), expected)
    assert step.reason and not any("left out" in str(each.message) for each in caught)
    if factor is level_set:
        assert LOGGER.level == logging.DEBUG
