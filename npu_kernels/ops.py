"""Neural Power Unit, a layer: the registered operators' schemas and what they return without computing it.

The C++ library adds the CPU kernels; `npu_kernels.dispatch` adds the kernel for every other case. The schemas have no
keyword-only arguments, so that calling an operator costs as little as possible.
"""

from __future__ import annotations

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
)
NAMES = tuple(schema.partition("(")[0] for schema in SCHEMAS)

for _schema in SCHEMAS:
    library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

# Looked up once: attribute access on torch.ops costs more than a small kernel's arithmetic.
npu_forward = torch.ops.npu_kernels.npu_forward.default
npu_backward = torch.ops.npu_kernels.npu_backward.default
nmu_forward = torch.ops.npu_kernels.nmu_forward.default
nmu_backward = torch.ops.npu_kernels.nmu_backward.default


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
