"""The report of ``python -m npu_kernels.env``."""

import json
import subprocess
import sys

import pytest
import torch

from npu_kernels import __version__, env
from npu_kernels._operators import cpu


def test_environment() -> None:
    facts = env.environment()
    assert facts["npu_kernels"] == __version__
    assert facts["torch"] == torch.__version__
    assert facts["torch threads"] == str(torch.get_num_threads())
    runs, reason = cpu.available()
    assert facts["cpu on cpu"] == ("available" if runs else f"unavailable: {reason}")
    assert facts["cpu on cuda"] == "unavailable: runs on cpu tensors only"
    assert facts["reference on cpu"] == facts["reference on cuda"] == "available"
    assert facts["triton on cuda"]
    if runs:
        assert facts["cpu instruction set"].startswith(cpu.isa())


COMMAND = """
import runpy, sys
import npu_kernels
assert not {"triton", "torch._dynamo"} & sys.modules.keys()
runpy.run_module("npu_kernels.env", run_name="__main__")
"""


def test_command() -> None:
    """An import is quiet, and starts no compiler and no library of a GPU."""
    command = [sys.executable, "-W", "error", "-c", COMMAND]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    names = [line.partition("  ")[0] for line in child.stdout.splitlines()]
    assert names == list(env.environment())
    assert not child.stderr


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    env.main(["--json"])
    assert json.loads(capsys.readouterr().out) == env.environment()
