"""The operators' derivatives, made from their records in `ops.LAYERS`.

Each layer has two Functions: the forward operator, whose derivative is the backward operator, and
the backward operator. Its derivative is that of the eager implementation, or the closed form of
`second_derivatives` if there is one and no third derivative is required. So first derivatives are
fused, and all higher ones are correct.

The Functions have the old ``forward(ctx, ...)`` style: ``setup_context`` inspects a signature at
every call. `torch.func` transforms and forward-mode differentiation do not see into them:
`eager_only` says when these are active. Then the eager implementation is used, except in one level
of grad (`in_one_grad_level`), where the operators are called, which have derivatives of their own.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._functorch.utils import enable_single_level_autograd_function, unwrap_dead_wrappers
from torch.autograd import Function, forward_ad
from torch.compiler import is_compiling
from torch.jit import is_tracing

from npu_kernels import reference
from npu_kernels._operators import dispatch, ops, second_derivatives

HALVES = (torch.float16, torch.bfloat16)
_transforms_active = torch._C._are_functorch_transforms_active
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_is_batched = torch._C._functorch.is_batchedtensor
_get_unwrapped = torch._C._functorch.get_unwrapped
_below_autograd = torch._C._AutoDispatchBelowAutograd
_saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks

# From the arguments of a backward operator; None in place of an empty gradient.
Gradients = Callable[[tuple[Any, ...]], tuple[Tensor | None, ...]]
Formula = Callable[[Sequence[Any]], tuple[Tensor, ...]]  # of tensors


def eager_only() -> bool:
    """Whether a `torch.func` transform or forward-mode differentiation is active."""
    return _transforms_active() or forward_ad._current_level >= 0


@dispatch.constant_in_graphs
def in_one_grad_level() -> bool:
    """Whether one level of `torch.func.grad` or `vjp` is all that is active."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    if len(levels) != 1 or forward_ad._current_level >= 0:
        return False
    return levels[0].key() == torch._C._functorch.TransformType.Grad


def outside_of_transforms(tensors: Sequence[Tensor | None]) -> list[Tensor | None] | None:
    """Return tensors as they are outside of the active transforms, where hooks see what is saved.

    A checkpoint's backward runs the forward again, and pairs what both save by its order alone.
    Modes, transforms and the backend may have changed meanwhile. So under saved-tensor hooks a call
    goes one way whatever is active: `apply_alone` of the layer's Function, with these tensors.

    None: there are no hooks, nothing needs a gradient, or a transform concerns a tensor.
    """
    if is_compiling() or is_tracing() or not _saved_tensor_hooks(True):
        return None
    if not torch.is_grad_enabled():
        return None
    plain = list(tensors)
    if eager_only():
        for index, tensor in enumerate(tensors):
            if tensor is not None:
                if forward_ad.unpack_dual(tensor).tangent is not None:
                    return None
                while _is_wrapped(tensor):  # what a layer before gave under `torch.func.jvp`
                    if _is_batched(tensor):
                        return None
                    tensor = _get_unwrapped(tensor)
                plain[index] = tensor
    return plain if any(tensor is not None and tensor.requires_grad for tensor in plain) else None


def apply_alone(function: type[Function], inputs: Sequence[Any]) -> Any:
    """Apply a Function to tensors that no active transform concerns."""
    active = _transforms_active()
    with temporarily_clear_interpreter_stack() if active else contextlib.nullcontext():
        return super(Function, function).apply(*inputs)  # type: ignore[misc]


def undifferentiated(
    operator: Any, arguments: Sequence[Any], formula: Callable[..., Any] | None = None
) -> Any:
    """Call an operator below autograd: the caller has a derivative of its own.

    formula: called in its place where `use_backend` forces eager code.
    """
    if formula is not None and dispatch.forces_formulas():
        return formula(*arguments)
    with contextlib.nullcontext() if is_compiling() else _below_autograd():
        return operator(*arguments)


def differentiate(
    formula: Formula,
    inputs: Sequence[Tensor | None],
    needed: Sequence[bool],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Return gradients of ``formula(inputs)`` for the needed inputs, from those of its outputs."""
    create_graph = torch.is_grad_enabled()
    device_type = next(t for t in inputs if t is not None).device.type
    with torch.enable_grad(), torch.autocast(device_type, enabled=False):
        # Aliases: an input may be computed from another one, whose gradient must not be included.
        aliases = [None if t is None else t.view_as(t) for t in inputs]
        pairs = zip(formula(in_float32(aliases)), grads, strict=True)
        outputs = [(y, g.to(y.dtype)) for y, g in pairs if g is not None and y.requires_grad]
        sources = [t for t, need in zip(aliases, needed, strict=True) if t is not None and need]
        if not outputs or not sources:
            return [None] * len(inputs)
        ys, grad_ys = zip(*outputs, strict=True)
        source_grads = iter(
            torch.autograd.grad(ys, sources, grad_ys, create_graph=create_graph, allow_unused=True)
        )
    return [next(source_grads) if need else None for need in needed]


def vjp(
    formula: Formula,
    inputs: Sequence[Tensor | None],
    grads: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Return what `differentiate` does for all present inputs, whether or not they require grad.

    `torch.func` transforms may be active; saved-tensor hooks may not.
    """
    inputs, grads = unwrap_dead_wrappers(tuple(inputs)), unwrap_dead_wrappers(tuple(grads))
    present = [i for i, tensor in enumerate(inputs) if tensor is not None]
    outputs_with_grads = [i for i, grad in enumerate(grads) if grad is not None]
    results: list[Tensor | None] = [None] * len(inputs)
    if not outputs_with_grads:
        return results

    def outputs(*tensors: Tensor) -> tuple[Tensor, ...]:
        arguments: list[Tensor | None] = [None] * len(inputs)
        for i, tensor in zip(present, tensors, strict=True):
            arguments[i] = tensor
        all_outputs = formula(arguments)
        return tuple(all_outputs[i] for i in outputs_with_grads)

    by_outputs: Callable[..., Any] = torch.func.vjp(outputs, *(inputs[i] for i in present))[1]
    for i, grad in zip(
        present, by_outputs(tuple(grads[i] for i in outputs_with_grads)), strict=True
    ):
        results[i] = grad
    return results


def in_float32(tensors: Sequence[Any]) -> list[Any]:
    """Return the arguments with float16 and bfloat16 tensors in float32, as formulas compute."""
    return [t.float() if isinstance(t, Tensor) and t.dtype in HALVES else t for t in tensors]


class Derivative:
    """What the Functions of one layer share: the sizes of its arguments, and its gradients.

    The arguments of a gradient are those of the backward operator: grad_y, the operands, what was
    saved, all options and `needs`.
    """

    def __init__(self, layer: ops.Layer) -> None:
        self.forward_operator, self.backward_operator = layer.forward, layer.backward
        self.backward_name = f"{layer.name}_backward"
        self.forward_formula: Callable[..., Any] = getattr(reference, f"{layer.name}_forward")
        self.formula: Callable[..., tuple[Tensor, ...]] = getattr(reference, self.backward_name)
        self.has_closed_form = layer.name == "npu"
        self.operands, self.keep, self.takes_y = layer.operands, layer.keep, layer.takes_y
        self.forward_inputs = layer.operands + len(layer.options)
        self.tensors = 1 + layer.operands + len(layer.saved)  # of the arguments of a gradient
        # What the second derivative takes of these tensors.
        self.stored = self.tensors if self.has_closed_form else 1 + layer.operands
        self.recomputed = (None,) * len(layer.saved)
        self.no_options = (None,) * (len(layer.options) + len(layer.backward_options))
        # Which operands need a gradient, as flags and as bits: adding bits at each call is slower.
        self.bits_of = _bits_of_flags(layer.operands)
        self.flags_of = {bits: flags for flags, bits in self.bits_of.items()}
        self.all_bits = (1 << layer.operands) - 1
        title = layer.name.upper()
        self.function: Any = _function(f"{title}Function", _layer_steps(self))
        steps = _backward_operator_steps(self)
        self.backward_function: Any = _function(f"{title}BackwardFunction", steps)
        launching: Any = _function(f"{title}Function", _launching_steps(self))
        # What Function.apply calls in the end; the rest of it is for the transforms of torch.func,
        # which see no launcher.
        self.launching: Callable[..., Tensor] = super(Function, launching).apply  # type: ignore[misc]

    def save(self, ctx: Any, inputs: tuple[Any, ...], outputs: Any) -> Tensor:
        """Save the operands and what the backward takes of the forward's outputs; return y."""
        tensors = inputs[: self.operands]
        if self.keep:
            tensors += tuple(outputs if self.takes_y else outputs[1:])
        ctx.save_for_backward(*tensors)
        return outputs[0] if self.keep else outputs

    def gradients(self, arguments: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        """Return the operands' gradients, differentiable where grad mode asks for it.

        A gradient is None if its bit in `needs` is 0.
        """
        if plain := outside_of_transforms(arguments[: self.tensors]):
            return apply_alone(self.backward_function, (*plain, *arguments[self.tensors :]))
        if eager_only():  # a level of grad, else vmap over this backward, or a tangent in grad_y
            in_grad = in_one_grad_level()
            grads = self.backward_operator(*arguments) if in_grad else self.by_formula(arguments)
        elif torch.is_grad_enabled():
            return self.backward_function.apply(*arguments)
        else:
            grads = self.compute(arguments)
        return self.present(grads, arguments[-1])

    def again(self, inputs: Sequence[Any], options: Sequence[Any]) -> tuple[Tensor, ...]:
        """Return the formula of grad_y and the operands.

        It computes what was saved again, so that it is differentiable.
        """
        arguments = (*inputs, *self.recomputed, *options)
        return self.formula(*arguments)

    def by_formula(self, arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
        inputs, options = arguments[: 1 + self.operands], arguments[self.tensors :]
        pairs = zip(self.again(in_float32(inputs), options), inputs[1:], strict=True)
        return tuple([grad if t is None else grad.to(t.dtype) for grad, t in pairs])

    def compute(self, arguments: tuple[Any, ...]) -> Any:
        """Call the backward operator, or its launcher where that needs no dispatcher of torch."""
        launcher = dispatch.launcher(self.backward_name, arguments[: 1 + self.operands])
        if launcher and not dispatch.forces_formulas():
            return launcher.call(arguments)[0]
        return undifferentiated(self.backward_operator, arguments, self.formula)

    def second(
        self,
        saved: Sequence[Tensor | None],
        options: Sequence[Any],
        grads: Sequence[Tensor | None],
        needed: Sequence[bool],
        transformed: bool = False,
    ) -> list[Tensor | None]:
        """Return the derivatives of `compute` along `grads`, by grad_y and the needed operands.

        saved: grad_y, the operands, and what the closed form, if there is one, takes: what was
        saved, which is a function of the operands and gets no gradient. options: all, and `needs`.
        transformed: a transform may have made the graph; after it, its tensors require no gradient.
        """
        if self.has_closed_form and not torch.is_grad_enabled() and _only_real(saved, grads):
            with torch.autocast(saved[0].device.type, enabled=False):  # type: ignore[union-attr]
                return second_derivatives.npu_second(saved, options, grads, needed)

        def differentiable(inputs: Sequence[Any]) -> tuple[Tensor, ...]:
            return self.again(inputs, options)

        inputs = saved[: 1 + self.operands]
        pairs = zip(inputs, needed, strict=True)
        if transformed and not all(t.requires_grad for t, need in pairs if need and t is not None):
            return vjp(differentiable, inputs, grads)
        return differentiate(differentiable, inputs, needed, grads)

    def present(self, grads: Sequence[Tensor], needs: int) -> Any:
        """Return the gradients with None for those without a bit in `needs`."""
        if needs == self.all_bits:
            return grads
        flags = self.flags_of[needs]
        return tuple([grad if need else None for grad, need in zip(grads, flags, strict=True)])


Steps = tuple[Callable[..., Any], Callable[..., Any]]  # forward and backward of a Function


def _function(name: str, steps: Steps) -> type[Function]:
    """Make a Function of that name, which graphs, profiles and anomaly mode show."""
    methods = {"forward": staticmethod(steps[0]), "backward": staticmethod(steps[1])}
    return type(Function)(name, (Function,), {**methods, "__module__": __name__})  # type: ignore[misc]


def _layer_steps(derivative: Derivative) -> Steps:
    """Return the Function of the forward operator: from x, the weights and all options to y."""

    def forward(ctx: Any, *inputs: Any) -> Tensor:
        ctx.options = inputs[derivative.operands :]
        ctx.choices = None if is_compiling() else dispatch.choices()
        arguments = inputs[: derivative.forward_inputs] + derivative.keep
        operator, formula = derivative.forward_operator, derivative.forward_formula
        outputs = undifferentiated(operator, arguments, formula)
        return derivative.save(ctx, inputs, outputs)

    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        needs = derivative.bits_of[ctx.needs_input_grad[: derivative.operands]]
        arguments = (grad_y, *ctx.saved_tensors, *ctx.options, needs)
        with dispatch.as_forward(ctx.choices):
            return *derivative.gradients(arguments), *derivative.no_options

    return forward, backward


def _backward_operator_steps(derivative: Derivative) -> Steps:
    """Return the Function of the backward operator, with the arguments of `gradients`."""

    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(*arguments[: derivative.stored])
        ctx.options = arguments[derivative.tensors :]
        ctx.set_materialize_grads(False)
        return derivative.present(derivative.compute(arguments), arguments[-1])

    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[: 1 + derivative.operands]
        second = derivative.second(ctx.saved_tensors, ctx.options, grads, needed)
        return *second, *derivative.recomputed, *derivative.no_options, None

    return forward, backward


def _only_real(*groups: Sequence[Tensor | None]) -> bool:
    """Whether all tensors have one dtype, float32 or float64, and no transform is active."""
    dtypes = {tensor.dtype for tensors in groups for tensor in tensors if tensor is not None}
    return len(dtypes) == 1 and dtypes.isdisjoint(HALVES) and not eager_only()


def _launching_steps(derivative: Derivative) -> Steps:
    """Return the Function of the forward operator by a launcher, which comes before its inputs.

    `dispatch.launcher` gives the launcher. It needs neither torch's dispatcher nor the work that
    follows from the operands' shapes.
    """

    def forward(ctx: Any, launcher: Any, *inputs: Any) -> Tensor:
        ctx.options, ctx.choices = inputs[derivative.operands :], dispatch.choices()
        outputs, ctx.tape = launcher.call(inputs[: derivative.forward_inputs] + derivative.keep)
        return derivative.save(ctx, inputs, outputs)

    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        needs = derivative.bits_of[ctx.needs_input_grad[1 : 1 + derivative.operands]]
        arguments = (grad_y, *ctx.saved_tensors, *ctx.options, needs)
        repeats = ctx.tape is not None and ctx.choices is None
        if repeats and not eager_only() and not torch.is_grad_enabled():
            launcher = dispatch.launcher(derivative.backward_name, (grad_y,))
            if launcher is not None:
                grads = launcher.call_after(ctx.tape, arguments)
                return None, *derivative.present(grads, needs), *derivative.no_options
        with dispatch.as_forward(ctx.choices):
            return None, *derivative.gradients(arguments), *derivative.no_options

    return forward, backward


def _differentiate_operators(derivative: Derivative) -> None:
    """Give both operators themselves derivatives, for exported programs and a level of grad.

    It is that of a gate that clips gradients: the forward operator has no `gate_gradient`.
    """
    operands, options = derivative.operands, derivative.forward_inputs - derivative.operands

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.is_saved = bool(derivative.keep) and inputs[-1]
        derivative.save(ctx, inputs, output)
        ctx.options = inputs[operands : derivative.forward_inputs]
        if derivative.keep:
            ctx.mark_non_differentiable(*output[1:])

    def backward(ctx: Any, grad_y: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        needs = derivative.bits_of[ctx.needs_input_grad[1 : 1 + operands]]
        backward_options = (False,) * (len(derivative.no_options) - options)
        saved = unwrap_dead_wrappers(ctx.saved_tensors)
        arguments = (grad_y, *saved, *ctx.options, *backward_options, needs)
        if ctx.is_saved or not derivative.keep:
            grads = derivative.gradients(arguments)
        else:
            grads = derivative.present(derivative.by_formula(arguments), needs)
        return None, *grads, *(None,) * (options + len(derivative.keep))

    def save_for_second(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[: derivative.stored])
        ctx.options = inputs[derivative.tensors :]
        ctx.set_materialize_grads(False)
        flags = derivative.flags_of[inputs[-1]]
        absent = [grad for grad, need in zip(output, flags, strict=True) if not need]
        ctx.mark_non_differentiable(*absent)

    def second(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[1 : 2 + operands]
        saved = unwrap_dead_wrappers(ctx.saved_tensors)
        by_input = derivative.second(saved, ctx.options, grads, needed, transformed=True)
        return None, *by_input, *derivative.recomputed, *derivative.no_options, None

    _register_derivative(derivative.forward_operator, save, backward)
    _register_derivative(derivative.backward_operator, save_for_second, second)


def _register_derivative(
    operator: Any, save: Callable[..., None], backward: Callable[..., Any]
) -> None:
    """Register a derivative as `torch.library.register_autograd` does, for `torch.func` too.

    Its Function would be refused by `torch.func`, which requires another style of them.
    """

    def below(keyset: Any, inputs: tuple[Any, ...]) -> Any:
        with _below_autograd():
            return operator.redispatch(keyset & torch._C._after_autograd_keyset, *inputs)

    def forward(ctx: Any, keyset: Any, *inputs: Any) -> Any:
        with torch.enable_grad():  # of the levels below, which may differentiate too
            output = below(keyset, inputs)
        save(ctx, inputs, output)
        return output

    name = operator.name().rpartition("::")[2]
    title = name.title().replace("_", "")
    function: Any = _function(f"{title}Operator", (forward, backward))
    apply = super(Function, function).apply

    def differentiable(keyset: Any, *inputs: Any) -> Any:
        if not (torch.is_grad_enabled() and torch._C._any_requires_grad(*inputs)):
            return below(keyset, inputs)
        transforms = _transforms_active()
        with enable_single_level_autograd_function() if transforms else contextlib.nullcontext():
            return apply(keyset, *inputs)

    ops.library.impl(name, differentiable, "Autograd", with_keyset=True)


def _bits_of_flags(count: int) -> dict[tuple[bool, ...], int]:
    """Map which of `count` tensors need a gradient, as flags, to the same as bits."""
    choices = itertools.product((False, True), repeat=count)
    return {flags: sum(flag << bit for bit, flag in enumerate(flags)) for flags in choices}


DERIVATIVES = {name: Derivative(layer) for name, layer in ops.LAYERS.items()}
for _derivative in DERIVATIVES.values():
    _differentiate_operators(_derivative)


def npu_second(arguments: tuple[Any, ...]) -> list[Tensor | None]:
    """Return the derivatives of the NPU's gradients where the fast path does not compute them.

    arguments: grad_y, x, the weights, the gate, y and s; eps, straight_through and `needs`; what
    came for the gradients of the four operands; which of grad_y and the operands need a derivative,
    as bits.
    """
    saved, options, grads, bits = arguments[:7], arguments[7:10], arguments[10:14], arguments[14]
    needed = [bool(bits >> bit & 1) for bit in range(5)]
    return DERIVATIVES["npu"].second(saved, options, grads, needed)


def nmu_gradients(arguments: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    """Return the gradients of x and weight of an NMU.

    arguments: grad_y, x, weight, whether that is clipped to [0, 1], and `needs`.
    """
    grad_y, x, weight, clip, needs = arguments
    gradients = DERIVATIVES["nmu"].gradients
    if not clip:
        return gradients((grad_y, x, weight, needs))
    grad_x, grad_weight = gradients((grad_y, x, weight.clamp(0.0, 1.0), needs))
    if grad_weight is not None:
        grad_weight = grad_weight.where((weight >= 0) & (weight <= 1), 0)
    return grad_x, grad_weight


def nau_gradients(
    grad_y: Tensor, x: Tensor, weight: Tensor, clip: bool, needs: int
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of x and weight, None without their bit in `needs`, for any rows."""
    grad_rows = grad_y.reshape((*weight.shape[:-2], -1, weight.shape[-2]))
    grad_x, grad_weight, is_shared = None, None, x.dim() < grad_y.dim()
    if needs & 1:
        grad_x = grad_rows @ (weight.clamp(-1.0, 1.0) if clip else weight)
        grad_x = (grad_x.sum(0) if is_shared else grad_x).reshape(x.shape)
    if needs & 2:
        rows = x if is_shared else x.reshape((*grad_rows.shape[:-1], x.shape[-1]))
        grad_weight = grad_rows.mT @ rows
        if clip:
            grad_weight = torch.where((weight >= -1) & (weight <= 1), grad_weight, 0)
    return grad_x, grad_weight


def nac_gradients(
    grad_y: Tensor, x: Tensor, weight: Tensor, mask: Tensor, needs: int
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of x, weight and mask, None without their bit in `needs`: any rows."""
    matrix, of_matrix = reference.nac_weight(weight, mask), 2 if needs & 6 else 0
    grad_x, d_w = nau_gradients(grad_y, x, matrix, False, needs & 1 | of_matrix)
    if d_w is None:
        return grad_x, None, None
    grad_weight, grad_mask = reference.nac_weight_gradients(d_w, weight, mask)
    return grad_x, grad_weight if needs & 2 else None, grad_mask if needs & 4 else None
