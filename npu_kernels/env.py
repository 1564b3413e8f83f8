"""Versions, devices and backends of this installation: ``python -m npu_kernels.env``."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from npu_kernels import __version__
from npu_kernels._operators import cpu, dispatch, fast_path
from npu_kernels._operators.precision import float32_matmul_precision
from npu_kernels._triton import costs

__all__ = ["environment"]


def processor() -> str:
    """Return the processor's name from the operating system."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()


def version_of(package: str) -> str:
    """The installed version of a package, or that there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _origin() -> str:
    """Say whether the package came as a wheel or was built on this machine, and from what."""
    try:
        installed = importlib.metadata.distribution("npu_kernels")
    except importlib.metadata.PackageNotFoundError:
        return "a source tree that is not installed"
    lines = (installed.read_text("WHEEL") or "").splitlines()
    tags = [line.partition(":")[2].strip() for line in lines if "Tag" in line]
    direct_url = cpu.direct_url()
    source = f", from {direct_url['url']}" if "url" in direct_url else ""
    if direct_url.get("dir_info", {}).get("editable"):
        return f"built on this machine{source}, editable"
    # Only a release's wheel runs on other machines. Its tag says on which.
    released = any("manylinux" in tag or "macosx" in tag for tag in tags)
    origin = "a wheel" if released else "built on this machine"
    return f"{origin} ({', '.join(tags)}){source}"


def _matmul_precision() -> str:
    """Return the precision that both devices are allowed, or each of them where that differs."""
    precisions = {device: float32_matmul_precision(device) for device in ("cpu", "cuda")}
    if len(set(precisions.values())) == 1:
        return precisions["cpu"]
    return ", ".join(f"{device} {allowed}" for device, allowed in precisions.items())


def _large_layers() -> str:
    """Say which Triton kernels large layers take on the GPU; "-" without one."""
    if torch.cuda.is_available() and torch.version.hip is None:
        device = torch.device("cuda", torch.cuda.current_device())
        if dispatch.reasons(device)["triton"][0]:
            from npu_kernels._triton import tuning

            return costs.describe(tuning.architecture_of(device))
    return "-"


def environment() -> dict[str, str]:
    """Return versions, processor, instruction sets, and whether each backend runs, or why not."""
    runs, reason = cpu.available()
    sets = cpu.supported_isas() if runs else []
    isa = f"{cpu.isa()} (of {', '.join(sets)})" if runs else "-"
    origin = _origin()
    if runs and "baseline" not in sets:  # as `make install` builds
        command = f"NPU_KERNELS_ISAS=all {cpu.build_command()}"
        origin += f", for this processor alone (for all: {command})"
    facts = {
        "npu_kernels": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": version_of("triton"),
        "numpy": version_of("numpy"),
        "system": platform.platform(),
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "torch threads": str(torch.get_num_threads()),
        "float32 matmul precision": _matmul_precision(),
        "large NPU layers on cuda": _large_layers(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else "no device",
        "installed as": origin,
        "cpu library": str(cpu.LIBRARY) if runs else reason,
        "fast path": fast_path.LIBRARY.name if fast_path.npu else f"no: {fast_path.reason}",
        "cpu instruction set": isa,
        cpu.ISA_VARIABLE: os.environ.get(cpu.ISA_VARIABLE, "not set"),
    }
    for device_type in ("cpu", "cuda"):
        for backend, (runs, reason) in dispatch.reasons(device_type).items():
            state = "available" if runs else "unavailable"
            facts[f"{backend} on {device_type}"] = f"{state}: {reason}" if reason else state
    return facts


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the environment: one fact a line, or an object of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m npu_kernels.env", description="What npu_kernels runs on, for a bug report."
    )
    parser.add_argument("--json", action="store_true", help="print an object of JSON")
    facts = environment()
    if parser.parse_args(arguments).json:
        print(json.dumps(facts, indent=1))
        return
    width = max(map(len, facts))
    print("\n".join(f"{name:<{width}}  {fact}" for name, fact in facts.items()))


if __name__ == "__main__":
    main()
