"""The fused operators under `torch.func`'s vmap and grad.

A vmap over the weights, which is what a vmap over stacked modules is, becomes one call with a model
dimension, with the gradient taken inside, outside or by plain autograd; a vmap over the rows alone
becomes one call with more rows. Two levels become one call too. Under one level of grad alone the
operators are called, which `autograd` differentiates. The Functions here are of the style that
`torch.func` can see into. torch makes a class at every call, which takes time; `num_models`
does the same work without it.

`fused` says when they are used. The eager implementation is used where it is faster (a gradient
inside a vmap over rows: torch's overhead, and per-sample gradients of one weight) and where only
they are correct: under other transforms, in forward-mode differentiation, and when a compiler
traces a vmap, since it drops a Function's own backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from npu_kernels._operators import ops
from npu_kernels._operators.autograd import DERIVATIVES, Derivative, vjp

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


def fused(weights: Sequence[Tensor | None]) -> bool:
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
        return tensor.expand((self.size, *tensor.shape)) if dim is None else tensor.movedim(dim, 0)

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
                tensor = tensor.unsqueeze(1).expand((-1, *self.models, -1, -1))
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

    def unfold_rows(self, tensor: Tensor) -> Tensor:
        """The rows of every call; V is at `rows_dim`."""
        if self.into_models:
            return self.unfold_weight(tensor)
        rows = tensor.shape[-2] // self.size
        return tensor.unflatten(-2, (self.size, rows))

    @property
    def rows_dim(self) -> int:
        return 0 if self.into_models else len(self.models)

    def unfold_x(self, tensor: Tensor) -> Tensor:
        """``[V, ...]`` of x's gradient, of an x shared by the models their sum."""
        tensor = self.unfold_weight(tensor)
        return tensor.sum(1) if self.shared else tensor


# ---- the Functions ----


def _backward_of(layer: ops.Layer, derivative: Derivative) -> type[Function]:
    """The Function of a layer's backward operator."""
    inputs_end, tensors = 1 + layer.operands, derivative.tensors

    class Backward(Function):
        """Gradients from grad_y, the operands, what was saved, the options and `needs`.

        A gradient is empty without its bit.
        """

        @staticmethod
        def forward(*inputs: Any) -> tuple[Tensor, ...]:
            return layer.backward(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            ctx.save_for_backward(*inputs[:inputs_end])
            ctx.options = inputs[tensors:]
            flags = derivative.flags_of[inputs[-1]]
            absent = [grad for grad, need in zip(output, flags, strict=True) if not need]
            ctx.mark_non_differentiable(*absent)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            def differentiable(inputs: Sequence[Any]) -> tuple[Tensor, ...]:
                return derivative.again(inputs, ctx.options)

            present = derivative.present(grads, ctx.options[-1])
            results = vjp(differentiable, ctx.saved_tensors, present)
            return *results, *derivative.recomputed, *(None for _ in ctx.options)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
            grad_y, x, *weights = inputs[:inputs_end]
            of_x, of_weights, needs = in_dims[1], in_dims[2:inputs_end], inputs[-1]
            x_dims, saved = x.dim() - (of_x is not None), slice(inputs_end, tensors)
            fold = _Fold(info.batch_size, weights[0], of_weights[0], x_dims, True)
            grad_rows, own_x = fold.rows(grad_y, in_dims[0]), fold.x(x, of_x, bool(needs & 1))
            folded = [grad_rows, own_x, *map(fold.weight, weights, of_weights)]
            folded += map(fold.rows, inputs[saved], in_dims[saved])
            arguments = (*folded, *inputs[tensors:])
            grads = Backward.apply(*arguments)  # type: ignore[no-untyped-call]
            unfold = (fold.unfold_x, *(fold.unfold_weight,) * len(weights))
            flags = derivative.flags_of[needs]
            triples = zip(unfold, grads, flags, strict=True)
            outputs = tuple(back(g) if present else g for back, g, present in triples)
            return outputs, tuple(0 if present else None for present in flags)

    Backward.__name__ = f"{layer.name.upper()}BackwardTransformed"  # what graphs and profiles show
    return Backward


def _of_layer(layer: ops.Layer, derivative: Derivative) -> type[Function]:
    """Return a layer's Function; its derivative is one too. Both give what their operators do."""
    operands, forward_inputs = layer.operands, derivative.forward_inputs
    backward_function: Any = _backward_of(layer, derivative)

    class Forward(Function):
        """y and what is saved, which has no gradients, from the operands and the options."""

        @staticmethod
        def forward(*inputs: Any) -> tuple[Tensor, ...]:
            arguments = inputs[:forward_inputs] + layer.keep
            outputs = layer.forward(*arguments)
            return outputs if layer.intermediates else (outputs,)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            saved = inputs[:operands] + output[0 if layer.takes_y else 1 :]
            ctx.save_for_backward(*saved)
            ctx.options = inputs[operands:]
            ctx.mark_non_differentiable(*output[1:])

        @staticmethod
        def backward(ctx: Any, grad_y: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
            needs = derivative.bits_of[ctx.needs_input_grad[:operands]]
            inputs, options = (grad_y, *ctx.saved_tensors), (*ctx.options, needs)
            if visible():
                arguments = inputs + options
                grads = backward_function.apply(*arguments)
            else:
                grads = derivative.again(inputs[: 1 + operands], options)
            return *derivative.present(grads, needs), *(None for _ in ctx.options)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
            x, *weights = inputs[:operands]
            of_x, *of_weights = in_dims[:operands]
            into_models = any(dim is not None for dim in of_weights)
            x_dims = x.dim() - (of_x is not None)
            fold = _Fold(info.batch_size, weights[0], of_weights[0], x_dims, into_models)
            folded = [fold.x(x, of_x, False), *map(fold.weight, weights, of_weights)]
            arguments = (*folded, *inputs[operands:])
            outputs = Forward.apply(*arguments)  # type: ignore[no-untyped-call]
            return tuple(map(fold.unfold_rows, outputs)), (fold.rows_dim,) * len(outputs)

    Forward.__name__ = f"{layer.name.upper()}Transformed"
    return Forward


FUNCTIONS: dict[str, Any] = {
    name: _of_layer(layer, DERIVATIVES[name]) for name, layer in ops.LAYERS.items()
}
