"""What a release's wheel needs of the system, and the table of what has been tried."""

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from release import pairs, support, try_install
from tests.support.building import ROOT, needs_compiler, one_process_at_a_time

# What the library takes from a newer glibc or libstdc++ where old_glibc.cpp does not replace it.
USES_NEW_SYMBOLS = """
#include <pthread.h>

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
extern "C" int pass_on(int length) {  // exceptions destroyed: one, if references are counted right
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
extern "C" void count_the_end_of_a_thread(int* ends) {
  pthread_key_t key;
  pthread_key_create(&key, [](void* count) { ++*static_cast<int*>(count); });
  pthread_setspecific(key, ends);
}
extern "C" long references(long number) {
  const auto made = std::make_shared<long>(number);
  const std::shared_ptr<long> copies[] = {made, made};
  return copies[1].use_count();
}
"""


def library(folder: Path) -> Path:
    source, built = folder / "use.cpp", folder / "use.so"
    source.write_text(USES_NEW_SYMBOLS)
    (wrapped,) = re.findall(r"-Wl,--wrap=[^)\s]+", (ROOT / "CMakeLists.txt").read_text())
    command = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", wrapped, "-o", built, source]
    subprocess.run(
        [str(word) for word in (*command, ROOT / "csrc" / "platform" / "old_glibc.cpp")], check=True
    )
    return built


LIMITS = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}  # manylinux_2_28's


def newer(library: Path) -> list[str]:
    """The symbols, with versions, from a newer glibc or libstdc++ than manylinux_2_28's."""
    command = ["readelf", "-W", "--dyn-syms", str(library)]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    versions = re.findall(r" UND ((\S+)@(GLIBC|GLIBCXX|CXXABI)_([\d.]+))", symbols)
    assert versions
    return [
        symbol
        for symbol, _, name, version in versions
        if tuple(map(int, version.split("."))) > LIMITS[name]
    ]


on_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
needs_readelf = pytest.mark.skipif(not shutil.which("readelf"), reason="needs readelf (binutils)")


@on_glibc
@needs_readelf
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_replaced_functions_do_what_those_of_glibc_and_libstdcxx_do(tmp_path: Path) -> None:
    built = library(tmp_path)
    assert newer(built) == []
    use = ctypes.CDLL(str(built))
    use.power.restype, use.power.argtypes = ctypes.c_double, [ctypes.c_double, ctypes.c_double]
    assert use.power(2.0, 0.5) == 2**0.5
    assert use.add(2, 3) == 5
    assert use.pass_on(1) == 1
    assert use.pass_on(-1) == 101
    assert use.references(1) == 3
    ended_threads = ctypes.c_int(0)
    thread = threading.Thread(
        target=use.count_the_end_of_a_thread, args=(ctypes.byref(ended_threads),)
    )
    thread.start()
    thread.join()
    deadline = time.monotonic() + 10
    # the thread ends after Python has left it
    while ended_threads.value == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended_threads.value == 1


@pytest.fixture(scope="module")
def build() -> Path:
    """The build of `make install`, with its objects linked once more as a wheel has them."""
    folder = os.environ.get("NPU_KERNELS_BUILD")
    if not folder:
        pytest.skip("needs NPU_KERNELS_BUILD, the build that `make` keeps")
    with one_process_at_a_time(Path(folder)):
        for old in Path(folder, "old_glibc").glob("*.so"):
            old.unlink()
        subprocess.run(["ninja", "-C", folder, "old_glibc_libraries"], check=True)
    return Path(folder)


@on_glibc
@needs_readelf
@needs_compiler
def test_libraries_of_a_wheel_need_no_newer_symbols(build: Path) -> None:
    libraries = sorted((build / "old_glibc").glob("*.so"))
    assert len(libraries) == 1 + len(list(build.glob("fast_path-*.so")))
    assert {library.name: newer(library) for library in libraries} == {
        library.name: [] for library in libraries
    }


@on_glibc
@needs_readelf
@needs_compiler
@pytest.mark.skipif(platform.libc_ver()[1] < "2.34", reason="glibc is older than the symbols")
def test_newer_symbols_are_noticed(build: Path) -> None:
    """The library for this machine, which is linked without our own versions of them."""
    assert {"pthread_key_create@GLIBC_2.34", "pow@GLIBC_2.29"} <= set(
        newer(build / "libnpu_kernels_cpu.so")
    )


def test_an_interrupted_matrix_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, rows = tmp_path / "npu_kernels-0-py3-none-any.whl", tmp_path / "rows.jsonl"
    wheel.write_bytes(b"a wheel")
    monkeypatch.setattr(
        try_install, "of_the_release", lambda: ["2.10.0:3.11", "2.13.0:3.11", "2.13.0:3.12"]
    )
    monkeypatch.setattr(
        try_install, "interpreter", lambda python: None if python == "3.12" else ("tag", tmp_path)
    )
    seen: list[tuple[str, list[str]]] = []

    def fails_once(file: Path, torch: str, python: str, arguments: list[str]) -> None:
        seen.append((torch, arguments))
        if torch == "2.13.0" and len(seen) == 2:
            raise subprocess.CalledProcessError(1, "pip")
        sha256 = arguments[arguments.index("--sha256") + 1]
        with rows.open("a") as out:
            out.write(
                json.dumps({"torch": f"{torch}+cpu", "python": "3.11", "sha256": sha256}) + "\n"
            )

    monkeypatch.setattr(try_install, "try_install", fails_once)
    monkeypatch.setattr(sys, "argv", ["try_install", str(wheel), "--row", str(rows), "--fast-path"])
    with pytest.raises(SystemExit, match=r"failed with 2\.13\.0:python3\.11"):
        try_install.main()
    try_install.main()
    assert [torch for torch, _ in seen] == ["2.10.0", "2.13.0", "2.13.0"]
    assert seen[0][1][0] == "--fast-path"
    wheel.write_bytes(b"another wheel")
    try_install.main()
    assert [torch for torch, _ in seen[3:]] == ["2.10.0", "2.13.0"]


def test_a_python_that_cannot_be_run_is_not_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "python3.99"  # as pyenv's for a version that is installed and not chosen
    command.write_text("#!/bin/sh\nexit 127\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert pairs.interpreter("3.99") is None
    command.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python = pairs.interpreter("3.99")
    assert python is not None
    assert (python[1] / "Python.h").exists()


def test_the_table_of_the_page_is_made_from_the_runs() -> None:
    assert support.BEGIN + support.current() + support.END in support.PAGE.read_text()


def test_actions_are_pinned_and_a_release_waits_for_the_tests() -> None:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    uses = re.findall(r"uses: (\S+)(.*)", "".join(path.read_text() for path in workflows))
    others = [(action, comment) for action, comment in uses if not action.startswith("./")]
    assert others
    for action, comment in others:
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r"  # v[\d.]+", comment), action
    for path in workflows:
        assert "\npermissions:\n  contents: read\n" in path.read_text(), path
    release = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert "needs: [test, wheel, oldest-glibc, extras, sdist]" in release


def test_the_citation_has_the_version() -> None:
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M)
    assert version is not None
    assert f"\nversion: {version[1]}\n" in (ROOT / "CITATION.cff").read_text()
