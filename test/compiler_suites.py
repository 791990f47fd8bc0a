"""PyTorch's own tests of its compilers, by this package's backend and by AOTAutograd's operators run one by one: what
fails under the first only is a fault. PyTorch's wheels have no tests; they are in its source of the same version, which
Debian has, too (`apt-get source pytorch`). Tests that look at Inductor's code fail under both.

    python test/compiler_suites.py pytorch-v2.12.1/test
    python test/compiler_suites.py pytorch-v2.12.1/test --files dynamo/test_repros.py
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

# Files, and which of their tests.
FILES = {
    "inductor/test_torchinductor.py": "CpuTests",  # CommonTemplate
    "inductor/test_torchinductor_dynamic_shapes.py": "Cpu",
    "dynamo/test_repros.py": "",
    "functorch/test_aotdispatch.py": "not OpInfo and not ModuleInfo",  # which test_pytorch_operators.py is for
}
BACKENDS = "aot_eager_decomp_partition", "reformer"
_SWAPPED = "REFORMER_TEST_BACKEND"


def pytest_configure() -> None:
    """As a plugin of pytest: put the backend in the place of those that tests name, and in that of Inductor's and
    functorch's compilers."""
    import functorch.compile
    import torch._inductor.compile_fx
    from torch._dynamo import eval_frame
    from torch._dynamo.backends import registry
    from torch._functorch import compilers
    from torch._functorch.aot_autograd import make_boxed_func

    from torch_reformer.compiler.backend import reformer

    lookup = registry.lookup_backend
    swapped = {"eager", "aot_eager", "aot_eager_decomp_partition", "inductor"}
    is_ours = os.environ[_SWAPPED] == "reformer"
    backend = reformer if is_ours else lookup(os.environ[_SWAPPED])

    def looked_up(name):
        return backend if isinstance(name, str) and name in swapped else lookup(name)

    for module in (registry, eval_frame, torch._dynamo, *sys.modules.values()):
        if getattr(module, "lookup_backend", None) is lookup:
            module.lookup_backend = looked_up
    torch._inductor.compile_fx.compile_fx = lambda module, inputs, *args, **kwargs: backend(module, inputs)
    if is_ours:
        from torch_reformer.compiler.pipeline import compile_graph

        def compiler(module, inputs):
            run = compile_graph(module, None)
            return make_boxed_func(lambda *args: run([*args]))

        functorch.compile.nop = compilers.nop = compiler


def failed(tests: Path, file: str, kind: str, backend: str) -> tuple[set[str], str]:
    """Names of the tests that fail, and pytest's last line."""
    options = ["--noconftest", "-p", "no:cacheprovider", "--show-capture=no", "--tb=no", "-q", "-rfE", "-k", kind]
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(tests), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {_SWAPPED: backend, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "compiler_suites", *options, file],
        cwd=tests,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode > 1:  # pytest's own errors
        raise RuntimeError(done.stdout)
    return set(re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)), done.stdout.splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", type=Path, help="the folder test of PyTorch's source")
    parser.add_argument("--files", nargs="+", default=[*FILES], choices=FILES)
    options = parser.parse_args()
    faults: set[str] = set()
    for file in options.files:
        failures = {}
        for backend in BACKENDS:
            failures[backend], last = failed(options.tests.resolve(), file, FILES[file], backend)
            print(f"{file}, {backend}: {last}", flush=True)
        faults |= failures["reformer"] - failures[BACKENDS[0]]
    print(*(f"only under reformer: {name}" for name in sorted(faults)), f"{len(faults)} faults", sep="\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
