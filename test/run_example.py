"""Runs an example as its command does, also beside a torchvision that lacks its library (zoo.py)."""

import importlib.util
import os
import runpy
import sys

import zoo

if __name__ == "__main__":
    if importlib.util.find_spec("torchvision"):
        zoo.package("torchvision")
    runpy.run_path(sys.argv[1], run_name="__main__")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # Gloo's threads outlive destroy_process_group while a mesh holds their group, and may still be releasing the
        # last collective's tensors. One that waits for Python's lock while the interpreter is taken down ends the
        # process by std::terminate (https://github.com/pytorch/pytorch/pull/179291), so the interpreter is left up.
        sys.stdout.flush()
        os._exit(0)
