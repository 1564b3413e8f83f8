"""Paths of public modules that documents named once go on working."""

from tests.support.building import run_forked

MOVED = (
    ("npu_kernels.trace", "non_finite", "npu_kernels.training.trace"),
    ("npu_kernels.lbfgs", "lbfgs", "npu_kernels.optim.lbfgs"),
    ("npu_kernels.reference_layers", "NPU", "npu_kernels.interop.reference_layers"),
)
CODE = """
import importlib
import {path}
from {path} import {name}
assert importlib.import_module({path!r}) is importlib.import_module({module!r})
assert {name}.__module__ == {module!r}, {name}.__module__
"""


def test_an_old_path_is_the_module() -> None:
    code = "".join(CODE.format(path=path, name=name, module=module) for path, name, module in MOVED)
    ran = run_forked(code)
    assert ran.returncode == 0, ran.stderr
