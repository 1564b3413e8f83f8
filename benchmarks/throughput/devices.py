"""Where the suite measures: the CPU, or a CUDA device with its own clock, memory and limits."""

from __future__ import annotations

import statistics
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from npu_kernels._operators import dispatch

PROFILED_CALLS = 5
EVENT_CALLS = 21
CALLS_BEFORE_CAPTURE = 3
CACHE_BYTES = 2**26  # of a second-level cache, where torch does not say


class Device:
    """The CPU: nothing to wait for, and no time but the wall's."""

    name = "cpu"
    product_size = 1536
    copy_floats = 32 * 2**20  # 128 MiB: more than any cache

    def problem(self) -> str:
        """The reason why nothing can be measured here; empty if something can."""
        return ""

    def synchronize(self) -> None:
        """Wait for what was started."""

    def describe(self) -> dict[str, Any]:
        """What a row says about the device, in addition to the machine."""
        return {}

    def profile(self, run: Callable[[], object]) -> dict[str, Any]:
        """Fields of a row that a second look at one call gives."""
        return {}


class Cuda(Device):
    """The current CUDA device. Wall time ends with its work; device time is that of its kernels."""

    name = "cuda"
    PEAK_METHOD = "most bytes of torch's allocator during one pass, less those before it"
    product_size = 8192
    copy_floats = 2**28  # 1 GiB

    def problem(self) -> str:
        runs, reason = dispatch.reasons("cuda")["triton"]
        return "" if runs else reason

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def describe(self) -> dict[str, Any]:
        import triton

        major, minor = torch.cuda.get_device_capability()
        return {
            "gpu": torch.cuda.get_device_name(),
            "compute_capability": f"{major}.{minor}",
            "instruction_set": f"compute capability {major}.{minor}",
            "cuda": torch.version.cuda or torch.version.hip,
            "triton": triton.__version__,
            "driver": driver_version(),
        }

    def capture(
        self, run: Callable[[], Any], calls_before: int = CALLS_BEFORE_CAPTURE
    ) -> tuple[Callable[[], object], Any]:
        """One call in a CUDA graph: what replays it, and its result, which each replay renews."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        # On the capture's stream: nothing of the passes before depends on another.
        with torch.cuda.stream(stream):
            for _ in range(calls_before):  # they compile, and allocate what is kept
                run()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, stream=stream):
            result = run()
        return graph.replay, result

    def profile(self, run: Callable[[], object]) -> dict[str, Any]:
        """Return the microseconds of one call between two events, and what the profiler counts.

        That is the device's time at work and the number of its kernels and copies.
        """
        microseconds = 1e6 * statistics.median(self.seconds(run) for _ in range(EVENT_CALLS))
        try:
            return {"event_us": microseconds, **self._counted(run)}
        except RuntimeError as error:  # without the driver's permission to count
            return {"event_us": microseconds, "profiler": str(error).splitlines()[0]}

    def seconds(
        self, run: Callable[[], object], before: Callable[[], object] = lambda: None
    ) -> float:
        """Seconds of one call between two events; `before` is started ahead of the first."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.synchronize()
        before()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return 1e-3 * float(begin.elapsed_time(end))

    def flush(self) -> Callable[[], object]:
        """A function that overwrites the second-level cache."""
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        size = getattr(properties, "L2_cache_size", CACHE_BYTES)
        return torch.empty(2 * size, dtype=torch.uint8, device="cuda").zero_

    def _counted(self, run: Callable[[], object]) -> dict[str, Any]:
        self.synchronize()
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities, acc_events=True) as profile:
            for _ in range(PROFILED_CALLS):
                run()
            self.synchronize()
        on_device = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        if not on_device:
            raise RuntimeError("the profiler counted no work of the device")
        kernels = Counter[str]()
        for event in on_device:
            kernels[event.name] += event.time_range.elapsed_us() / PROFILED_CALLS
        return {
            "device_us": kernels.total(), "launches": len(on_device) / PROFILED_CALLS,
            "kernels_us": {name: round(time, 2) for name, time in kernels.most_common()},
        }  # fmt: skip

    def peak(self, clear: Callable[[], object], run: Callable[[], object]) -> int:
        """The most bytes that torch's allocator held for one call beyond those before it."""
        clear()
        self.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        self.synchronize()
        return torch.cuda.max_memory_allocated() - before


def driver_version() -> str:
    """The NVIDIA driver's, or "unknown"."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


DEVICES: dict[str, Device] = {device.name: device for device in (Device(), Cuda())}
