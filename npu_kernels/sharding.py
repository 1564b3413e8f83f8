"""DTensor's sharding rules for the operators, and batches of models shared over ranks.

Importing this module registers the rules, made from the shapes in `ops.LAYERS`; `npu_kernels` alone
does not, because DTensor is slow to import. Without them DTensor raises that the operator has no
sharding strategy. Data parallelism (DistributedDataParallel, FSDP2) needs none.

What may be sharded, on each dimension of a mesh separately:

rows B       x, y             all weights replicated; their gradients are partial sums
outputs O    y, what has O    x and weights without O replicated; their gradients are partial sums
models K     what has K; a shared x is replicated, its gradient a partial sum
nothing      all replicated

Never inputs I: the exponential comes after the sum over them. A tensor that comes sharded over I is
gathered.

torch calls its registration interface experimental.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed.tensor as dt
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental import register_sharding

from npu_kernels._operators import ops
from npu_kernels.layers import Unit


def _placements(layer: ops.Layer, x: Any, weight: Any, over: str) -> dict[str, tuple[Any, Any]]:
    """Return the placements of x, y and each weight, and of their gradients.

    over: the dimension that is sharded, B, O or K; "" for none.
    """
    models = "K" if len(weight.shape) == 3 else ""
    shapes = {"x": models[: len(x.shape) - 2] + "BI", "y": models + "BO"}
    shapes |= {name: models + shape for name, shape in layer.weights.items()}
    placements: dict[str, tuple[Any, Any]] = {}
    for name, shape in shapes.items():
        if over and over in shape:
            placements[name] = (dt.Shard(shape.index(over)),) * 2
        else:
            placements[name] = dt.Replicate(), dt.Partial() if over else dt.Replicate()
    return placements


def _shardings(layer: ops.Layer, x: Any, weight: Any) -> list[dict[str, tuple[Any, Any]]]:
    """Return the placements of each legal sharding."""
    dimensions = ("", "B", "O", "K")[: 1 + len(weight.shape)]
    return [_placements(layer, x, weight, over) for over in dimensions]


def _operands(
    layer: ops.Layer, placements: dict[str, tuple[Any, Any]], tensors: Sequence[Any]
) -> list[Any]:
    pairs = zip(("x", *layer.weights), tensors, strict=True)
    return [None if t is None else placements[name][0] for name, t in pairs]


def _forward_rule(layer: ops.Layer) -> Callable[..., list[tuple[list[Any], list[Any]]]]:
    def rule(*arguments: Any) -> list[tuple[list[Any], list[Any]]]:
        tensors, options = arguments[: layer.operands], arguments[layer.operands :]
        kept_count = len(layer.kept)
        strategies = []
        for placements in _shardings(layer, *tensors[:2]):
            y = placements["y"][0]
            # Gradients that are not asked for are empty, on every rank.
            outputs = [y, *[y if kept_count and options[-1] else dt.Replicate()] * kept_count]
            operands = _operands(layer, placements, tensors)
            strategies.append((outputs, [*operands, *(None for _ in options)]))
        return strategies

    return rule


def _backward_rule(layer: ops.Layer) -> Callable[..., list[tuple[list[Any], list[Any]]]]:
    def rule(grad_y: Any, *arguments: Any) -> list[tuple[list[Any], list[Any]]]:
        tensors, options = arguments[: layer.operands], arguments[layer.operands :]
        options = options[len(layer.saved) :]
        needs, strategies = options[-1], []
        for placements in _shardings(layer, *tensors[:2]):
            y = placements["y"][0]
            grads = [
                placements[name][1] if needs >> bit & 1 else dt.Replicate()
                for bit, name in enumerate(("x", *layer.weights))
            ]
            operands = [y, *_operands(layer, placements, tensors), *[y] * len(layer.saved)]
            strategies.append((grads, [*operands, *(None for _ in options)]))
        return strategies

    return rule


for _layer in ops.LAYERS.values():
    register_sharding(_layer.forward)(_forward_rule(_layer))
    register_sharding(_layer.backward)(_backward_rule(_layer))


def shard_models(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Spread the K models of every unit over the ranks of a one-dimensional mesh, in place.

    All units of `model` need the same `num_models` K. Every rank starts from rank 0's parameters
    and keeps K / ranks of the models. The model then takes plain tensors, the same on every rank,
    ``[B, I]`` or ``[K, B, I]``, and returns a DTensor ``[K, B, O]`` sharded over K; nothing is sent
    in forward or backward except the gradient of x, if it needs one. Raises ValueError for a model
    with parameters outside of such units, or with more than one K.
    """
    units = [module for module in model.modules() if isinstance(module, Unit)]
    owned = {id(parameter) for unit in units for parameter in unit.parameters(recurse=False)}
    model_counts = {unit.num_models for unit in units}
    strangers = any(id(parameter) not in owned for parameter in model.parameters())
    if len(model_counts) != 1 or None in model_counts or strangers:
        rule = "every parameter must be of units with one num_models"
        raise ValueError(f"shard_models: {rule}, got {sorted(map(str, model_counts))}")

    def split(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for key, parameter in list(module._parameters.items()):
            if parameter is not None:
                tensor = dt.distribute_tensor(parameter.detach(), mesh, [dt.Shard(0)])
                module.register_parameter(key, nn.Parameter(tensor, parameter.requires_grad))

    def enter(module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
        return tuple(
            dt.DTensor.from_local(x, mesh, [dt.Replicate()], run_check=False)
            if isinstance(x, Tensor) and not isinstance(x, dt.DTensor)
            else x
            for x in inputs
        )

    return dt.distribute_module(model, mesh, split, enter)  # type: ignore[arg-type]


__all__ = ["shard_models"]
