"""What a release's wheel needs of the system, and the table of what has been tried."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from release import support
from tests.building import ROOT

# What the library takes from a newer glibc or libstdc++ where old_glibc.cpp does not replace it.
USES_NEW_SYMBOLS = """
#include <cmath>
#include <exception>
#include <memory>
#include <sstream>
#include <stdexcept>
extern "C" double power(double base, double exponent) { return std::pow(base, exponent); }
extern "C" int add(int a, int b) {
  std::stringstream both;
  both << a << ' ' << b;
  both >> a >> b;
  std::ostringstream sum;
  sum << a + b;
  return std::stoi(sum.str());
}
int destroyed = 0;
struct Counted : std::runtime_error {
  using std::runtime_error::runtime_error;
  ~Counted() override { ++destroyed; }
};
extern "C" int pass_on(int length) {  // how many exceptions are destroyed: one, if its references are counted right
  destroyed = 0;
  {
    std::exception_ptr first, second;
    try {
      throw Counted("one");
    } catch (...) { first = std::current_exception(); }
    second = first;
    first = nullptr;
    if (destroyed != 0) return -1;
    try {
      std::rethrow_exception(second);
    } catch (const std::runtime_error& error) { if (std::string(error.what()) != "one") return -2; }
  }
  try {
    std::unique_ptr<int[]> many(new int[length]);
    return destroyed;
  } catch (const std::bad_array_new_length&) { return 100 + destroyed; }
}
extern "C" long references(long number) {
  const auto made = std::make_shared<long>(number);
  const std::shared_ptr<long> copies[] = {made, made};
  return copies[1].use_count();
}
"""


def library(folder: Path) -> Path:
    source, made = folder / "use.cpp", folder / "use.so"
    source.write_text(USES_NEW_SYMBOLS)
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-Wl,--wrap=pow", "-o", made, source]
    subprocess.run([str(word) for word in (*command, ROOT / "csrc" / "old_glibc.cpp")], check=True)
    return made


def newer(library: Path) -> set[str]:
    """The versions that it needs beyond manylinux_2_28's."""
    needed = subprocess.run(["readelf", "-V", str(library)], capture_output=True, text=True, check=True).stdout
    limits = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}
    found = re.findall(r"(GLIBC|GLIBCXX|CXXABI)_([\d.]+)", needed)
    return {f"{name}_{version}" for name, version in found if tuple(map(int, version.split("."))) > limits[name]}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
@pytest.mark.skipif(not (shutil.which("g++") and shutil.which("readelf")), reason="needs g++ and readelf")
def test_wheels_need_no_newer_symbols_than_their_tag_says(tmp_path: Path) -> None:
    made = library(tmp_path)
    assert newer(made) == set()
    use = ctypes.CDLL(str(made))
    use.power.restype, use.power.argtypes = ctypes.c_double, [ctypes.c_double, ctypes.c_double]
    assert use.power(2.0, 0.5) == 2**0.5
    assert use.add(2, 3) == 5
    assert use.pass_on(1) == 1
    assert use.pass_on(-1) == 101
    assert use.references(1) == 3


def test_table_says_what_was_run_and_what_was_only_built(tmp_path: Path) -> None:
    wheel = tmp_path / "npu_kernels-0-py3-none-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("npu_kernels/lib/direct-torch2.13.0-cpython-311.so", "")
        archive.writestr("npu_kernels/lib/direct-torch2.13.0-cpython-313.so", "")
    built = support.fast_paths(wheel)
    run = {"torch": "2.13.0+cpu", "python": "3.11", "fast path": True, "wheel": "py3-none-manylinux_2_28_x86_64"}
    source = run | {"python": "3.12", "wheel": "py3-none-linux_x86_64"}  # built where it ran: says nothing of the wheel
    slow = run | {"python": "3.14", "fast path": False}
    pairs = {"2.13.0": ["3.11", "3.12", "3.13", "3.14"]}
    *_, row = support.table("x86_64", [run, source, slow], pairs, built)
    assert row == "| 2.13.0 | - | **run** | listed | *built* | listed |"
    *_, row = support.table("aarch64", [run, run | {"wheel": "manylinux_2_28_aarch64", "emulated": True}], pairs, built)
    assert row == "| 2.13.0 | - | *emulated* | listed | listed | listed |"
