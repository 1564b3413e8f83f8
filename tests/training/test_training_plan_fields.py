"""The fields of a plan have the same names in Python and in C++, or the library does not load."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import needs_library
from tests.support.building import ROOT, run_forked

pytestmark = needs_library
NAME = "libnpu_kernels_cpu.so"


@pytest.mark.parametrize(("text", "other", "message"), [
    (b"steps before", b"before steps", "differ in call: rmsprop models before steps every"),
    (b"npu_kernels_plan_fields", b"npu_kernels_plan_titles", "differ in adam: "),  # an older one
])  # fmt: skip
def test_a_library_of_other_sources_is_an_error(
    text: bytes, other: bytes, message: str, bare_package: Path, tmp_path: Path
) -> None:
    shutil.copytree(bare_package / "npu_kernels", tmp_path / "npu_kernels")
    library = (ROOT / "npu_kernels" / "lib" / NAME).read_bytes()
    assert text in library
    (tmp_path / "npu_kernels" / "lib").mkdir()
    (tmp_path / "npu_kernels" / "lib" / NAME).write_bytes(library.replace(text, other))
    run = run_forked("import npu_kernels", cwd=tmp_path)
    assert "the C++ library was built from other sources" in run.stderr
    assert message in run.stderr
    assert "Build it with `pip install" in run.stderr
