"""Each file of examples/ runs, its model learns, and its graphs are planned."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from marks import needs_aten, require

ROOT = Path(__file__).parent.parent
CLIENTS = {  # example -> the packages that it needs, and its number of plans
    "plain_loop": ("", 2),
    "training_step": ("", 1),
    "transformers_trainer": ("transformers accelerate", 2),
    "accelerate_loop": ("accelerate", 2),
    "lightning_module": ("lightning", 2),
    "timm_step": ("timm", 2),
    "torchvision_step": ("torchvision", 2),
    "diffusers_step": ("diffusers", 2),
    "peft_lora": ("peft transformers", 2),
    "fsdp2": ("", 4),  # two for each of the blocks
    "tensor_parallel": ("", 2),
    "regional_compilation": ("", 4),  # the first block's input needs no gradient
    "own_program": ("", 2),
}
PROCESSES = {"fsdp2": 2, "tensor_parallel": 2}
pytestmark = [needs_aten, pytest.mark.slow]


def run(name: str) -> subprocess.CompletedProcess:
    """Run an example, with PyTorch's cache of graphs off."""
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={PROCESSES[name]}"] if name in PROCESSES else []
    words = [*launcher, str(ROOT / "test/run_example.py"), str(ROOT / f"examples/{name}.py")]
    settings = {
        "PYTHONPATH": str(ROOT),
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCH_REFORMER_RAISE_ERRORS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, *words], env=os.environ | settings, capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize("name", CLIENTS)
def test_example(name):
    clients, plans = CLIENTS[name]
    for client in clients.split():
        require(client, "clients")
    done = run(name)
    assert done.returncode == 0, done.stderr
    assert "without a plan" not in done.stderr
    first, last, planned = re.search(r"^loss (\S+) -> (\S+); plans: (\d+)$", done.stdout, re.M).groups()
    assert float(last) < 0.95 * float(first) and int(planned) == plans


def test_own_weights():
    """The trained weights are those that a new process uses."""
    done = run("own_weights")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^weights +cpu: .*/mine\.pt$", done.stdout, re.M)


def test_all_examples_are_tested():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == CLIENTS.keys() | {"own_weights"}
