"""The library of the fast path: which file serves a torch and a Python, and why none is loaded."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from npu_kernels import env
from tests.conftest import needs_fast_path, needs_library
from tests.support.building import run_forked

pytestmark = needs_library
TAG = sys.implementation.cache_tag


def as_torch(version: str, code: str) -> str:
    """The output, with warnings, of code in a process whose torch says that it is that version."""
    run = run_forked(f"import torch; torch.__version__ = {version!r}; {code}")
    assert run.returncode == 0, run.stderr
    return run.stdout + run.stderr


def test_another_torch_gets_one_notice_that_says_what_to_do() -> None:
    layers = (
        "import npu_kernels; x = torch.ones(2, 3); "
        "npu_kernels.NPU(3, 2)(x); npu_kernels.NMU(3, 2)(x)"
    )
    said = as_torch("2.10.0", layers)
    assert said.count("the fast path from Python to the kernels is missing") == 1
    assert re.search(r"build it for this torch: `.*pip install .*--no-deps", said)
    assert as_torch(torch.__version__, layers) == ""


@needs_fast_path
def test_a_library_of_another_build_does_not_load(tmp_path: Path) -> None:
    """Kernels and fast path of different sources would take each other's arguments wrongly."""
    facts, stamp = env.environment(), b"npu_kernels_interface_"
    library = Path(facts["cpu library"])
    kernels = library.read_bytes()
    assert stamp in kernels
    (tmp_path / library.name).write_bytes(kernels.replace(stamp, stamp[::-1]))
    shutil.copy(library.with_name(facts["fast path"]), tmp_path)
    code = f"import torch, ctypes; ctypes.CDLL({str(tmp_path / facts['fast path'])!r})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.search(r"OSError: .*undefined symbol: npu_kernels_interface_\w+", run.stderr), (
        run.stderr
    )


# What torch and Python say, the libraries that there are, and the one that is tried, or none.
CASES: list[tuple[str, str | None, list[str], str | None]] = [
    ("2.13.0", "", [f"2.13.0-{TAG}"], f"2.13.0-{TAG}"),
    ("2.13.0+cpu", "", [f"2.13.0-{TAG}"], f"2.13.0-{TAG}"),
    ("2.13.0+cu130", "", [f"2.13.0-{TAG}", f"2.13.0+cu130-{TAG}"], f"2.13.0+cu130-{TAG}"),
    ("2.13.0", "", [f"2.13.0+cpu-{TAG}"], None),
    ("2.13.0a0+git1234567", "", [f"2.13.0a0-{TAG}"], None),
    ("2.14.0.dev20260901+cpu", "", [f"2.14.0.dev20260901-{TAG}"], None),
    ("2.13.0", "t", [f"2.13.0-{TAG}"], None),
    ("2.13.0", "t", [f"2.13.0-{TAG}", f"2.13.0-{TAG}t"], f"2.13.0-{TAG}t"),
    ("2.13.0", None, [f"2.13.0-{TAG}"], f"2.13.0-{TAG}"),  # Windows has no flags
    ("2.13.0", "", [], None),
]
ASK = """
import json, os, sys
from pathlib import Path
import torch
for version, flags, names, _ in json.loads(sys.argv[1]):
    if os.fork():
        os.wait()
        continue
    for path in Path("npu_kernels/lib").glob("fast_path-*"):
        path.unlink()
    for name in names:
        Path(f"npu_kernels/lib/fast_path-torch{name}.so").write_text("no library")
    torch.__version__ = version
    del sys.abiflags
    if flags is not None:
        sys.abiflags = flags
    from npu_kernels import env
    print(env.environment()["fast path"], flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="it has no fork")
def test_the_best_library_that_exists(bare_package: Path, tmp_path: Path) -> None:
    """That of exactly this torch, of its release, and of this Python; none is a reason."""
    shutil.copytree(bare_package, tmp_path, dirs_exist_ok=True)
    (tmp_path / "npu_kernels" / "lib").mkdir()
    shutil.copy(env.environment()["cpu library"], tmp_path / "npu_kernels" / "lib")
    run = run_forked(ASK, json.dumps(CASES), cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    said = run.stdout.splitlines()
    for (version, flags, names, best), line in zip(CASES, said, strict=True):
        served = {name.partition("-")[0] for name in names}
        builds = f"some for torch{', torch'.join(served)}" if served else "none"
        why = (
            f"there is no fast_path-torch{version}-{TAG}{flags or ''}.so (there is {builds})"
            if best is None
            else f"fast_path-torch{best}.so does not load with torch {version}: "
        )
        assert line.replace("there are", "there is").startswith(f"no: {why}"), line
