"""Paths of public modules that documents named once go on working."""

import subprocess
import sys

import pytest

CODE = """
import importlib
import {path}
from {path} import {name}
assert importlib.import_module({path!r}) is importlib.import_module({module!r})
print({name}.__module__)
"""


@pytest.mark.parametrize(
    ("path", "name", "module"),
    [
        ("npu_kernels.trace", "non_finite", "npu_kernels.training.trace"),
        ("npu_kernels.lbfgs", "lbfgs", "npu_kernels.optim.lbfgs"),
        ("npu_kernels.reference_layers", "NPU", "npu_kernels.interop.reference_layers"),
    ],
)
def test_an_old_path_is_the_module(path: str, name: str, module: str) -> None:
    code = CODE.format(path=path, name=name, module=module)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.strip()) == (0, module), ran.stderr
