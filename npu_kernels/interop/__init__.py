"""Conversion of layers of other code into fused layers, and back.

`swap` replaces the eager layers of a model by the fused modules, `to_reference` converts back. Both
copy the weights, and change a copy of the model, unless ``inplace=True``.

`swap` converts the eager layers of this package (`npu_kernels.interop.reference_layers`), and NPU,
RealNPU and NaiveNPU layers of other code. It recognises these by the names of their parameters, not
by their class:

=========  ============================================================
ours       names
=========  ============================================================
weight_re  ``Re, W_real, W_hat, weight_re``
weight_im  ``Im, W_im, W_imag, W_i, weight_im``; without it a RealNPU
gate       ``g, G, gate``; without it a NaiveNPU
=========  ============================================================

`swap` calls the forward of such a layer with random weights, with gates also outside of [0, 1], and
inputs of both signs, in float64 if the layer can compute in it. So it finds out whether the weights
are ``[O, I]`` or ``[I, O]``, and whether the layer computes the same function. A layer that clips
its weights, inputs or results within its forward computes a different function. The new layer adds
to ``|x|`` the attribute ``eps`` or ``epsilon`` of the old layer or, without one, the argument
`eps`. If the forward of the old layer at ``x = 0`` shows that it adds a different number, `swap`
raises an error. The new layers compute float16 and bfloat16 in float32.

`to_reference` and `from_parameters` support two published layouts: "julia" is the layout of
NeuralArithmetic.jl, the package of the NPU's authors, "pytorch" a layout of PyTorch code:

==========  ==============================  ======================================================
layout      parameters                      what differs from ours
==========  ==============================  ======================================================
julia       ``Re, Im [O, I], g [I]``        eps: machine epsilon of the dtype, as ours. Gate:
                                            clipped as ours; since NeuralArithmetic.jl 1.0.3
                                            with a straight-through gradient: pass
                                            ``gate_gradient="straight_through"``. Up to 1.0.2
                                            the gradient at a gate of exactly 0 is 0; ours is
                                            not.
pytorch     ``W_real, W_im [I, O], g [I]``  eps: its module's attribute ``eps``, float32's epsilon
                                            in every dtype. Gate: ``torch.clamp``, as ours.
                                            Clipping weights or gates in place after a step
                                            belongs to the training loop: `training.project_`.
==========  ==============================  ======================================================

Swap first, then compile the model, wrap it for several processes, add hooks, and build the
optimizer: an optimizer that was built before has the old model's parameters.

    >>> import torch
    >>> from npu_kernels import interop
    >>> from npu_kernels.interop import reference_layers
    >>> model = interop.swap(torch.nn.Sequential(reference_layers.RealNPU(2, 6)))
    >>> type(model[0]).__module__
    'npu_kernels.layers._npu'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from npu_kernels import reference
from npu_kernels._operators import ops
from npu_kernels.interop import reference_layers
from npu_kernels.interop._swap import from_parameters, swap, to_reference


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return a table for ``ExportedProgram.run_decompositions``: fused operators as plain aten.

    It is needed to run an exported program in C++, and to pass an exported program to
    `torch.onnx.export`. For a module, `torch.onnx.export` records the formulas itself.

    A program with the fused operators needs `import npu_kernels` where it runs; the decomposed
    program needs only torch. The gradient of its gates is "clip", because torch drops the
    ``detach`` of "straight_through".
    """
    from npu_kernels.ode import _loop as time_loop

    table: dict[Any, Callable[..., Any]] = dict(torch.export.default_decompositions().items())
    for formulas, names in ((reference, ops.NAMES), (time_loop, ops.TIME_LOOPS)):
        table |= {getattr(ops, name): getattr(formulas, name) for name in names}
    return table


__all__ = ["decompositions", "from_parameters", "reference_layers", "swap", "to_reference"]
