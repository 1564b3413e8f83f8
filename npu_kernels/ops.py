"""Neural Power Unit, a layer: the registered operators' schemas and what they return without computing it.

The C++ library adds the CPU kernels; `npu_kernels.dispatch` adds the kernel for every other case. The schemas have no
keyword-only arguments, so that calling an operator costs as little as possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

library = torch.library.Library("npu_kernels", "DEF")

SCHEMAS = (
    "npu_forward(Tensor x, Tensor weight_re, Tensor? weight_im, Tensor? gate, float eps, bool save_sin)"
    " -> (Tensor, Tensor)",
    "npu_backward(Tensor grad_y, Tensor x, Tensor weight_re, Tensor? weight_im, Tensor? gate, Tensor y, Tensor s,"
    " float eps, bool straight_through, int needs) -> (Tensor, Tensor, Tensor, Tensor)",
    "nmu_forward(Tensor x, Tensor weight) -> Tensor",
    "nmu_backward(Tensor grad_y, Tensor x, Tensor weight, int needs) -> (Tensor, Tensor)",
    "nalu_forward(Tensor x, Tensor weight, Tensor mask, Tensor gate_weight, Tensor? gate_bias, float eps, bool save)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    "nalu_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor mask, Tensor gate_weight, Tensor? gate_bias,"
    " Tensor h, Tensor a, Tensor t, float eps, int needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "inalu_forward(Tensor x, Tensor weight_add, Tensor mask_add, Tensor weight_mul, Tensor mask_mul,"
    " Tensor gate_weight, float eps, float omega, bool save) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "inalu_backward(Tensor grad_y, Tensor x, Tensor weight_add, Tensor mask_add, Tensor weight_mul, Tensor mask_mul,"
    " Tensor gate_weight, Tensor h, Tensor a, Tensor t, Tensor flags, float eps, float omega, int needs)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
TIME_LOOP_SCHEMAS = (
    "ode_forward(Tensor u0, Tensor weight_re, Tensor? weight_im, Tensor? gate, Tensor weight, float[] tableau,"
    " int steps, float dt, float eps, bool clip, bool derivatives, bool save) -> (Tensor, Tensor, Tensor)",
    "ode_backward(Tensor? grad_trajectory, Tensor? grad_derivatives, Tensor trajectory, Tensor weight_re,"
    " Tensor? weight_im, Tensor? gate, Tensor weight, Tensor stages, float[] tableau, float dt, float eps, bool clip,"
    " bool straight_through, int needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
NAMES = tuple(schema.partition("(")[0] for schema in SCHEMAS)  # of the layers
TIME_LOOPS = tuple(schema.partition("(")[0] for schema in TIME_LOOP_SCHEMAS)  # formulas in reference_ode

for _schema in SCHEMAS + TIME_LOOP_SCHEMAS:
    library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

# Looked up once: attribute access on torch.ops costs more than a small kernel's arithmetic.
npu_forward = torch.ops.npu_kernels.npu_forward.default
npu_backward = torch.ops.npu_kernels.npu_backward.default
nmu_forward = torch.ops.npu_kernels.nmu_forward.default
nmu_backward = torch.ops.npu_kernels.nmu_backward.default
nalu_forward = torch.ops.npu_kernels.nalu_forward.default
nalu_backward = torch.ops.npu_kernels.nalu_backward.default
inalu_forward = torch.ops.npu_kernels.inalu_forward.default
inalu_backward = torch.ops.npu_kernels.inalu_backward.default
ode_forward = torch.ops.npu_kernels.ode_forward.default
ode_backward = torch.ops.npu_kernels.ode_backward.default


def _output(x: Tensor, weight: Tensor) -> list[int]:
    return [*weight.shape[:-2], x.shape[-2], weight.shape[-2]]  # [K, B, O]


# new_empty and never empty_like, which would copy the strides of a transposed input.
def _like(tensor: Tensor | None, needed: int, source: Tensor) -> Tensor:
    return source.new_empty(tensor.shape if needed and tensor is not None else [0])


@torch.library.register_fake("npu_kernels::npu_forward", lib=library)
def _npu_forward(
    x: Tensor, weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None, eps: float, save_sin: bool
) -> tuple[Tensor, Tensor]:
    shape = _output(x, weight_re)
    return x.new_empty(shape), x.new_empty(shape if save_sin else [0])


@torch.library.register_fake("npu_kernels::npu_backward", lib=library)
def _npu_backward(
    grad_y: Tensor,
    x: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    y: Tensor,
    s: Tensor,
    eps: float,
    straight_through: bool,
    needs: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        _like(x, needs & 1, x),
        _like(weight_re, needs & 2, x),
        _like(weight_im, needs & 4, x),
        _like(gate, needs & 8, x),
    )


@torch.library.register_fake("npu_kernels::nmu_forward", lib=library)
def _nmu_forward(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(_output(x, weight))


@torch.library.register_fake("npu_kernels::nmu_backward", lib=library)
def _nmu_backward(grad_y: Tensor, x: Tensor, weight: Tensor, needs: int) -> tuple[Tensor, Tensor]:
    return _like(x, needs & 1, x), _like(weight, needs & 2, x)


@torch.library.register_fake("npu_kernels::nalu_forward", lib=library)
def _nalu_forward(
    x: Tensor, weight: Tensor, mask: Tensor, gate_weight: Tensor, gate_bias: Tensor | None, eps: float, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = _output(x, weight)
    saved = shape if save else [0]
    return x.new_empty(shape), x.new_empty(saved), x.new_empty(saved), x.new_empty(saved)


@torch.library.register_fake("npu_kernels::nalu_backward", lib=library)
def _nalu_backward(
    grad_y: Tensor,
    x: Tensor,
    weight: Tensor,
    mask: Tensor,
    gate_weight: Tensor,
    gate_bias: Tensor | None,
    h: Tensor,
    a: Tensor,
    t: Tensor,
    eps: float,
    needs: int,
) -> tuple[Tensor, ...]:
    return tuple(_like(t, needs >> bit & 1, x) for bit, t in enumerate((x, weight, mask, gate_weight, gate_bias)))


@torch.library.register_fake("npu_kernels::inalu_forward", lib=library)
def _inalu_forward(
    x: Tensor,
    weight_add: Tensor,
    mask_add: Tensor,
    weight_mul: Tensor,
    mask_mul: Tensor,
    gate_weight: Tensor,
    eps: float,
    omega: float,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    shape = _output(x, weight_add)
    saved = shape if save else [0]
    h, a, t = x.new_empty(saved), x.new_empty(saved), x.new_empty(saved)
    return x.new_empty(shape), h, a, t, x.new_empty(saved, dtype=torch.int32)


@torch.library.register_fake("npu_kernels::inalu_backward", lib=library)
def _inalu_backward(
    grad_y: Tensor,
    x: Tensor,
    weight_add: Tensor,
    mask_add: Tensor,
    weight_mul: Tensor,
    mask_mul: Tensor,
    gate_weight: Tensor,
    h: Tensor,
    a: Tensor,
    t: Tensor,
    flags: Tensor,
    eps: float,
    omega: float,
    needs: int,
) -> tuple[Tensor, ...]:
    tensors = (x, weight_add, mask_add, weight_mul, mask_mul, gate_weight)
    return tuple(_like(t, needs >> bit & 1, x) for bit, t in enumerate(tensors))


def ode_stages(
    u0: Tensor, weight_re: Tensor, tableau: Sequence[float], steps: int, derivatives: bool
) -> tuple[int, ...]:
    """The shape of what a time loop keeps; what lies where is the backend's own affair."""
    h, d = weight_re.shape[-2:]
    kept = steps * (math.isqrt(8 * len(tableau) + 1) // 2) + derivatives
    models, starts = (1, *u0.shape)[-3:-1]
    if models * starts == 1:  # OdeInputs::stages_shape
        return 1, kept, 2 * (-(-d // 16) + -(-h // 16)), 16
    blocks = models * -(-starts // 16) if starts >= 8 else -(-models * starts // 16)
    return blocks, kept, 2 * (d + h), 16


@torch.library.register_fake("npu_kernels::ode_forward", lib=library)
def _ode_forward(
    u0: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    tableau: list[float],
    steps: int,
    dt: float,
    eps: float,
    clip: bool,
    derivatives: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    trajectory = [*u0.shape[:-1], steps + 1, u0.shape[-1]]
    return (
        u0.new_empty(trajectory),
        u0.new_empty(trajectory if derivatives else [0]),
        u0.new_empty(ode_stages(u0, weight_re, tableau, steps, derivatives) if save else [0]),
    )


@torch.library.register_fake("npu_kernels::ode_backward", lib=library)
def _ode_backward(
    grad_trajectory: Tensor | None,
    grad_derivatives: Tensor | None,
    trajectory: Tensor,
    weight_re: Tensor,
    weight_im: Tensor | None,
    gate: Tensor | None,
    weight: Tensor,
    stages: Tensor,
    tableau: list[float],
    dt: float,
    eps: float,
    clip: bool,
    straight_through: bool,
    needs: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        _like(trajectory[..., 0, :], needs & 1, trajectory),
        _like(weight_re, needs & 2, trajectory),
        _like(weight_im, needs & 4, trajectory),
        _like(gate, needs & 8, trajectory),
        _like(weight, needs & 16, trajectory),
    )
