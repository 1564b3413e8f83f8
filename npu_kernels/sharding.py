"""Neural Power Unit, a layer: how DTensor may shard the fused operators, and models sharded over ranks.

Importing this module registers the rules; `npu_kernels` alone does not, because DTensor is slow to import. Without them
DTensor raises that the operator has no sharding strategy. Data parallelism (DistributedDataParallel, FSDP2) needs none.

What may be sharded, on each dimension of a mesh by itself:

rows B       x, y          weights and gate replicated; their gradients are partial sums
outputs O    weights, y    x and gate replicated; their gradients are partial sums
models K     everything that has K; a shared x is replicated, its gradient a partial sum
nothing      all replicated

Never inputs I: the exponential comes after the sum over them. A tensor that comes sharded over I is gathered.

torch calls its registration interface experimental.
"""

from __future__ import annotations

from typing import Any

import torch.distributed.tensor as dt
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental import register_sharding

from npu_kernels import ops
from npu_kernels.layers import Unit

_Rule = tuple[list[Any], list[Any]]


def _placements(x: Any, weight: Any) -> list[dict[str, Any]]:
    """One dictionary per legal sharding: of rows (y), x, weight, gate, and of the gradients of the last three."""
    models = len(weight.shape) - 2
    shared = models and len(x.shape) == 2
    keep, add = dt.Replicate(), dt.Partial()
    rows = dt.Shard(models)
    rows_of_x = dt.Shard(0) if shared else rows
    # fmt: off
    found: list[dict[str, Any]] = [
        {"y": keep, "x": keep, "weight": keep, "gate": keep, "grad_x": keep, "grad_weight": keep, "grad_gate": keep},
        {"y": rows, "x": rows_of_x, "weight": keep, "gate": keep,
         "grad_x": rows_of_x, "grad_weight": add, "grad_gate": add},
        {"y": dt.Shard(models + 1), "x": keep, "weight": dt.Shard(models), "gate": keep,
         "grad_x": add, "grad_weight": dt.Shard(models), "grad_gate": add},
    ]
    if models:
        each = dt.Shard(0)
        found.append({"y": each, "x": keep if shared else each, "weight": each, "gate": each,
                      "grad_x": add if shared else each, "grad_weight": each, "grad_gate": each})
    # fmt: on
    return found


def _if(condition: Any, placement: Any, otherwise: Any = None) -> Any:
    return placement if condition else otherwise


@register_sharding(ops.npu_forward)
def _npu_forward(x: Any, weight_re: Any, weight_im: Any, gate: Any, eps: float, save_sin: bool) -> list[_Rule]:
    return [
        (
            [p["y"], _if(save_sin, p["y"], dt.Replicate())],
            [p["x"], p["weight"], _if(weight_im, p["weight"]), _if(gate, p["gate"]), None, None],
        )
        for p in _placements(x, weight_re)
    ]


@register_sharding(ops.npu_backward)
def _npu_backward(
    grad_y: Any,
    x: Any,
    weight_re: Any,
    weight_im: Any,
    gate: Any,
    y: Any,
    s: Any,
    eps: float,
    straight_through: bool,
    needs: int,
) -> list[_Rule]:
    # What is not needed comes back empty, the same on every rank.
    def gradients(p: dict[str, Any]) -> list[Any]:
        of = (p["grad_x"], p["grad_weight"], p["grad_weight"] if weight_im else None, p["grad_gate"] if gate else None)
        return [_if(needs >> bit & 1 and g is not None, g, dt.Replicate()) for bit, g in enumerate(of)]

    return [
        (
            gradients(p),
            [
                p["y"],
                p["x"],
                p["weight"],
                _if(weight_im, p["weight"]),
                _if(gate, p["gate"]),
                p["y"],
                p["y"],
                None,
                None,
                None,
            ],
        )
        for p in _placements(x, weight_re)
    ]


@register_sharding(ops.nmu_forward)
def _nmu_forward(x: Any, weight: Any) -> list[_Rule]:
    return [([p["y"]], [p["x"], p["weight"]]) for p in _placements(x, weight)]


@register_sharding(ops.nmu_backward)
def _nmu_backward(grad_y: Any, x: Any, weight: Any, needs: int) -> list[_Rule]:
    return [
        (
            [_if(needs & 1, p["grad_x"], dt.Replicate()), _if(needs & 2, p["grad_weight"], dt.Replicate())],
            [p["y"], p["x"], p["weight"], None],
        )
        for p in _placements(x, weight)
    ]


@register_sharding(ops.inalu_forward)
def _inalu_forward(
    x: Any,
    weight_add: Any,
    mask_add: Any,
    weight_mul: Any,
    mask_mul: Any,
    gate_weight: Any,
    eps: float,
    omega: float,
    save: bool,
) -> list[_Rule]:
    return [
        ([p["y"], *[_if(save, p["y"], dt.Replicate())] * 4], [p["x"], *[p["weight"]] * 5, None, None, None])
        for p in _placements(x, weight_add)
    ]


@register_sharding(ops.inalu_backward)
def _inalu_backward(
    grad_y: Any,
    x: Any,
    weight_add: Any,
    mask_add: Any,
    weight_mul: Any,
    mask_mul: Any,
    gate_weight: Any,
    h: Any,
    a: Any,
    t: Any,
    flags: Any,
    eps: float,
    omega: float,
    needs: int,
) -> list[_Rule]:
    return [
        (
            [_if(needs >> bit & 1, p["grad_weight" if bit else "grad_x"], dt.Replicate()) for bit in range(6)],
            [p["y"], p["x"], *[p["weight"]] * 5, *[p["y"]] * 4, None, None, None],
        )
        for p in _placements(x, weight_add)
    ]


def shard_models(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Spread the K models of every unit over the ranks of a one-dimensional mesh, in place.

    All units of `model` need the same `num_models` K. Every rank starts from rank 0's parameters and keeps K / ranks of
    the models. The model then takes plain tensors, the same on every rank, ``[B, I]`` or ``[K, B, I]``, and returns a
    DTensor ``[K, B, O]`` sharded over K; nothing is sent in forward or backward beside the gradient of x, if it needs
    one. Raises ValueError for a model with parameters outside of such units, or with more than one K.
    """
    units = [module for module in model.modules() if isinstance(module, Unit)]
    owned = {id(parameter) for unit in units for parameter in unit.parameters(recurse=False)}
    found = {unit.num_models for unit in units}
    if len(found) != 1 or None in found or any(id(parameter) not in owned for parameter in model.parameters()):
        raise ValueError(
            f"shard_models: every parameter must be of units with one num_models, got {sorted(map(str, found))}"
        )

    def split(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for key, parameter in list(module._parameters.items()):
            if parameter is not None:
                tensor = dt.distribute_tensor(parameter.detach(), mesh, [dt.Shard(0)])
                module.register_parameter(key, nn.Parameter(tensor, requires_grad=parameter.requires_grad))

    def enter(module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
        return tuple(
            dt.DTensor.from_local(x, mesh, [dt.Replicate()], run_check=False)
            if isinstance(x, Tensor) and not isinstance(x, dt.DTensor)
            else x
            for x in inputs
        )

    return dt.distribute_module(model, mesh, split, enter)  # type: ignore[arg-type]


__all__ = ["shard_models"]
