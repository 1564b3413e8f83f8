"""The fused operators under `torch.func`'s vmap and grad.

A vmap over the weights, which is what a vmap over stacked modules is, becomes one call with a model
dimension, with the gradient taken inside, outside or by plain autograd; a vmap over the rows alone
becomes one call with more rows. Two levels become one call too. Under one level of grad alone the
operators are called, which `autograd` differentiates. The Functions here are of the style that
`torch.func` can see into. torch makes a class at every call, which takes time; `num_models`
does the same work without it.

`fused` says when they are used. The eager formulas are used where they are faster (a gradient
inside a vmap over rows: torch's overhead, and per-sample gradients of one weight) and where only
they are correct: under other transforms, in forward-mode differentiation, and when a compiler
traces a vmap, since it drops a Function's own backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from npu_kernels import reference
from npu_kernels._operators import ops
from npu_kernels._operators.autograd import pull

_functorch = torch._C._functorch
_GRAD, _VMAP = _functorch.TransformType.Grad, _functorch.TransformType.Vmap


def is_vmapped(tensor: Any) -> bool:
    """Whether it has other values for every element of a `torch.func.vmap`; False for None."""
    while isinstance(tensor, Tensor) and _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False


def visible() -> bool:
    """Whether the Functions below are correct under the active transforms."""
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return False
    return all(level.key() in (_GRAD, _VMAP) for level in _functorch.get_interpreter_stack() or ())


def fused(*weights: Tensor | None) -> bool:
    """Whether the Functions below should be used, where a transform or a tangent is active."""
    if not visible():
        return False
    levels = _functorch.get_interpreter_stack() or ()
    return all(level.key() == _VMAP for level in levels) or any(map(is_vmapped, weights))


# ---- one call for a vmap ----


class _Fold:
    """The operands of a vmapped call as those of one call, and the results as those of the vmap.

    size: how many calls the vmap stands for, V. With batched weights V becomes, or multiplies, the
    model dimension; else it multiplies the rows (not for the backward operator: there each call has
    its own weight gradient).
    """

    def __init__(
        self, size: int, weight: Tensor, weight_dim: int | None, x_dims: int, into_models: bool
    ) -> None:
        self.size, self.into_models = size, into_models
        has_models = weight.dim() - (weight_dim is not None) > 2
        self.models = (weight.shape[0 if weight_dim != 0 else 1],) if has_models else ()
        self.shared = bool(self.models) and x_dims == 2

    def _front(self, tensor: Tensor, dim: int | None) -> Tensor:
        """``[V, ...]``, expanded where every call has the same."""
        return tensor.expand(self.size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

    def weight(self, tensor: Tensor | None, dim: int | None) -> Tensor | None:
        """A weight or a gate."""
        if tensor is None or not self.into_models:
            return tensor
        tensor = self._front(tensor, dim)
        return tensor.flatten(0, 1) if self.models else tensor

    def rows(self, tensor: Tensor, dim: int | None, shared: bool = False) -> Tensor:
        """``[(K,) B, features]`` of every call; `shared`: x without the model dimension."""
        if self.into_models:
            tensor = self._front(tensor, dim)
            if shared:
                tensor = tensor.unsqueeze(1).expand(-1, *self.models, -1, -1)
            return tensor.flatten(0, 1) if self.models else tensor
        tensor = self._front(tensor, dim)
        if self.models and not shared:
            return tensor.movedim(0, 1).flatten(1, 2)  # [K, V B, features]
        return tensor.flatten(0, 1)

    def x(self, tensor: Tensor, dim: int | None, own_gradient: bool) -> Tensor:
        """x; it stays shared by all models where it may."""
        one_for_all = self.into_models and dim is None and not own_gradient
        if one_for_all and (self.shared or not self.models):
            return tensor
        return self.rows(tensor, dim, self.shared)

    def unfold_weight(self, tensor: Tensor) -> Tensor:
        """``[V, (K,) ...]`` of a weight's gradient."""
        return tensor.unflatten(0, (self.size, *self.models)) if self.models else tensor

    def unfold_rows(self, tensor: Tensor) -> tuple[Tensor, int]:
        """The rows of every call, and where V is."""
        if self.into_models:
            return self.unfold_weight(tensor), 0
        rows = tensor.shape[-2] // self.size
        return tensor.unflatten(-2, (self.size, rows)), len(self.models)

    def unfold_x(self, tensor: Tensor) -> Tensor:
        """``[V, ...]`` of x's gradient, of an x shared by the models their sum."""
        tensor = self.unfold_weight(tensor)
        return tensor.sum(1) if self.shared else tensor


# ---- the Functions ----


def _backward_of(layer: ops.Layer) -> type[Function]:
    """The Function of a layer's backward operator."""
    formula: Callable[..., tuple[Tensor, ...]] = getattr(reference, f"{layer.name}_backward")
    operands, saved_end = layer.operands, 1 + layer.operands + len(layer.saved)
    # The formula computes what was saved again, so that it is differentiable.
    recomputed = (None,) * len(layer.saved)

    class Backward(Function):
        """Gradients from grad_y, the operands, what was saved, the options and `needs`.

        A gradient is empty without its bit.
        """

        @staticmethod
        def forward(*inputs: Any) -> tuple[Tensor, ...]:
            return layer.backward(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            ctx.save_for_backward(*inputs[: 1 + operands])
            ctx.options = inputs[saved_end:]
            absent = (grad for bit, grad in enumerate(output) if not inputs[-1] >> bit & 1)
            ctx.mark_non_differentiable(*absent)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            def differentiable(*inputs: Tensor | None) -> tuple[Tensor, ...]:
                return formula(*inputs, *recomputed, *ctx.options)

            needs = ctx.options[-1]
            present = [grad if needs >> bit & 1 else None for bit, grad in enumerate(grads)]
            pulled = pull(differentiable, ctx.saved_tensors, present)
            return *pulled, *recomputed, *(None for _ in ctx.options)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
            grad_y, x, *weights = inputs[: 1 + operands]
            of_x, of_weights, needs = in_dims[1], in_dims[2 : 1 + operands], inputs[-1]
            x_dims, saved = x.dim() - (of_x is not None), slice(1 + operands, saved_end)
            fold = _Fold(info.batch_size, weights[0], of_weights[0], x_dims, True)
            grads = Backward.apply(  # type: ignore[no-untyped-call]
                fold.rows(grad_y, in_dims[0]),
                fold.x(x, of_x, bool(needs & 1)),
                *map(fold.weight, weights, of_weights),
                *map(fold.rows, inputs[saved], in_dims[saved]),
                *inputs[saved_end:],
            )
            needed = [bool(needs >> bit & 1) for bit in range(operands)]
            unfold = (fold.unfold_x, *(fold.unfold_weight,) * len(weights))
            triples = zip(unfold, grads, needed, strict=True)
            outputs = tuple(back(g) if present else g for back, g, present in triples)
            return outputs, tuple(0 if present else None for present in needed)

    Backward.__name__ = f"{layer.name.upper()}BackwardTransformed"  # what graphs and profiles show
    return Backward


def _of_layer(layer: ops.Layer) -> type[Function]:
    """Return a layer's Function; its derivative is one too. Both give what their operators do."""
    formula: Callable[..., tuple[Tensor, ...]] = getattr(reference, f"{layer.name}_backward")
    operands, options = layer.operands, layer.operands + len(layer.options)
    backward_function: Any = _backward_of(layer)
    # The formula computes what was saved again, so that it is differentiable.
    recomputed = (None,) * len(layer.saved)

    class Forward(Function):
        """y and what is kept, which has no gradients, from the operands and the options."""

        @staticmethod
        def forward(*inputs: Any) -> tuple[Tensor, ...]:
            outputs = layer.forward(*inputs[:options], *layer.keep)
            return outputs if layer.kept else (outputs,)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            ctx.save_for_backward(*inputs[:operands], *output[0 if layer.takes_y else 1 :])
            ctx.options = inputs[operands:]
            ctx.mark_non_differentiable(*output[1:])

        @staticmethod
        def backward(ctx: Any, grad_y: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
            needs = sum(need << bit for bit, need in enumerate(ctx.needs_input_grad[:operands]))
            if visible():
                grads = backward_function.apply(grad_y, *ctx.saved_tensors, *ctx.options, needs)
            else:
                tensors = *ctx.saved_tensors[:operands], *recomputed
                grads = formula(grad_y, *tensors, *ctx.options, needs)
            outputs = (grad if needs >> bit & 1 else None for bit, grad in enumerate(grads))
            return *outputs, *(None for _ in ctx.options)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
            x, *weights = inputs[:operands]
            of_x, *of_weights = in_dims[:operands]
            into_models = any(dim is not None for dim in of_weights)
            x_dims = x.dim() - (of_x is not None)
            fold = _Fold(info.batch_size, weights[0], of_weights[0], x_dims, into_models)
            folded = fold.x(x, of_x, False), *map(fold.weight, weights, of_weights)
            outputs = Forward.apply(*folded, *inputs[operands:])  # type: ignore[no-untyped-call]
            rows, dims = zip(*map(fold.unfold_rows, outputs), strict=True)
            return rows, dims

    Forward.__name__ = f"{layer.name.upper()}Transformed"
    return Forward


FUNCTIONS: dict[str, Any] = {name: _of_layer(layer) for name, layer in ops.LAYERS.items()}
