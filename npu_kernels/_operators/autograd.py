"""The operators' derivatives, made from their records in `ops.LAYERS`.

Each layer has two Functions: the forward operator, whose derivative is the backward operator, and the backward
operator, whose derivative is that of its eager formula. So first derivatives are fused, and all higher ones are
correct.

The Functions have the old ``forward(ctx, ...)`` style: ``setup_context`` inspects a signature at every call.
`torch.func` transforms and forward-mode differentiation do not see into them; `eager_only` says when they are
active; then the eager formulas must be used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function, forward_ad
from torch.compiler import is_compiling

from npu_kernels import reference
from npu_kernels._operators import dispatch, ops

_transforms_active = torch._C._are_functorch_transforms_active

_HALF = (torch.float16, torch.bfloat16)

Gradients = Callable[..., tuple[Tensor | None, ...]]


def eager_only() -> bool:
    """Whether a `torch.func` transform or forward-mode differentiation is active."""
    return _transforms_active() or forward_ad._current_level >= 0


def differentiate(
    formula: Callable[..., tuple[Tensor, ...]],
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Gradients of ``formula(*inputs)`` for the inputs that need one, given those of its outputs."""
    create_graph = torch.is_grad_enabled()
    # Aliases: an input may be computed from another one, whose gradient must not be included.
    device_type = next(t for t in inputs if t is not None).device.type
    with torch.enable_grad(), torch.autocast(device_type, enabled=False):
        aliases = [None if t is None else t.view_as(t) for t in inputs]
        found = formula(*in_float32(aliases))
        outputs = [
            (o, g.to(o.dtype))
            for o, g in zip(found, grads, strict=True)
            if g is not None and o.requires_grad
        ]
        wanted = [
            alias for alias, need in zip(aliases, needed, strict=True) if alias is not None and need
        ]
        if not outputs or not wanted:
            return [None] * len(inputs)
        wanted_grads = iter(
            torch.autograd.grad(
                [output for output, _ in outputs],
                wanted,
                [grad for _, grad in outputs],
                create_graph=create_graph,
                allow_unused=True,
            )
        )
    return [next(wanted_grads) if need else None for need in needed]


def in_float32(tensors: Sequence[Any]) -> list[Any]:
    """The arguments with float16 and bfloat16 tensors in float32, in which the formulas are computed."""
    return [t.float() if isinstance(t, Tensor) and t.dtype in _HALF else t for t in tensors]


def _by_formula(
    formula: Callable[..., tuple[Tensor, ...]],
    grad_y: Tensor,
    operands: Sequence[Tensor | None],
    rest: Sequence[Any],
) -> tuple[Tensor, ...]:
    """The gradients that a backward's formula gives, each in its operand's dtype."""
    found = formula(*in_float32([grad_y, *operands]), *rest)
    return tuple(
        [grad if t is None else grad.to(t.dtype) for grad, t in zip(found, operands, strict=True)]
    )


def _function(
    name: str, forward: Callable[..., Any], backward: Callable[..., Any]
) -> type[Function]:
    """A Function with that name, which graphs, profiles and anomaly mode show."""
    members = {
        "forward": staticmethod(forward),
        "backward": staticmethod(backward),
        "__module__": __name__,
    }
    return type(Function)(name, (Function,), members)  # type: ignore[misc]


def _backward_operator(layer: ops.Layer) -> Callable[..., tuple[Tensor, ...]]:
    """The backward operator, or its launcher where that can be called without torch's dispatcher."""
    name, operator, operands = f"{layer.name}_backward", layer.backward, layer.operands

    def backward(grad_y: Tensor, *arguments: Any) -> Any:
        return (dispatch.launcher(name, (grad_y, *arguments[:operands])) or operator)(
            grad_y, *arguments
        )

    return backward


def _of_layer(layer: ops.Layer) -> tuple[type[Function], Gradients]:
    """A layer's Function and what its backward calls.

    The Function takes the operands, x first, and all options, and gives y. The gradients come from grad_y, the
    operands, what was saved, all options and `needs`: None for those without a bit, and differentiable where grad mode
    asks for it.
    """
    forward_operator, backward_operator = layer.forward, _backward_operator(layer)
    formula: Callable[..., tuple[Tensor, ...]] = getattr(reference, f"{layer.name}_backward")
    operands, keep, takes_y = layer.operands, layer.keep, layer.takes_y
    taken = operands + len(layer.options)  # by the forward operator
    options = len(layer.options) + len(layer.backward_options)
    saved_end = operands + len(layer.saved)
    again = (None,) * len(
        layer.saved
    )  # the formula computes them again, so that it is differentiable
    no_options = (None,) * options
    masks = _masks(operands)  # looked up: adding bits at every call takes longer
    by_mask = {mask: flags for flags, mask in masks.items()}
    every = (1 << operands) - 1

    def forward(ctx: Any, *inputs: Any) -> Tensor:
        ctx.options = inputs[operands:]
        ctx.forced = None if is_compiling() else dispatch.forced()
        found = forward_operator(*inputs[:taken], *keep)
        if not keep:
            ctx.save_for_backward(*inputs[:operands])
            return found
        ctx.save_for_backward(*inputs[:operands], *(found if takes_y else found[1:]))
        return found[0]

    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        needs = masks[ctx.needs_input_grad[:operands]]
        if ctx.forced is None:
            return *gradients(grad_y, *ctx.saved_tensors, *ctx.options, needs), *no_options
        with dispatch.as_forward(ctx.forced):  # on a GPU, autograd runs this in its own thread
            return *gradients(grad_y, *ctx.saved_tensors, *ctx.options, needs), *no_options

    def gradients(grad_y: Tensor, *arguments: Any) -> tuple[Tensor | None, ...]:
        if eager_only():  # vmap over this backward, or a tangent in grad_y
            grads = _by_formula(
                formula, grad_y, arguments[:operands], (*again, *arguments[saved_end:])
            )
        elif torch.is_grad_enabled():
            return backward_function.apply(grad_y, *arguments)
        else:
            grads = backward_operator(grad_y, *arguments)
        return present(grads, arguments[-1])

    def present(grads: tuple[Tensor, ...], needs: int) -> tuple[Tensor | None, ...]:
        if needs == every:
            return grads
        return tuple(
            [grad if there else None for grad, there in zip(grads, by_mask[needs], strict=True)]
        )

    def backward_forward(ctx: Any, grad_y: Tensor, *arguments: Any) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(grad_y, *arguments[:operands])
        ctx.options = arguments[saved_end:]
        ctx.set_materialize_grads(False)
        return present(backward_operator(grad_y, *arguments), arguments[-1])

    def backward_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        def differentiable(*inputs: Tensor | None) -> tuple[Tensor, ...]:
            return formula(*inputs, *again, *ctx.options)

        # What was saved is a function of the operands and gets no gradient.
        found = differentiate(
            differentiable, ctx.saved_tensors, ctx.needs_input_grad[: 1 + operands], grads
        )
        return *found, *again, *no_options, None

    title = layer.name.upper()
    backward_function: Any = _function(
        f"{title}BackwardFunction", backward_forward, backward_backward
    )
    return _function(f"{title}Function", forward, backward), gradients


def _launching(layer: ops.Layer, gradients: Gradients) -> Callable[..., Tensor]:
    """What a layer's Function does, by launchers that :func:`dispatch.launcher` has given: without torch's dispatcher,
    and without the work that follows from the operands' shapes. The launcher of the forward comes before its inputs.
    """
    operands, keep, takes_y = layer.operands, layer.keep, layer.takes_y
    taken, options = operands + len(layer.options), len(layer.options) + len(layer.backward_options)
    name, masks, nothing = f"{layer.name}_backward", _masks(operands), (None,) * options
    every = (1 << operands) - 1

    def forward(ctx: Any, launcher: Any, *inputs: Any) -> Tensor:
        ctx.options, ctx.forced = inputs[operands:], dispatch.forced()
        found, ctx.tape = launcher.call(inputs[:taken] + keep)
        if not keep:
            ctx.save_for_backward(*inputs[:operands])
            return found
        ctx.save_for_backward(*inputs[:operands], *(found if takes_y else found[1:]))
        return found[0]

    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        flags, tape = ctx.needs_input_grad[1 : 1 + operands], ctx.tape
        needs = masks[flags]
        if (
            tape is not None
            and ctx.forced is None
            and not eager_only()
            and not torch.is_grad_enabled()
        ):
            launcher = dispatch.launcher(name, (grad_y,))
            if launcher is not None:
                grads = launcher.call_after(tape, (grad_y, *ctx.saved_tensors, *ctx.options, needs))
                if needs != every:
                    grads = [
                        grad if there else None for grad, there in zip(grads, flags, strict=True)
                    ]
                return None, *grads, *nothing
        with dispatch.as_forward(ctx.forced):  # on a GPU, autograd runs this in its own thread
            return None, *gradients(grad_y, *ctx.saved_tensors, *ctx.options, needs), *nothing

    function: Any = _function(f"{layer.name.upper()}Function", forward, backward)
    # What Function.apply calls in the end; the rest of it is for torch.func's transforms, which see no launcher.
    apply: Callable[..., Tensor] = super(Function, function).apply
    return apply


def _masks(count: int) -> dict[tuple[bool, ...], int]:
    """Maps which tensors need a gradient, as flags, to the same as bits."""
    every = itertools.product((False, True), repeat=count)
    return {flags: sum(flag << bit for bit, flag in enumerate(flags)) for flags in every}


_MADE = {name: _of_layer(layer) for name, layer in ops.LAYERS.items()}
FUNCTIONS: dict[str, Any] = {name: function for name, (function, _) in _MADE.items()}
GRADIENTS: dict[str, Gradients] = {name: gradients for name, (_, gradients) in _MADE.items()}
# Of the launcher that `dispatch.launcher` gives for these operands, and the inputs of FUNCTIONS.
LAUNCHING = {name: _launching(layer, GRADIENTS[name]) for name, layer in ops.LAYERS.items()}


def nmu_gradients(
    grad_y: Tensor, x: Tensor, weight: Tensor, clip: bool, needs: int
) -> tuple[Tensor | None, Tensor | None]:
    """Of x and weight of an NMU whose weight is clipped to [0, 1] where `clip` is true."""
    if not clip:
        return GRADIENTS["nmu"](grad_y, x, weight, needs)  # type: ignore[return-value]
    grad_x, grad_weight = GRADIENTS["nmu"](grad_y, x, weight.clamp(0, 1), needs)
    if grad_weight is not None:
        grad_weight = grad_weight.where((weight >= 0) & (weight <= 1), 0)
    return grad_x, grad_weight
