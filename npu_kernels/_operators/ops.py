"""One record for each layer's registered operators, and what this module makes from it.

`LAYERS` says once what a layer's two operators take and give. A record determines: here the schemas
and the shape functions (what an operator returns without computing it); in `autograd` its
derivative; in `transforms` its rule under vmap; in `sharding` its rules under DTensor; in
`interop.flops` the number of its operations; in `functional` the call; in tests the samples.

The C++ library adds the CPU kernels; `dispatch` adds the kernel for every other case. The schemas
have no keyword-only arguments, so that calling an operator costs as little as possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

library = torch.library.Library("npu_kernels", "DEF")


@dataclass(frozen=True)
class Layer:
    """What the operators ``<name>_forward`` and ``<name>_backward`` of one layer take and give.

    The forward takes x ``[(K,) B, I]``, the weights and the options, and, where it saves something
    for the backward, a last argument that asks for it. It gives y ``[(K,) B, O]`` and what it
    saves, each of y's shape, empty if not asked for. The backward takes grad_y, x, the weights, y
    if `takes_y`, what was saved, all options and `needs`. It gives a gradient of x and of each
    weight: `needs` has a bit for each, x's is 1. A gradient is empty without its bit, and where the
    weight is None.
    """

    name: str
    # Name -> shape after K: O, I, and J for 2 I; the first "OI" or "OJ".
    weights: Mapping[str, str]
    optional: tuple[str, ...] = ()  # the weights that may be None
    options: Mapping[str, str] = field(default_factory=dict)  # of both operators: name -> type
    backward_options: Mapping[str, str] = field(default_factory=dict)  # of the backward alone
    # What the forward saves in addition to y: name -> dtype, None for x's.
    intermediates: Mapping[str, torch.dtype | None] = field(default_factory=dict)
    takes_y: bool = False  # whether the backward takes y
    asks: str = "save"  # the argument that asks for what is saved
    may_be_zero: tuple[str, ...] = ()  # options of the function; its other numbers are positive
    # The products of rows and weights in the formulas, for `interop.flops`: the weight or option
    # without which they are absent -> what each is needed for: y, or gradients of operands.
    products: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    eager_products: bool = False  # eager code builds a factor for each row, output and input
    sampled_within: tuple[float, float] = (-1.0, 1.0)  # the range of the weights of samples
    min_input: float = 0.0  # the smallest magnitude of the inputs of samples
    calls: tuple[Mapping[str, Any], ...] = field(default=({},))  # options in samples

    @property
    def operands(self) -> int:
        """The number of tensors that have gradients: x and the weights."""
        return 1 + len(self.weights)

    @property
    def saved(self) -> tuple[str, ...]:
        """What the backward takes in addition to grad_y and the operands."""
        return (*(("y",) if self.takes_y else ()), *self.intermediates)

    @property
    def keep(self) -> tuple[bool, ...]:
        """The forward's last argument where a backward will follow."""
        return (True,) if self.intermediates else ()

    @property
    def forward(self) -> Any:
        """The registered operator."""
        return operator(f"{self.name}_forward")

    @property
    def backward(self) -> Any:
        """The registered operator."""
        return operator(f"{self.name}_backward")

    def schemas(self) -> tuple[str, str]:
        """Return the schemas of the forward and the backward operator."""
        marks = {name: "?" if name in self.optional else "" for name in self.weights}
        operands = ["Tensor x", *(f"Tensor{mark} {name}" for name, mark in marks.items())]
        options = [f"{kind} {name}" for name, kind in self.options.items()]
        backward_options = [f"{kind} {name}" for name, kind in self.backward_options.items()]
        forward = [*operands, *options, *([f"bool {self.asks}"] if self.intermediates else [])]
        saved = [f"Tensor {name}" for name in self.saved]
        backward = ["Tensor grad_y", *operands, *saved, *options, *backward_options, "int needs"]
        outputs = ", ".join(["Tensor"] * (1 + len(self.intermediates)))
        outputs = f"({outputs})" if self.intermediates else outputs
        grads = ", ".join(["Tensor"] * self.operands)
        return (
            f"{self.name}_forward({', '.join(forward)}) -> {outputs}",
            f"{self.name}_backward({', '.join(backward)}) -> ({grads})",
        )


def operator(name: str) -> Any:
    """Return the registered operator of that name."""
    return getattr(torch.ops.npu_kernels, name).default


_NALU_INTERMEDIATES: dict[str, torch.dtype | None] = {"h": None, "a": None, "t": None}
_SEPARATE = {"sign": "separate"}
_INALU_WEIGHTS = ("weight_add", "mask_add", "weight_mul", "mask_mul", "gate_weight")

LAYERS = {
    layer.name: layer
    for layer in (
        Layer(
            "npu",
            {"weight_re": "OI", "weight_im": "OI", "gate": "I"},
            optional=("weight_im", "gate"),
            options={"eps": "float"},
            backward_options={"straight_through": "bool"},
            intermediates={"s": None},
            takes_y=True,
            asks="save_sin",
            products={
                "weight_re": ("y", "y", "x gate", "weight_re", "weight_re gate"),
                "weight_im": ("y", "y", "x gate", "weight_im", "weight_im gate"),
            },
            calls=({"gate_gradient": "clip"}, {"gate_gradient": "straight_through", "eps": 1e-3}),
        ),
        Layer(
            "nmu",
            {"weight": "OI"},
            products={"weight": ("y", "x", "weight")},
            eager_products=True,
            sampled_within=(-0.25, 1.25),
            calls=({}, {"clip": False}),
        ),
        Layer(
            "nmru",
            {"weight": "OJ"},
            options={"eps": "float", "clip": "bool", "separate": "bool"},
            may_be_zero=("eps",),
            products={"weight": ("y", "x", "weight"), "separate": ("y", "weight")},
            eager_products=True,
            sampled_within=(-0.25, 1.25),
            min_input=0.1,
            calls=({}, {"clip": False, "eps": 1e-3}, _SEPARATE, {**_SEPARATE, "clip": False}),
        ),
        Layer(
            "nalu",
            {"weight": "OI", "mask": "OI", "gate_weight": "OI", "gate_bias": "O"},
            optional=("gate_bias",),
            options={"eps": "float"},
            intermediates=_NALU_INTERMEDIATES,
            products={
                "weight": ("y", "y", "x", "x", "weight mask", "weight mask"),
                "gate_weight": ("y", "x", "gate_weight"),
            },
        ),
        Layer(
            "inalu",
            dict.fromkeys(_INALU_WEIGHTS, "OI"),
            options={"eps": "float", "omega": "float"},
            intermediates={**_NALU_INTERMEDIATES, "flags": torch.int32},
            products={
                "weight_add": ("y", "x", "weight_add mask_add"),
                "weight_mul": ("y", "y", "x", *("weight_mul mask_mul",) * 2),
                "gate_weight": ("y", "x", "gate_weight"),
            },
            eager_products=True,
        ),
    )
}
# The shapes of every layer's weights, also of those that are torch's own product.
WEIGHTS: dict[str, Mapping[str, str]] = {
    **{name: layer.weights for name, layer in LAYERS.items()},
    "nau": {"weight": "OI"},
    "nac": {"weight": "OI", "mask": "OI"},
}

# Neural Power Unit and NAU in an ODE solver: operators of another kind, defined below and in
# `ode._loop`.
TIME_LOOP_SCHEMAS = (
    "ode_forward(Tensor u0, Tensor weight_re, Tensor? weight_im, Tensor? gate, Tensor weight,"
    " float[] tableau, int steps, float dt, float eps, bool clip, bool derivatives, bool save)"
    " -> (Tensor, Tensor, Tensor)",
    "ode_backward(Tensor? grad_trajectory, Tensor? grad_derivatives, Tensor trajectory,"
    " Tensor weight_re, Tensor? weight_im, Tensor? gate, Tensor weight, Tensor stages,"
    " float[] tableau, float dt, float eps, bool clip, bool straight_through, int needs)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
# The same with steps of varying sizes, for `ode._adaptive`; on the CPU alone. The lengths of
# the last two outputs follow from the values, so that there are no shape functions.
ADAPTIVE_SCHEMAS = (
    "ode_adaptive_forward(Tensor u0, Tensor weight_re, Tensor? weight_im, Tensor? gate,"
    " Tensor weight, Tensor t, float[] pair, float rtol, float atol, int max_steps,"
    " int max_at_bound, float eps, bool clip, int every)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "ode_adaptive_backward(Tensor path, Tensor grad_path, Tensor u0, Tensor weight_re,"
    " Tensor? weight_im, Tensor? gate, Tensor weight, Tensor t, Tensor counts, Tensor times,"
    " Tensor states, float[] pair, float rtol, float atol, float eps, bool clip, int every,"
    " bool straight_through, int needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
# The derivatives of ``npu_backward`` along a direction, for `second_derivatives`; on the CPU alone.
SECOND = "npu_second"
SECOND_SCHEMA = (
    "npu_second(Tensor grad_y, Tensor x, Tensor weight_re, Tensor? weight_im, Tensor? gate,"
    " Tensor y, Tensor s, Tensor? along_x, Tensor? along_re, Tensor? along_im, Tensor? along_gate,"
    " float eps, bool straight_through, int needs) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
# Many training steps, for `training._plan`; on the CPU alone.
_TRAIN = (
    "(Tensor(a!)[] parameters, Tensor(b!)[] state, Tensor(c!) losses, Tensor x, Tensor y,"
    " Tensor weight, Tensor rows, Tensor schedules, int[] plan, float[] numbers)"
)
TRAIN_SCHEMAS = (f"train{_TRAIN} -> ()", f"train_plan{_TRAIN} -> int")


def _names(schemas: Sequence[str]) -> tuple[str, ...]:
    return tuple(schema.partition("(")[0] for schema in schemas)


SCHEMAS = tuple(schema for layer in LAYERS.values() for schema in layer.schemas())
NAMES = _names(SCHEMAS)  # of the layers' operators
TIME_LOOPS = _names(TIME_LOOP_SCHEMAS)  # formulas in ode._loop
ADAPTIVE = _names(ADAPTIVE_SCHEMAS)  # formulas in ode._adaptive

for _schema in SCHEMAS + TIME_LOOP_SCHEMAS:
    library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))
for _schema in (*ADAPTIVE_SCHEMAS, SECOND_SCHEMA, *TRAIN_SCHEMAS):
    library.define(_schema)

# Looked up once: an attribute of torch.ops costs more than a small kernel's arithmetic.
npu_forward, npu_backward = map(operator, ("npu_forward", "npu_backward"))
npu_second = operator(SECOND)
nmu_forward, nmu_backward = map(operator, ("nmu_forward", "nmu_backward"))
nmru_forward, nmru_backward = map(operator, ("nmru_forward", "nmru_backward"))
nalu_forward, nalu_backward = map(operator, ("nalu_forward", "nalu_backward"))
inalu_forward, inalu_backward = map(operator, ("inalu_forward", "inalu_backward"))
ode_forward, ode_backward = map(operator, TIME_LOOPS)
ode_adaptive_forward, ode_adaptive_backward = map(operator, ADAPTIVE)


# ---- shape functions ----


def _output(x: Tensor, weight: Tensor) -> list[int]:
    return [*weight.shape[:-2], x.shape[-2], weight.shape[-2]]  # [K, B, O]


def result_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """Return the dtype of y and of what is saved: that of x and the weights.

    It is float32 where the Triton kernels read float16 or bfloat16 together with float32.
    """
    return x.dtype if x.dtype is weight.dtype else torch.promote_types(x.dtype, weight.dtype)


# new_empty and never empty_like, which would copy the strides of a transposed input.
def _like(tensor: Tensor | None, needed: int, source: Tensor) -> Tensor:
    if tensor is None:
        return source.new_empty([0])
    return tensor.new_empty(tensor.shape if needed else [0])


def _forward_shapes(layer: Layer) -> Callable[..., Any]:
    saved_dtypes = tuple(layer.intermediates.values())

    def shapes(x: Tensor, *arguments: Any) -> Any:
        shape, dtype = _output(x, arguments[0]), result_dtype(x, arguments[0])
        y = x.new_empty(shape, dtype=dtype)
        if not saved_dtypes:
            return y
        saved_shape = shape if arguments[-1] else [0]
        return y, *(x.new_empty(saved_shape, dtype=stored or dtype) for stored in saved_dtypes)

    return shapes


def _backward_shapes(layer: Layer) -> Callable[..., Any]:
    def shapes(grad_y: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        x, needs = arguments[0], arguments[-1]
        operands = enumerate(arguments[: layer.operands])
        return tuple(_like(tensor, needs >> bit & 1, x) for bit, tensor in operands)

    return shapes


for _layer in LAYERS.values():
    for _name, _shapes in zip(_names(_layer.schemas()), (_forward_shapes, _backward_shapes)):  # noqa: B905
        torch.library.register_fake(f"npu_kernels::{_name}", _shapes(_layer), lib=library)


def ode_stages(
    u0: Tensor, weight_re: Tensor, tableau: Sequence[float], steps: int, derivatives: bool
) -> tuple[int, ...]:
    """Return the shape of what an ODE solver saves; each backend chooses the layout."""
    h, d = weight_re.shape[-2:]
    evaluations = steps * (math.isqrt(8 * len(tableau) + 1) // 2) + derivatives
    models, starts = (1, *u0.shape)[-3:-1]
    if models * starts == 1:  # OdeInputs::stages_shape
        return 1, evaluations, 2 * (-(-d // 16) + -(-h // 16)), 16
    blocks = models * -(-starts // 16) if starts >= 8 else -(-models * starts // 16)
    return blocks, evaluations, 2 * (d + h), 16


@torch.library.register_fake("npu_kernels::ode_forward", lib=library)  # type: ignore[untyped-decorator]
def _ode_forward(
    u0: Tensor,
    weight_re: Tensor,
    *arguments: Any,  # the other weights, then the options
) -> tuple[Tensor, Tensor, Tensor]:
    tableau, steps, *_, derivatives, save = arguments[3:]
    trajectory = [*u0.shape[:-1], steps + 1, u0.shape[-1]]
    stages = ode_stages(u0, weight_re, tableau, steps, derivatives) if save else [0]
    shapes = trajectory, trajectory if derivatives else [0], stages
    return tuple(map(u0.new_empty, shapes))  # type: ignore[return-value]


@torch.library.register_fake("npu_kernels::ode_backward", lib=library)  # type: ignore[untyped-decorator]
def _ode_backward(
    grad_trajectory: Tensor | None,
    grad_derivatives: Tensor | None,
    trajectory: Tensor,
    *arguments: Any,  # the weights first, `needs` last
) -> tuple[Tensor, ...]:
    operands = enumerate((trajectory[..., 0, :], *arguments[:4]))
    return tuple(_like(tensor, arguments[-1] >> bit & 1, trajectory) for bit, tensor in operands)
