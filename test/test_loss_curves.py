"""benchmarks/loss_curves.py: a few steps of a small model defined here."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "loss_curves.py"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_few_steps(tmp_path, dtype):
    out = tmp_path / "curves.csv"
    command = [sys.executable, str(SCRIPT), "--model", "small", "--batch", "4", "--size", "16", "--steps", "3"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # the package under test, wherever it is
    done = subprocess.run(
        [*command, "--dtype", dtype, "--out", str(out)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()[-3:]] == ["torch", "fused", "torch"]

    values = {}
    with out.open(newline="") as file:
        for row in csv.DictReader(file):
            values[row["provider"], row["case"].split(", ")[-1], row["metric"]] = float(row["p50"])
    assert len(values) == 3 * (3 + 2 + 2 * 2)
    rounding = 1e-5 if dtype == "fp32" else 2**-9
    for side in ("fused", "torch NCHW"):
        for metric in ("loss_difference", "running_mean_difference", "running_var_difference"):
            assert 0 <= values[side, "step 1", metric] < rounding, (side, metric)
        assert values[side, "step 1", "mean_loss_difference_20"] < rounding
        assert values[side, "step 3", "running_var_difference"] > 0  # they are two computations
    assert len({values["torch", f"step {step}", "loss"] for step in (1, 2, 3)}) == 3


def test_models_of_torchvision_without_it(tmp_path):
    """It prints an error message, not a traceback."""
    (tmp_path / "torchvision.py").write_text("raise ImportError('none')")
    code = f"import runpy, sys; sys.path[:0] = [{str(tmp_path)!r}, {str(SCRIPT.parent)!r}]; "
    code += f"sys.argv = ['x', '--steps', '1']; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "resnet18 is torchvision's, which is not installed: pip install torchvision\n"
