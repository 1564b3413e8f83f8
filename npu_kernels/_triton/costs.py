"""Which kernels a large NPU layer takes: a model of their costs.

The fused kernels (`npu`) compute logarithms and splits in the loop of their products, so they
issue many instructions for a multiply-add. The large kernels (`npu_large`) make planes first: more
launches, more memory, fewer products, at the rate of the matrix units. For a forward and a backward
the model adds up:

- launches: a time for each on the device, and one for all of them
- bytes of the planes, written and read back, at the rate of the memory
- products: the multiply-adds, at a part of the rate of the matrix units; or the instructions that
  the fused kernels issue, if that takes longer

Outside of a CUDA graph the device begins after two launches, and the host prepares the others
meanwhile. The longer of the two times counts: all launches of the host, or its first two and the
device's work.

The model is for float32 at ``highest``; the other precisions follow it. It assumes
:data:`ASSUMED_ROWS` rows, so that a last batch with fewer rows launches the same kernels and is
rounded in the same way.

:data:`CHIPS` has the constants. An H200 stands for compute capability 9.0: the bandwidth, the
instructions a cycle, the efficiency, the overhead and the host's cost of a launch, with a slow
processor, are estimates from what was measured there (`benchmarks/NOTES.md`). The cost of a launch
in a graph is assumed, and the rest is of data sheets. The other chips have their own rates and
these estimates.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

__all__ = ["CHIPS", "Chip", "describe", "large_is_faster", "seconds"]

ASSUMED_ROWS = 4096
MIN_FEATURES = 64  # inputs and outputs
PADDED = 128  # the large kernels pad inputs, and twice the outputs, to a multiple
ISSUED = 1.05  # instructions of the fused kernels a cycle and multiprocessor
# Instructions for a multiply-add of the layer, in the fused loops for sm_90: instructions of a
# warp in a step, times warps, by the multiply-adds of the step.
FORWARD_INSTRUCTIONS = 889 * 8 / (128 * 64 * 16)
BACKWARD_INSTRUCTIONS = 715 * 8 / (128 * 32 * 64) + 639 * 8 / (16 * 128 * 32)


class Chip(NamedTuple):
    """The constants of an architecture's data-centre GPU."""

    multiprocessors: int
    clock: float  # Hz
    multiply_adds: int  # of float16 matrix units, a cycle and multiprocessor
    bandwidth: float  # bytes a second
    efficiency: float = 0.5  # part of the matrix units' rate that products reach
    launch: float = 20e-6  # seconds of the host
    overhead: float = 45e-6  # seconds of the device in a pass: kernels begin and end half empty
    captured: float = 1.5e-6  # seconds of a launch in a CUDA graph
    source: str = "data sheet"


CHIPS = {
    "sm_80": Chip(108, 1.41e9, 1024, 2.0e12),  # A100
    "sm_90": Chip(132, 1.755e9, 2048, 3.9e12, source="measured on an H200"),
    "sm_100": Chip(148, 1.85e9, 4096, 8.0e12),  # B200
}


def seconds(chip: Chip, i: int, o: int, k: int, captured: bool = False) -> tuple[float, float]:
    """The time of a forward and a backward: with the fused kernels, and with the large ones."""
    cycle = 1 / (chip.clock * chip.multiprocessors)
    terms = k * ASSUMED_ROWS * i * o
    product = cycle / (chip.multiply_adds * chip.efficiency)
    issued = terms * (FORWARD_INSTRUCTIONS + BACKWARD_INSTRUCTIONS) / ISSUED * cycle
    # P and Q take six products each with log r, three with the mask; backward_x 6, backward_w 9.
    one_pass = max(2 * (9 + 6 + 9) * terms * product, issued)
    i, o = -(-i // PADDED) * PADDED, -(-2 * o // PADDED) * PADDED // 2
    # The large kernels take three instead of six, and two instead of three.
    products = 2 * (5 + 3 + 5) * k * ASSUMED_ROWS * i * o * product
    # Bytes read, written for planes of x (4, 6) twice, of dP and dQ (12, 16), of weights (16, 24).
    moved = k * (ASSUMED_ROWS * (2 * 10 * i + 28 * o) + 56 * i * o)
    large = products + moved / chip.bandwidth

    def total(computing: float, launches: int) -> float:
        device = computing + launches * chip.captured + chip.overhead
        return device if captured else max(launches * chip.launch, device + 2 * chip.launch)

    return total(one_pass, 4), total(large, 10)


@functools.lru_cache(maxsize=4096)
def large_is_faster(architecture: str, i: int, o: int, k: int, captured: bool = False) -> bool:
    """Return whether K layers of I inputs and O outputs go to the large kernels."""
    chip = CHIPS.get(architecture)
    if chip is None or min(i, o) < MIN_FEATURES:
        return False
    one_pass, large = seconds(chip, i, o, k, captured)
    return large < one_pass


def describe(architecture: str) -> str:
    """Return from which size a square layer of one model uses the kernels of large layers."""
    chip = CHIPS.get(architecture)
    if chip is None:
        return f"fused kernels at every size on {architecture}"
    smallest = {
        captured: next(
            n
            for n in range(MIN_FEATURES, 1 << 16, 16)
            if large_is_faster(architecture, n, n, 1, captured)
        )
        for captured in (False, True)
    }
    plain, graph = (f"{smallest[captured]} x {smallest[captured]}" for captured in (False, True))
    sizes = f"at least {plain}, in the CUDA graphs of training.run for at least {graph}"
    return f"kernels of large layers for {sizes} on {architecture} ({chip.source})"
