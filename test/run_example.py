"""Runs an example as its command does, also beside a torchvision that lacks its library (zoo.py)."""

import importlib.util
import runpy
import sys

import zoo

if __name__ == "__main__":
    if importlib.util.find_spec("torchvision"):
        zoo.package("torchvision")
    runpy.run_path(sys.argv[1], run_name="__main__")
