"""The fused operators under `torch.func`'s vmap and grad.

A vmap over the weights, which is what a vmap over stacked modules is, becomes one call with a model
dimension, with the gradient taken inside, outside or by plain autograd; a vmap over the rows alone
becomes one call with more rows. Two levels become one call too. Under one level of grad, which is
what `torch.func.grad`, `grad_and_value` and `vjp` make, the forward and the backward are one call
each. The Functions here are of the style that `torch.func` can see into.

`fused` says when they are used. The eager formulas are used where they are faster (a gradient
inside a vmap over rows: torch's overhead, and per-sample gradients of one weight) and where only
they are correct: under other transforms, in forward-mode differentiation, and when a compiler
traces a transform, since ``torch.compile(torch.func.grad(f))`` drops a Function's own backward.
Grad within grad takes them too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._functorch.utils import enable_single_level_autograd_function, unwrap_dead_wrappers
from torch.autograd import Function, forward_ad

from npu_kernels import reference
from npu_kernels._operators import ops
from npu_kernels._operators.autograd import undifferentiated

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
    if len(levels) == 1 or all(level.key() == _VMAP for level in levels):
        return True
    return any(map(is_vmapped, weights))


# ---- a call within levels of grad ----


def _apply(function: type[Function]) -> Callable[..., Any]:
    """Return what `function.apply` does, faster.

    torch makes a class at every call within a level of grad, and inspects a signature outside of
    transforms. Here one class serves all levels of grad, and computes a level below.
    """

    class AtLevel(Function):
        setup_context = function.setup_context
        backward = function.backward

        @staticmethod
        def forward(*inputs: Any) -> tuple[Tensor, ...]:
            interpreter = retrieve_current_functorch_interpreter()
            level = interpreter.level()
            below = [
                _functorch._unwrap_for_grad(value, level) if isinstance(value, Tensor) else value
                for value in inputs
            ]
            with torch.enable_grad(), interpreter.lower():
                outputs = apply(*below)
            return tuple([_functorch._wrap_for_grad(output, level) for output in outputs])

    alone: Callable[..., Any] = super(Function, function).apply  # type: ignore[misc]
    at_level: Callable[..., Any] = super(Function, AtLevel).apply

    def apply(*inputs: Any) -> Any:
        inputs = unwrap_dead_wrappers(inputs)
        innermost = _functorch.peek_interpreter_stack()
        if innermost is None:
            return alone(*inputs)
        if innermost.key() != _GRAD:
            return function.apply(*inputs)
        with enable_single_level_autograd_function():
            return at_level(*inputs)

    return apply


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


def _pull(
    formula: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Tensor | None],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Return gradients of ``formula(*inputs)`` for the present inputs, from its outputs'."""
    present = [i for i, tensor in enumerate(inputs) if tensor is not None]
    outputs_with_grads = [i for i, grad in enumerate(grads) if grad is not None]
    pulled: list[Tensor | None] = [None] * len(inputs)
    if not outputs_with_grads:
        return pulled

    def outputs(*tensors: Tensor) -> tuple[Tensor, ...]:
        arguments: list[Tensor | None] = [None] * len(inputs)
        for i, tensor in zip(present, tensors, strict=True):
            arguments[i] = tensor
        all_outputs = formula(*arguments)
        return tuple(all_outputs[i] for i in outputs_with_grads)

    pull: Callable[..., Any] = torch.func.vjp(outputs, *(inputs[i] for i in present))[1]
    for i, grad in zip(present, pull(tuple(grads[i] for i in outputs_with_grads)), strict=True):
        pulled[i] = grad
    return pulled


# ---- the Functions ----


def _backward_of(layer: ops.Layer) -> Callable[..., Any]:
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
            return undifferentiated(layer.backward, *inputs)

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
            pulled = _pull(differentiable, ctx.saved_tensors, present)
            return *pulled, *recomputed, *(None for _ in ctx.options)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
            grad_y, x, *weights = inputs[: 1 + operands]
            of_x, of_weights, needs = in_dims[1], in_dims[2 : 1 + operands], inputs[-1]
            x_dims, saved = x.dim() - (of_x is not None), slice(1 + operands, saved_end)
            fold = _Fold(info.batch_size, weights[0], of_weights[0], x_dims, True)
            grads = apply(
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
    apply = _apply(Backward)
    return apply


def _of_layer(layer: ops.Layer) -> Callable[..., Any]:
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
            outputs = undifferentiated(layer.forward, *inputs[:options], *layer.keep)
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
                grads = backward_function(grad_y, *ctx.saved_tensors, *ctx.options, needs)
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
            outputs = apply(*folded, *inputs[operands:])
            rows, dims = zip(*map(fold.unfold_rows, outputs), strict=True)
            return rows, dims

    Forward.__name__ = f"{layer.name.upper()}Transformed"
    apply = _apply(Forward)
    return apply


FUNCTIONS: dict[str, Any] = {name: _of_layer(layer) for name, layer in ops.LAYERS.items()}
