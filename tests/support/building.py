"""What the tests that build something share."""

import atexit
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

needs_compiler = pytest.mark.skipif(
    not (
        shutil.which("cmake")
        and shutil.which("ninja")
        and (shutil.which("c++") or shutil.which("g++"))
    ),
    reason="needs cmake, ninja and a C++ compiler on the PATH",
)


@contextlib.contextmanager
def one_process_at_a_time(folder: Path) -> Iterator[None]:
    """Lock what processes of tests share: pytest 9.2 ignores the groups of `xdist_group`."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cmake_configure(build: Path, *options: str) -> None:
    subprocess.run(
        ["cmake", "-S", str(ROOT), "-B", str(build), "-G", "Ninja", *options], check=True
    )


def run_core_tests(build: Path) -> str:
    """The C++ core's tests of that build have to pass; what ctest and they say."""
    command = ["ctest", "--test-dir", str(build), "-j2", "--output-on-failure"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    said = run.stdout + (build / "Testing" / "Temporary" / "LastTest.log").read_text()
    assert said.count("\nbaseline: tested\n") == 3  # layers, and loops of fixed and adaptive steps
    return said


def run_python(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with the warnings that a user would see."""
    # No build of another tree in the one that `make` keeps.
    environment = {
        **os.environ,
        "PYTHONWARNINGS": "default",
        "NPU_KERNELS_BUILD": "",
        **(env or {}),
    }
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, cwd=cwd
    )


# A process with torch alone, which forks for every line that it gets.
SERVER = """
import json, os, sys, traceback
import torch
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child:
        _, status, used = os.wait4(child, 0)
        print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, flush=True)
        continue
    status = 1
    try:
        for number, path in enumerate((os.devnull, *request["output"])):
            os.dup2(os.open(path, os.O_RDWR), number)
        os.chdir(request["cwd"])
        os.environ.update(request["env"])
        sys.argv = ["-c", *request["arguments"]]
        sys.path[1:1] = filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))
        exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(status)
"""


seconds_of_forks: list[float] = []  # of a processor, which are not among this process's own


@functools.cache
def _server() -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONWARNINGS": "default", "NPU_KERNELS_BUILD": ""}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment, cwd=ROOT,
    )  # fmt: skip
    atexit.register(server.communicate)  # which ends it
    return server


def run_forked(
    code: str, *arguments: str, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """As ``run_python("-c", code)``, but torch is imported already: this saves a second or two.

    So it is for code that imports torch first, and cares about nothing that happens before.
    """
    if not hasattr(os, "fork"):
        return run_python("-c", code, *arguments, env=env, cwd=cwd)
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        output = [Path(folder, name) for name in ("stdout", "stderr")]
        for path in output:
            path.touch()
        request = {
            "code": code, "arguments": arguments, "env": env or {}, "cwd": str(cwd),
            "output": list(map(str, output)),
        }  # fmt: skip
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status, seconds = server.stdout.readline().split()
        said = [path.read_text() for path in output]
    seconds_of_forks.append(float(seconds))
    return subprocess.CompletedProcess(["python", "-c", code, *arguments], int(status), *said)
