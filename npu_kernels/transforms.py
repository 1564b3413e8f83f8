"""Neural Power Unit, a layer: the fused operators under `torch.func`'s vmap and grad.

A vmap over the weights, which is what a vmap over stacked modules is, becomes one call with a model dimension, with the
gradient taken inside, outside or by plain autograd; a vmap over the rows alone becomes one call with more rows. Two
levels become one call too. The Functions here are of the style that `torch.func` can see into. It makes a class at
every call, half a millisecond in all; `num_models` does the same work without.

`fused` says when they compute. The eager formulas do where they are faster (a gradient inside a vmap over rows: torch's
overhead, and per-sample gradients of one weight) and where nothing else is right: under other transforms, in
forward-mode differentiation, and when a compiler traces a transform, since ``torch.compile(torch.func.grad(f))`` drops
a Function's own backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad

from npu_kernels import ops, reference

_functorch = torch._C._functorch
_GRAD, _VMAP = _functorch.TransformType.Grad, _functorch.TransformType.Vmap


def _vmapped(tensor: Tensor) -> bool:
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False


def visible() -> bool:
    """Whether the Functions below are right under the transforms at work."""
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return False
    return all(level.key() in (_GRAD, _VMAP) for level in _functorch.get_interpreter_stack() or ())


def fused(*weights: Tensor | None) -> bool:
    """Whether the Functions below should compute; asked only where a transform or a tangent is at work."""
    if not visible():
        return False
    return all(level.key() == _VMAP for level in _functorch.get_interpreter_stack() or ()) or any(
        weight is not None and _vmapped(weight) for weight in weights
    )


# ---- one call for a vmap --------------------------------------------------------------------------------------------


class _Fold:
    """The operands of a vmapped call as those of one call, and its results back.

    size: how many calls the vmap stands for, V. With batched weights V becomes, or multiplies, the model dimension;
    else it multiplies the rows (not for the backward operator: there each call has its own weight gradient).
    """

    def __init__(self, size: int, weight: Tensor, weight_dim: int | None, x_dims: int, into_models: bool) -> None:
        self.size, self.into_models = size, into_models
        self.models = (
            (weight.shape[0 if weight_dim != 0 else 1],) if weight.dim() - (weight_dim is not None) > 2 else ()
        )
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
        if self.into_models and dim is None and not own_gradient and (self.shared or not self.models):
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
    """Gradients of ``formula(*inputs)``, a tuple, for all inputs that are present, given those of its outputs."""
    present = [i for i, tensor in enumerate(inputs) if tensor is not None]
    wanted = [i for i, grad in enumerate(grads) if grad is not None]
    found: list[Tensor | None] = [None] * len(inputs)
    if not wanted:
        return found

    def outputs(*tensors: Tensor) -> tuple[Tensor, ...]:
        arguments: list[Tensor | None] = [None] * len(inputs)
        for i, tensor in zip(present, tensors, strict=True):
            arguments[i] = tensor
        every = formula(*arguments)
        return tuple(every[i] for i in wanted)

    pull: Callable[..., Any] = torch.func.vjp(outputs, *(inputs[i] for i in present))[1]
    for i, grad in zip(present, pull(tuple(grads[i] for i in wanted)), strict=True):
        found[i] = grad
    return found


# ---- NPU ------------------------------------------------------------------------------------------------------------


class NPUTransformed(Function):
    """``(y, s)`` from x, weight_re, weight_im, gate, eps, straight_through."""

    @staticmethod
    def forward(
        x: Tensor,
        weight_re: Tensor,
        weight_im: Tensor | None,
        gate: Tensor | None,
        eps: float,
        straight_through: bool,
    ) -> tuple[Tensor, Tensor]:
        return ops.npu_forward(x, weight_re, weight_im, gate, eps, True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs[:4], *output)
        ctx.options = inputs[4:]
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, grad_s: Tensor) -> tuple[Tensor | None, ...]:
        eps, straight = ctx.options
        n = ctx.needs_input_grad
        needs = n[0] | n[1] << 1 | n[2] << 2 | n[3] << 3
        operands: tuple[Any, ...] = (grad_y, *ctx.saved_tensors)
        if visible():
            grads = NPUBackwardTransformed.apply(*operands, eps, straight, needs)
        else:
            x, weight_re, weight_im, gate, *_ = ctx.saved_tensors
            grads = reference.npu_backward(grad_y, x, weight_re, weight_im, gate, None, None, eps, straight, needs)
        return *(grad if needs >> bit & 1 else None for bit, grad in enumerate(grads)), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        x, weight_re, weight_im, gate, *options = inputs
        of_x, of_re, of_im, of_gate = in_dims[:4]
        into_models = any(dim is not None for dim in (of_re, of_im, of_gate))
        fold = _Fold(info.batch_size, weight_re, of_re, x.dim() - (of_x is not None), into_models)
        y, s = NPUTransformed.apply(
            fold.x(x, of_x, False),
            fold.weight(weight_re, of_re),
            fold.weight(weight_im, of_im),
            fold.weight(gate, of_gate),
            *options,
        )
        (y, of_y), (s, _) = fold.unfold_rows(y), fold.unfold_rows(s)
        return (y, s), (of_y, of_y)


class NPUBackwardTransformed(Function):
    """The four gradients, empty where `needs` has no bit; y and s are functions of the others and get none."""

    @staticmethod
    def forward(
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
    ) -> tuple[Tensor, ...]:
        return ops.npu_backward(grad_y, x, weight_re, weight_im, gate, y, s, eps, straight_through, needs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.options = inputs[7:10]
        ctx.mark_non_differentiable(*(grad for bit, grad in enumerate(output) if not inputs[9] >> bit & 1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        eps, straight, needs = ctx.options

        def formula(
            grad_y: Tensor, x: Tensor, weight_re: Tensor, weight_im: Tensor | None, gate: Tensor | None
        ) -> tuple[Tensor, ...]:
            return reference.npu_backward(grad_y, x, weight_re, weight_im, gate, None, None, eps, straight, needs)

        present = [grad if needs >> bit & 1 else None for bit, grad in enumerate(grads)]
        return *_pull(formula, ctx.saved_tensors, present), *(None,) * 5

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        grad_y, x, weight_re, weight_im, gate, y, s, eps, straight_through, needs = inputs
        fold = _Fold(info.batch_size, weight_re, in_dims[2], x.dim() - (in_dims[1] is not None), True)
        grads = NPUBackwardTransformed.apply(
            fold.rows(grad_y, in_dims[0]),
            fold.x(x, in_dims[1], bool(needs & 1)),
            fold.weight(weight_re, in_dims[2]),
            fold.weight(weight_im, in_dims[3]),
            fold.weight(gate, in_dims[4]),
            fold.rows(y, in_dims[5]),
            fold.rows(s, in_dims[6]),
            eps,
            straight_through,
            needs,
        )
        unfold = (fold.unfold_x, fold.unfold_weight, fold.unfold_weight, fold.unfold_weight)
        there = [bool(needs >> bit & 1) for bit in range(4)]
        outputs = tuple(
            back(grad) if is_there else grad for back, grad, is_there in zip(unfold, grads, there, strict=True)
        )
        return outputs, tuple(0 if is_there else None for is_there in there)


# ---- NMU ------------------------------------------------------------------------------------------------------------


class NMUTransformed(Function):
    """y from x, weight (used as it is)."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return ops.nmu_forward(x, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        n = ctx.needs_input_grad
        needs = n[0] | n[1] << 1
        if visible():
            grads = NMUBackwardTransformed.apply(grad_y, *ctx.saved_tensors, needs)
        else:
            x, weight = ctx.saved_tensors
            grads = reference.nmu_backward(grad_y, x, weight, needs)
        return grads[0] if n[0] else None, grads[1] if n[1] else None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor) -> tuple[Any, Any]:
        fold = _Fold(info.batch_size, weight, in_dims[1], x.dim() - (in_dims[0] is not None), in_dims[1] is not None)
        y = NMUTransformed.apply(fold.x(x, in_dims[0], False), fold.weight(weight, in_dims[1]))
        return fold.unfold_rows(y)


class NMUBackwardTransformed(Function):
    """The two gradients, empty where `needs` has no bit."""

    @staticmethod
    def forward(grad_y: Tensor, x: Tensor, weight: Tensor, needs: int) -> tuple[Tensor, Tensor]:
        return ops.nmu_backward(grad_y, x, weight, needs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.needs = inputs[3]
        ctx.mark_non_differentiable(*(grad for bit, grad in enumerate(output) if not inputs[3] >> bit & 1))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        def formula(grad_y: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
            return reference.nmu_backward(grad_y, x, weight, ctx.needs)

        present = [grad if ctx.needs >> bit & 1 else None for bit, grad in enumerate(grads)]
        return *_pull(formula, ctx.saved_tensors, present), None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        grad_y: Tensor,
        x: Tensor,
        weight: Tensor,
        needs: int,
    ) -> tuple[Any, Any]:
        fold = _Fold(info.batch_size, weight, in_dims[2], x.dim() - (in_dims[1] is not None), True)
        grad_x, grad_weight = NMUBackwardTransformed.apply(
            fold.rows(grad_y, in_dims[0]),
            fold.x(x, in_dims[1], bool(needs & 1)),
            fold.weight(weight, in_dims[2]),
            needs,
        )
        return (
            fold.unfold_x(grad_x) if needs & 1 else grad_x,
            fold.unfold_weight(grad_weight) if needs & 2 else grad_weight,
        ), (0 if needs & 1 else None, 0 if needs & 2 else None)


# ---- NALU, iNALU ----------------------------------------------------------------------------------------------------


def _nalu_family(layer: str, operands: int, kept: int) -> tuple[type[Function], type[Function]]:
    """Two Functions as those above, of a layer of `operands` tensors, x first, whose forward keeps `kept` beside y.

    The first gives y and what is kept, functions of the operands that get no gradient; the second the operands'
    gradients, empty where `needs` has no bit.
    """
    forward_operator, backward_operator = getattr(ops, f"{layer}_forward"), getattr(ops, f"{layer}_backward")
    gradients: Callable[..., tuple[Tensor, ...]] = getattr(reference, f"{layer}_backward")
    none = (None,) * kept

    class Forward(Function):
        """From the operands and the layer's options."""

        @staticmethod
        def forward(*inputs: Any) -> tuple[Tensor, ...]:
            return forward_operator(*inputs, True)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            ctx.save_for_backward(*inputs[:operands], *output[1:])
            ctx.options = inputs[operands:]
            ctx.mark_non_differentiable(*output[1:])

        @staticmethod
        def backward(ctx: Any, grad_y: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
            needs = sum(need << bit for bit, need in enumerate(ctx.needs_input_grad[:operands]))
            if visible():
                grads = Backward.apply(grad_y, *ctx.saved_tensors, *ctx.options, needs)
            else:
                grads = gradients(grad_y, *ctx.saved_tensors[:operands], *none, *ctx.options, needs)
            found = (grad if needs >> bit & 1 else None for bit, grad in enumerate(grads))
            return *found, *(None for _ in ctx.options)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
            x, *weights = inputs[:operands]
            of_x, *of_weights = in_dims[:operands]
            into_models = any(dim is not None for dim in of_weights)
            fold = _Fold(info.batch_size, weights[0], of_weights[0], x.dim() - (of_x is not None), into_models)
            outputs = Forward.apply(fold.x(x, of_x, False), *map(fold.weight, weights, of_weights), *inputs[operands:])
            rows, dims = zip(*map(fold.unfold_rows, outputs), strict=True)
            return rows, dims

    class Backward(Function):
        """From grad_y, the operands, what the forward kept, the options and `needs`."""

        @staticmethod
        def forward(*inputs: Any) -> tuple[Tensor, ...]:
            return backward_operator(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            ctx.save_for_backward(*inputs[: 1 + operands])
            ctx.options = inputs[1 + operands + kept :]
            needs = inputs[-1]
            ctx.mark_non_differentiable(*(grad for bit, grad in enumerate(output) if not needs >> bit & 1))

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
            def formula(*inputs: Tensor | None) -> tuple[Tensor, ...]:
                return gradients(*inputs, *none, *ctx.options)

            present = [grad if ctx.options[-1] >> bit & 1 else None for bit, grad in enumerate(grads)]
            return *_pull(formula, ctx.saved_tensors, present), *none, *(None for _ in ctx.options)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
            (grad_y, x, *weights), saved = inputs[: 1 + operands], inputs[1 + operands : 1 + operands + kept]
            of_x, of_weights = in_dims[1], in_dims[2 : 1 + operands]
            needs = inputs[-1]
            fold = _Fold(info.batch_size, weights[0], of_weights[0], x.dim() - (of_x is not None), True)
            grads = Backward.apply(
                fold.rows(grad_y, in_dims[0]),
                fold.x(x, of_x, bool(needs & 1)),
                *map(fold.weight, weights, of_weights),
                *map(fold.rows, saved, in_dims[1 + operands :]),
                *inputs[1 + operands + kept :],
            )
            there = [bool(needs >> bit & 1) for bit in range(operands)]
            unfold = (fold.unfold_x, *(fold.unfold_weight,) * len(weights))
            outputs = tuple(
                back(grad) if is_there else grad for back, grad, is_there in zip(unfold, grads, there, strict=True)
            )
            return outputs, tuple(0 if is_there else None for is_there in there)

    title = layer.upper()  # what graphs and profiles show
    Forward.__name__, Backward.__name__ = f"{title}Transformed", f"{title}BackwardTransformed"
    return Forward, Backward


NALUTransformed, NALUBackwardTransformed = _nalu_family("nalu", 5, 3)
INALUTransformed, INALUBackwardTransformed = _nalu_family("inalu", 6, 4)
