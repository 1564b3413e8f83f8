"""That a run of these tests with another Triton is one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")


def test_version() -> None:
    """The Triton that ``PYTHONPATH`` names, in this process and in those that compile."""
    folders = [
        Path(folder)
        for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if "triton-" in folder
    ]
    if not folders:
        pytest.skip(
            f"no other Triton in PYTHONPATH: these tests run with the installed one, {triton.__version__}"
        )
    expected = folders[0].name.removeprefix("triton-")
    code = "import triton; print(triton.__version__)"
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert (triton.__version__, child) == (expected, expected)
