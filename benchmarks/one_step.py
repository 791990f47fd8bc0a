"""Compares one training step of many models by PyTorch and by torch.compile with this backend, on a GPU under bf16
autocast, with images in contiguous and in channels_last order: losses and gradients relative to those of fp32. Dropout
is disabled. A model fails if it raises an error, or if its loss or gradients differ from those of fp32 by more than
twice PyTorch's difference plus the rounding of bf16.

    python benchmarks/one_step.py
    python benchmarks/one_step.py --models timm/levit_256:16,bert_base:8x128 --csv one_step.csv
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from models import Task, task
from results import Row, write_csv
from torch import Tensor, nn

from torch_reformer.tuning.workload import device_name, usable_device

MODELS = "timm/cspdarknet53:16,timm/levit_256:16,timm/skresnet50:16,timm/resnest50d:16,timm/mixer_b16_224:16"
MODELS += (
    ",timm/swin_tiny_patch4_window7_224:16,timm/convnext_atto_rms:16,timm/regnetx_002:16,timm/xcit_nano_12_p16_224:16"
)
MODELS += ",segmentation/lraspp_mobilenet_v3_large:8@256,bert_base:8x128,t5_small:8x128"
ORDERS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
ROUNDING = 2**-8  # of bf16
_PROBABILITIES = ("p", "drop_prob", "dropout", "dropout_p", "attention_dropout", "attn_dropout", "activation_dropout")


def keep_all(model: nn.Module) -> None:
    """Disable dropout in layers and in functional calls."""
    for module in model.modules():
        for name in _PROBABILITIES:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def step(what: Task, batch: tuple[Tensor, ...], autocast: bool, compiled: Callable) -> tuple[Tensor, Tensor]:
    """The loss, and all gradients concatenated, in fp64."""
    model = copy.deepcopy(what.model)
    model.zero_grad(set_to_none=True)

    def loss_of(*batch: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            return what.loss(model, *batch)

    loss = compiled(loss_of)(*batch)
    loss.backward()
    grads = [each.grad.double().flatten() for each in model.parameters() if each.grad is not None]
    return loss.detach().double(), torch.cat(grads)


def compare(name: str, order: str, device: torch.device) -> dict[str, float]:
    """Relative differences from fp32 of the losses and of the gradients, by PyTorch and by this backend."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    what = task(name, device)
    what.model.train()
    keep_all(what.model)
    what.model.to(memory_format=ORDERS[order])
    batch = tuple(
        each.contiguous(memory_format=ORDERS[order]) if each.dim() == 4 else each.contiguous() for each in what.batch()
    )
    exact, eager, reformer = (
        step(what, batch, *how)
        for how in (
            (False, lambda function: function),
            (True, lambda function: function),
            (True, lambda function: torch.compile(function, backend="reformer")),
        )
    )
    found = {"loss": eager[0].item(), "reformer_loss": reformer[0].item()}
    for number, quantity in enumerate(("loss", "gradients")):
        for side, values in (("torch", eager), ("reformer", reformer)):
            apart = (values[number] - exact[number]).norm() / exact[number].norm()
            found[f"{side}_{quantity}_error"] = apart.item()
    return found


def is_near(found: dict[str, float]) -> bool:
    return all(
        found[f"reformer_{each}_error"] <= 2 * found[f"torch_{each}_error"] + ROUNDING for each in ("loss", "gradients")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS, help="with their batches, as of models.py")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    device, rows, failed = usable_device("cuda"), [], []
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # the fp32 reference must not use TF32
    print(
        "| model, order | loss: torch | reformer | its error: torch | reformer | gradients' error: torch | reformer |"
    )
    print("|---|---|---|---|---|---|---|")
    for case in [(name, order) for name in options.models.split(",") for order in ORDERS]:
        try:
            found = compare(*case, device)
        except Exception as error:
            failed.append(case)
            print(f"| {', '.join(case)} | {type(error).__name__}: {' '.join(str(error).split())[:300]} |", flush=True)
            continue
        keys = ("loss", "reformer_loss", "torch_loss_error", "reformer_loss_error")
        keys += ("torch_gradients_error", "reformer_gradients_error")
        verdict = "" if is_near(found) else " further from fp32 than PyTorch"
        failed += [] if is_near(found) else [case]
        print(f"| {', '.join(case)} | {' | '.join(f'{found[key]:.4g}' for key in keys)} |{verdict}", flush=True)
        rows += [Row.of("one_step", " ".join(case), "both", each, [found[each]], device_name(device)) for each in keys]
        if options.csv:
            write_csv(options.csv, rows)
    print(f"{len(failed)} failures{': ' if failed else ''}{'; '.join(map(', '.join, failed))}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
