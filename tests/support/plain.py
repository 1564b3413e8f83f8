"""Arguments that the fast path takes, and tensors that are not plain."""

from typing import Any

import torch
from torch import Tensor

from npu_kernels.ode import METHODS

K, B, I, O, D, H = 3, 5, 4, 2, 3, 4


class Wrapped(Tensor):
    pass


def negated(*shape: int) -> Tensor:
    """A tensor whose sign bit is turned when it is read."""
    tensor = torch.full(shape, 1j, dtype=torch.complex64).conj().imag
    assert tensor.is_neg()
    return tensor


def changed(arguments: list[Any], index: int, value: Any) -> list[Any]:
    return [*arguments[:index], value, *arguments[index + 1 :]]


def plain_layer(name: str, models: int | None = None) -> list[Any]:
    """Arguments that the fast path takes."""
    lead = () if models is None else (models,)
    x, matrix = torch.rand(*lead, B, I) + 0.5, (*lead, O, I)
    weights: dict[str, list[Any]] = {
        "npu": [torch.rand(matrix), torch.rand(matrix), torch.rand(*lead, I), None, "clip"],
        "nau": [torch.rand(matrix), True],
        "nac": [torch.rand(matrix), torch.rand(matrix)],
        "nmu": [torch.rand(matrix), True],
        "nalu": [*(torch.rand(matrix) for _ in range(3)), torch.rand(*lead, O), 1e-7],
        "inalu": [*(torch.rand(matrix) for _ in range(5)), 1e-7, 20.0],
        "nmru": [torch.rand(*lead, O, 2 * I), 1e-7, True, "product"],
    }
    return [x, *weights[name]]


def plain_ode(models: int | None = None) -> list[Any]:
    lead = () if models is None else (models,)
    weights = (
        torch.rand(*lead, H, D),
        torch.rand(*lead, H, D),
        torch.rand(*lead, D),
        torch.rand(*lead, D, H),
    )
    tableau = tuple(float(a) for a in METHODS["rk4"])
    return [torch.ones(*lead, B, D), *weights, tableau, 2, 0.1, None, "clip", True, "full", False]


def plain_adam(
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, dict[str, Any], dict[Tensor, Any]]:
    """A parameter with gradient, its group and its state, as torch's Adam leaves them."""
    parameter = torch.linspace(-1, 1, 6, dtype=dtype).reshape(2, 3).requires_grad_()
    optimizer = torch.optim.Adam([parameter], lr=1e-2)
    parameter.grad = torch.ones(2, 3, dtype=dtype)
    optimizer.step()
    return parameter, optimizer.param_groups[0], dict(optimizer.state)
