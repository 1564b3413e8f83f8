"""The place of a measurement: versions, processor, commit; and the machine's limits."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import multiprocessing
import os
import platform
import signal
import subprocess
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import npu_kernels
from benchmarks.throughput.devices import DEVICES, Device
from npu_kernels._operators import cpu
from npu_kernels.env import processor

TRIALS = 5


def processor_model() -> str | None:
    """Family, model and stepping, which tell apart virtual machines of one name; or None."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    facts = {key.strip(): value.strip() for key, value in reversed(pairs)}
    numbers = [facts.get(key) for key in ("cpu family", "model", "stepping")]
    return "/".join(str(number) for number in numbers) if all(numbers) else None


def cores() -> int:
    """The cores that this process may run on: `taskset` leaves it some of the machine's."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent() -> None:
    """Let the system end this process with the thread that has started it; Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():  # it died before, while torch was imported
        os._exit(1)


def named_threads(count: int) -> str:
    """The number of threads in words."""
    return f"{count} thread{'s' if count > 1 else ''}"


def _git(*words: str) -> bytes | None:
    """The output of git in this repository; None without one."""
    try:
        return subprocess.run(
            ["git", *words], cwd=Path(__file__).resolve().parent, capture_output=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def commit() -> str:
    """The repository's commit, with "+" if tracked files are changed, or "unknown"."""
    head, status = _git("rev-parse", "--short=12", "HEAD"), _git("status", "--porcelain", "-uno")
    return "unknown" if head is None else head.decode().strip() + ("+" if status else "")


def changes() -> str | None:
    """A fingerprint of the changes to the commit's files; None without any."""
    text = _git("diff", "HEAD")
    return hashlib.blake2b(text, digest_size=6).hexdigest() if text else None


def sources() -> str:
    """A fingerprint of the code that results depend on, with and without a repository."""
    root, total = Path(__file__).resolve().parents[2], hashlib.blake2b(digest_size=8)
    folders = ("npu_kernels", "benchmarks", "tests/triton", "tests/support")
    paths = (path for folder in folders for path in (root / folder).rglob("*"))
    for path in sorted(path for path in paths if path.suffix in (".py", ".json")):
        content = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
        total.update(f"{path.relative_to(root).as_posix()} {content}\n".encode())
    return total.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def describe(device: Device = DEVICES["cpu"]) -> dict[str, Any]:
    """The facts that every row of a run carries; the load average tells of other work."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    runs, reason = cpu.available()
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "processor": processor(),
        "processor_model": processor_model(),
        "cores": cores(),
        "instruction_set": cpu.isa() if runs else f"none: {reason}",
        "torch_instruction_set": torch.backends.cpu.get_cpu_capability(),
        "load_average": None if load is None else round(load, 2),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "jax": _version("jax"),
        "npu_kernels": npu_kernels.__version__,
        "commit": commit(),
        "changes": changes(),
        **device.describe(),
    }


@dataclass(frozen=True)
class Limits:
    """The rates of the machine with the current threads, or of the device: the best of a few."""

    product_rate: float  # floating-point operations per second of a float32 a @ b
    copy_rate: float  # bytes per second of a copy, read and written ones counted

    def seconds(self, cost: tuple[float, float]) -> float:
        """The least time for (operations, bytes). Units faster than those of a @ b may beat it."""
        operations, moved = cost
        return max(operations / self.product_rate, moved / self.copy_rate)


def measure_limits(device: Device = DEVICES["cpu"]) -> Limits:
    """The limits at torch's present number of threads and float32 matmul precision."""
    size, floats = device.product_size, device.copy_floats
    a, b = torch.randn(2, size, size, device=device.name)
    c = torch.empty_like(a)
    source = torch.ones(floats, device=device.name)
    target = torch.empty_like(source)
    product = copy = float("inf")
    device.synchronize()
    for trial in range(TRIALS + 1):
        start = time.perf_counter()
        torch.mm(a, b, out=c)
        device.synchronize()
        middle = time.perf_counter()
        target.copy_(source)
        device.synchronize()
        if trial > 0:  # the first one warms up
            product = min(product, middle - start)
            copy = min(copy, time.perf_counter() - middle)
    return Limits(2.0 * size**3 / product, 2.0 * 4 * floats / copy)
