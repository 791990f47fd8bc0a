"""Runs an example as its command does, also beside a torchvision that lacks its library (zoo.py)."""

import contextlib
import runpy
import sys

import pytest
import zoo

if __name__ == "__main__":
    with contextlib.suppress(pytest.skip.Exception, ImportError):
        zoo.package("torchvision")
    runpy.run_path(sys.argv[1], run_name="__main__")
