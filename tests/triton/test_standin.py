"""Triton's launch path to the driver without a GPU: parameters, tensor maps, what is compiled,
widths of stores, processor time.

The checks are in `standin`, whose process has `standin.c` in place of libcuda and no interpreter.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

CHECKS = (
    "check_parameters_of_replays", "check_no_kernel_is_compiled_for_another_batch",
    "check_widths_of_stores", "check_sizes_are_not_shifted_in_32_bits",
    "check_sizes_of_2_31_elements", "check_which_waves_are_full",
)  # fmt: skip


def test_checks(tmp_path: Path) -> None:
    """Every check finds nothing. Times are ratios, which a busy machine changes little."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    spec = importlib.util.find_spec("triton.backends.nvidia")
    if compiler is None or spec is None or spec.origin is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, and a Triton for NVIDIA GPUs on Linux")
    folder, here = tmp_path, Path(__file__).resolve().parent
    headers, library = Path(spec.origin).parent / "include", str(folder / "libcuda.so.1")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-I", str(headers), "-o", library, str(here / "standin.c"),
         "-Wl,-soname,libcuda.so.1"], check=True,
    )  # fmt: skip
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_LIBCUDA_PATH": str(folder), "TRITON_CACHE_DIR": str(folder / "cache")}
    before = [path for path in (os.environ.get("LD_LIBRARY_PATH"),) if path]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join([str(folder), *before])
    command = [sys.executable, "-m", "tests.triton.standin"]
    run = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=here.parents[1]
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = (json.loads(line) for line in run.stdout.splitlines() if line.startswith("["))
    results = {name: result for name, result, _ in lines}
    times = results.pop("times")
    assert results == dict.fromkeys(CHECKS, "")
    # launches of a large layer repeat, descriptors too
    assert times["large"] < 0.5 * times["large ordinary"], times
    assert times["large"] < 5 * times["small"], times
