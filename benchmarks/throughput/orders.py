"""What is tuned: launches of one Triton kernel each, in the order in which they matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.throughput.cases import Size

EPS, OMEGA = 2.0**-23, 20.0
NPU = ("npu_forward", "npu_backward_x", "npu_backward_w")
NPU_SMALL = ("npu_small_forward", "npu_small_backward")
OTHERS = ("nmu_forward", "nmu_backward", "nalu_forward", "nalu_backward_x", "nalu_backward_w")


@dataclass(frozen=True)
class Task:
    """One entry to measure: a kernel, at the sizes of a call, at a float32 matmul precision."""

    kernel: str
    size: Size
    precision: str = "highest"

    def __str__(self) -> str:
        return f"{self.kernel} {self.size} {self.precision}"

    @property
    def key(self) -> str:
        """The key of the entry in the table, which holds for any number of rows."""
        from npu_kernels._triton import tuning

        sizes = (self.size.inputs, self.size.outputs, self.size.models)
        return tuning.exact_key(self.kernel, torch.float32, self.precision, sizes)

    def to_dict(self) -> dict[str, Any]:
        return {"kernel": self.kernel, **asdict(self.size), "precision": self.precision}

    @staticmethod
    def from_dict(row: dict[str, Any]) -> Task:
        return Task(row["kernel"], Size.from_dict(row), row["precision"])


@dataclass(frozen=True)
class Order:
    """A task with the call that launches its kernel and returns what it computes."""

    task: Task
    launch: Callable[[], Sequence[Tensor]]


def tasks(sizes: Sequence[Size], precision: str) -> list[Task]:
    """The NPU's kernels at all sizes, then the other layers'."""
    from npu_kernels._triton import tuning

    planned = []
    for kernels in (None, OTHERS):
        for size in sizes:
            npu = NPU_SMALL if tuning.is_small(size.inputs, size.outputs) else NPU
            planned += [Task(kernel, size, precision) for kernel in kernels or npu]
    return planned


def order(task: Task, device: str, values: bool = True) -> Order:
    """The call, float32, on that device. The iNALU calls the NALU's kernels, and has more to do.

    values: without them the operands are memory that nobody has written, for a compiler.
    """
    from npu_kernels._triton import nalu, nmu, npu

    size, kernel = task.size, task.kernel
    generator = torch.Generator().manual_seed(0)
    lead = () if size.models == 1 else (size.models,)

    def draw(*shape: int) -> Tensor:
        if not values:
            return torch.empty(*lead, *shape, device=device)
        bound = min(1.0, 3 / shape[-1] ** 0.5)
        return ((2 * torch.rand(*lead, *shape, generator=generator) - 1) * bound).to(device)

    def saved(forward: Callable[..., Any], *arguments: Any, integers: int = 0) -> Sequence[Tensor]:
        """The tensors that a forward saves for its backward; the last `integers` are of int32."""
        if values:
            outputs: Sequence[Tensor] = forward(*arguments)
            return outputs
        floats = [draw(size.rows, size.outputs) for _ in range(4 if integers else 2)]
        return *floats, *(torch.empty_like(floats[0], dtype=torch.int32) for _ in range(integers))

    x, grad_y = draw(size.rows, size.inputs), draw(size.rows, size.outputs)
    weights = [draw(size.outputs, size.inputs) for _ in range(5)]
    if kernel.startswith("npu"):
        gate = draw(size.inputs)
        gate = gate.abs() if values else gate
        operands = (x, weights[0], weights[1], gate)
        if kernel.endswith("forward"):
            return Order(task, lambda: npu.npu_forward(*operands, EPS, True))
        y, s = saved(npu.npu_forward, *operands, EPS, True)
        needs = {"npu_backward_x": 1, "npu_backward_w": 6}.get(kernel, 15)
        return Order(task, lambda: npu.npu_backward(grad_y, *operands, y, s, EPS, False, needs))
    if kernel.startswith("nmu"):
        if kernel == "nmu_forward":
            return Order(task, lambda: [nmu.nmu_forward(x, weights[0])])
        return Order(task, lambda: nmu.nmu_backward(grad_y, x, weights[0], 3))
    arguments: tuple[Any, ...] = (x, *weights, EPS, OMEGA)
    saving: tuple[Any, ...] = (*arguments, True)
    if kernel == "nalu_forward":
        return Order(task, lambda: nalu.inalu_forward(*saving))
    tensors = saved(nalu.inalu_forward, *saving, integers=1)[1:]
    needs = 1 if kernel == "nalu_backward_x" else 62
    reverse: tuple[Any, ...] = (grad_y, x, *weights, *tensors, EPS, OMEGA, needs)
    return Order(task, lambda: nalu.inalu_backward(*reverse))
