"""The C++ core's own tests, built without torch and run on every instruction set that this
processor has."""

import os
import re
import subprocess
from pathlib import Path

from tests.support.building import (
    ROOT,
    cmake_configure,
    needs_compiler,
    one_process_at_a_time,
    run_core_tests,
)
from tests.support.machine import ISAS
from tools.simd_tables import FORMATS, TABLES


@needs_compiler
def test_core(tmp_path: Path) -> None:
    build_folder = os.environ.get("NPU_KERNELS_BUILD")
    build = Path(build_folder) if build_folder else tmp_path
    with one_process_at_a_time(build):
        cmake_configure(build, "-DNPU_KERNELS_TESTS=ON")
        if build_folder:
            todo = subprocess.run(
                ["ninja", "-C", str(build), "-n"], capture_output=True, text=True, check=True
            )
            assert "csrc/core" not in todo.stdout  # `make install` compiled the same core there
        subprocess.run(["ninja", "-C", str(build)], check=True)
    report = run_core_tests(build)
    for isa in {"baseline", "avx2", "avx512"} & set(ISAS):
        assert report.count(f"\n{isa}: tested\n") == 3, isa
    assert re.search(r"openmp \.+ +Passed", report)
    assert re.search(r"example_npu \.+ +Passed", report)
    if "avx512_bf16" in ISAS:
        # The emulator needs no more than this to run AMX's kernels.
        assert re.search(r"kernels_tiles_avx512_bf16 \.+ +Passed", report)
        assert not re.search(r"kernels_tiles\w+ \.+\*+Skipped", report)


def test_tables() -> None:
    """csrc/core/simd/tables.h has the numbers that `python -m tools.simd_tables` computes."""
    code = (ROOT / "csrc/core/simd/tables.h").read_text(encoding="utf-8")
    for table, numbers in TABLES.items():
        for form in FORMATS:
            members = code.split(f"struct {table}<{form.name}> {{")[1].split("\n};")[0]
            tables = re.findall(r"static constexpr \w+ (k\w+)\[\] = \{([^}]*)\}", members)
            written = {
                name: [float.fromhex(number.strip().rstrip("f")) for number in text.split(",")]
                for name, text in tables
            }
            assert written == numbers(form)


@needs_compiler
def test_threads_do_not_race(tmp_path: Path) -> None:
    """Under the thread sanitizer, with one instruction set; `make tsan` has them all."""
    cmake_configure(
        tmp_path,
        "-DNPU_KERNELS_TESTS=ON",
        "-DNPU_KERNELS_SANITIZE=thread",
        "-DNPU_KERNELS_ISAS=baseline",
    )
    subprocess.run(["ninja", "-C", str(tmp_path)], check=True)
    report = run_core_tests(tmp_path)
    assert re.search(r"sees_thread \.+ +Passed", report)
