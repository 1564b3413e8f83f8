"""Sharding: DTensor's rules for the operators, and functions that shard layers and models.

Importing this module registers the rules, which follow from the shapes in `ops.LAYERS`.
`import npu_kernels` does not import it, because DTensor is slow to import. Without the rules,
DTensor raises an error that the operator has no sharding strategy. Data parallelism
(DistributedDataParallel, FSDP2) needs no rules.

Each dimension of a mesh may shard one of these dimensions:

=========  ===================================  ===========================================
dimension  sharded                              replicated; their gradients are partial sums
=========  ===================================  ===========================================
rows B     x, y                                 all weights
outputs O  y, and the weights with a dimension  x and the other weights
           O
models K   all tensors with a dimension K       a shared x
=========  ===================================  ===========================================

Inputs I are never sharded, because the exponential follows the sum over them. A tensor that is
sharded over I is gathered.

torch calls its registration interface experimental.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed.tensor as dt
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.parallel import ParallelStyle

from npu_kernels._common.checks import check_choice
from npu_kernels._operators import ops
from npu_kernels.layers import BaseLayer


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
        n_saved = len(layer.intermediates)
        strategies = []
        for placements in _shardings(layer, tensors[0], tensors[1]):
            y = placements["y"][0]
            # Gradients that are not asked for are empty, on every rank.
            outputs = [y, *[y if n_saved and options[-1] else dt.Replicate()] * n_saved]
            operands = _operands(layer, placements, tensors)
            strategies.append((outputs, [*operands, *(None for _ in options)]))
        return strategies

    return rule


def _backward_rule(layer: ops.Layer) -> Callable[..., list[tuple[list[Any], list[Any]]]]:
    def rule(grad_y: Any, *arguments: Any) -> list[tuple[list[Any], list[Any]]]:
        tensors, options = arguments[: layer.operands], arguments[layer.operands :]
        options = options[len(layer.saved) :]
        needs, strategies = options[-1], []
        for placements in _shardings(layer, tensors[0], tensors[1]):
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


def _distribute(
    module: nn.Module, mesh: DeviceMesh, placement: Callable[[Tensor], dt.Placement]
) -> None:
    """Make DTensors of a module's own parameters, each with its placement."""
    for key, parameter in list(module._parameters.items()):
        if parameter is not None:
            tensor = dt.distribute_tensor(parameter.detach(), mesh, [placement(parameter)])
            module.register_parameter(key, nn.Parameter(tensor, parameter.requires_grad))


class LayerParallel(ParallelStyle):
    """A parallel style of a layer, for `torch.distributed.tensor.parallel.parallelize_module`.

    `parallelize_module(model, mesh, {"0": LayerParallel("outputs")})` shards the first layer.

    Args:
        over: the dimension that is sharded over the ranks of a one-dimensional mesh: "batch" for
            the rows of x, its dimension before the last; "outputs", as torch's `ColwiseParallel`;
            "models".
        input_layouts: the placement of x if it is a plain tensor. Default: `Replicate()`.
        output_layouts: the placement of y. Default: `Shard` over its rows, outputs or models, as
            the layer computes it.
        use_local_output: return a plain tensor, the part of this rank.

    Inputs are never sharded, because a layer sums over all of them before it computes the
    exponential. An x with a different placement is redistributed. Raises ValueError for any other
    `over`, and for "models" with a layer without num_models; TypeError for a module that is not a
    layer of this package.
    """

    def __init__(
        self,
        over: str,
        *,
        input_layouts: dt.Placement | None = None,
        output_layouts: dt.Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        check_choice("LayerParallel", "over", over, ("batch", "outputs", "models"))
        self.over, self.use_local_output = over, use_local_output
        self.input_layouts = input_layouts or dt.Replicate()
        self.output_layouts = output_layouts

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, BaseLayer):
            kind = type(module).__name__
            raise TypeError(f"LayerParallel: module must be a layer of npu_kernels, got {kind}")
        models = 0 if module.num_models is None else 1
        if self.over == "models" and not models:
            raise ValueError("LayerParallel: num_models must not be None where over='models'")

        def placement(parameter: Tensor) -> dt.Placement:
            if self.over == "models":
                return dt.Shard(0)
            has_outputs = parameter.dim() - models == 2  # a gate has one value for each input
            is_split = self.over == "outputs" and has_outputs
            return dt.Shard(models) if is_split else dt.Replicate()

        def split(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
            _distribute(module, mesh, placement)

        def enter(module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> Any:
            x = inputs[0]
            if not isinstance(x, dt.DTensor):
                x = dt.DTensor.from_local(x, mesh, [self.input_layouts], run_check=False)
            target: dt.Placement = dt.Replicate()
            if self.over == "batch":
                target = dt.Shard(x.dim() - 2)
            elif self.over == "models" and x.dim() > 2:
                target = dt.Shard(0)
            return x.redistribute(mesh, [target]), *inputs[1:]

        def leave(module: nn.Module, y: Any, mesh: DeviceMesh) -> Any:
            if self.output_layouts is not None:
                y = y.redistribute(mesh, [self.output_layouts])
            return y.to_local() if self.use_local_output else y

        return dt.distribute_module(module, device_mesh, split, enter, leave)


def shard_models(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard the K models of every layer over the ranks of a one-dimensional mesh, in place.

    All layers of `model` need the same `num_models` K. Every rank begins with rank 0's parameters
    and keeps K / ranks of the models. The model then takes plain tensors, the same on every rank,
    ``[B, I]`` or ``[K, B, I]``, and returns a DTensor ``[K, B, O]`` sharded over K. Ranks exchange
    nothing in forward and backward, except the gradient of x if it is required. Raises ValueError
    for a model with parameters outside of such layers, or with more than one K.
    """
    units = [module for module in model.modules() if isinstance(module, BaseLayer)]
    owned = {id(parameter) for unit in units for parameter in unit.parameters(recurse=False)}
    model_counts = {unit.num_models for unit in units}
    strangers = any(id(parameter) not in owned for parameter in model.parameters())
    if len(model_counts) != 1 or None in model_counts or strangers:
        rule = "every parameter must be of units with one num_models"
        raise ValueError(f"shard_models: {rule}, got {sorted(map(str, model_counts))}")

    def split(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        _distribute(module, mesh, lambda parameter: dt.Shard(0))

    def enter(module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
        return tuple(
            dt.DTensor.from_local(x, mesh, [dt.Replicate()], run_check=False)
            if isinstance(x, Tensor) and not isinstance(x, dt.DTensor)
            else x
            for x in inputs
        )

    return dt.distribute_module(model, mesh, split, enter)  # type: ignore[arg-type]


__all__ = ["LayerParallel", "shard_models"]
