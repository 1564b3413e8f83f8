"""One call of a layer as a small value that prints as the Python that makes it again.

Hypothesis draws and shrinks these values; `problem` makes the tensors. Nothing else is random.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import logsigmoid

from npu_kernels import reference
from tests.fuzz.memory import DTYPES, KINDS, LAYOUTS, Memory
from tests.fuzz.problem import ISAS, Change, Problem, Tensors
from tests.support.samples import RECORDS, OperatorRecord

# Around the widths of vectors, panels and tiles.
EDGES = (
    7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 299,
    300,
)  # fmt: skip
OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "npu": ({}, {"gate_gradient": "straight_through"}, {"eps": 1e-3},
            {"eps": 1e-12, "gate_gradient": "straight_through"}, {"eps": 0.5}),
    "nmu": ({}, {"clip": False}),
    "nmru": ({}, {"clip": False, "eps": 1e-3}, {"sign": "separate"},
             {"sign": "separate", "clip": False}),
    "nau": ({}, {"clip": False}),
    "nac": ({},),
    "nalu": ({}, {"eps": 1e-3}),
    "inalu": ({}, {"eps": 1e-3, "omega": 1.5}, {"omega": 80.0}),
}  # fmt: skip
FUSED = ("npu", "nmu", "nmru", "nalu", "inalu")  # by the C++ library, at all sizes
PRODUCTS = ("nmu", "nmru")


class _Product(torch.autograd.Function):
    """`reference.nmu_forward` with gradients that are products of the other factors.

    torch's own gradient of a product divides by the factor, and is nan where that is inf. change:
    rounds what each out adds to the gradient of x: the outs' sum may cancel, and so may the
    gradients of x and 1 / x.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, change: Change | None = None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.change = change
        return reference.nmu_forward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        grad_x, grad_weight = reference.nmu_backward(grad, x, weight)
        if ctx.change:
            outs = zip(grad.split(1, -1), weight.split(1, -2), strict=True)
            grad_x = sum(
                (ctx.change(reference.nmu_backward(g, x, w)[0]) for g, w in outs),
                torch.zeros_like(x),
            )
        return grad_x, grad_weight, None


def _by_products(
    x: Tensor, clipped: Tensor, weight: Tensor, options: dict[str, Any], change: Change | None
) -> Tensor:
    """`reference.nmu` and `reference.nmru` of their factors, made of `_Product`.

    The cosine of separate signs has the weight, the factors have the clipped one.
    """
    if options.get("sign", "product") == "product":
        return _Product.apply(x, clipped, change)
    return (
        _Product.apply(x.abs(), clipped, change)
        * (math.pi * ((x < 0).to(x.dtype) @ weight.mT)).cos()
    )


def _npu(
    x: Tensor, weight_re: Tensor, weight_im: Tensor | None = None, gate: Tensor | None = None,
    *, change: Change, eps: float, gate_gradient: str = "clip",
) -> Tensor:  # fmt: skip
    """`reference.npu` with its exponent and its phase rounded.

    The gradients of a weight add what rows give. Rows of one phase give what cancels, until each
    phase is rounded: that of 64 equal terms is -51.9 in both of two rows, and its cosine -.098.
    """
    g = None if gate is None else reference.clip_gate(gate, gate_gradient)
    p, q, *_ = reference.exponents(x, weight_re, weight_im, g, eps)
    return change(p).exp() * change(q).cos()


def _mixed(h: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """``g a + (1 - g) b`` with ``g = sigmoid(h)``, without the cancellation of 1 - g."""
    return logsigmoid(h).exp() * a + logsigmoid(-h).exp() * b


def _nalu(
    x: Tensor, weight: Tensor, mask: Tensor, gate_weight: Tensor, gate_bias: Tensor | None = None,
    *, eps: float = 1e-8,
) -> Tensor:  # fmt: skip
    """`reference.nalu`, by `_mixed`."""
    h = reference.nau(x, gate_weight, clip=False)
    h = h if gate_bias is None else h + (gate_bias if h.dim() == 2 else gate_bias.unsqueeze(-2))
    logarithms = (x.abs() + eps).log()
    return _mixed(h, reference.nac(x, weight, mask), reference.nac(logarithms, weight, mask).exp())


def _inalu(
    x: Tensor, weight_add: Tensor, mask_add: Tensor, weight_mul: Tensor, mask_mul: Tensor,
    gate_weight: Tensor, *, eps: float = 1e-7, omega: float = 20.0,
    product: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:  # fmt: skip
    """`reference.inalu`, by `_mixed`."""
    e = reference.nac(x.abs().clamp(min=eps).log(), weight_mul, mask_mul).clamp(max=omega)
    s = product(x.detach().sign(), (weight_mul.tanh() * mask_mul.sigmoid()).abs())
    h = reference.nau(x, gate_weight, clip=False)
    return _mixed(h, reference.nac(x, weight_add, mask_add), e.exp() * s)


EXACT: dict[str, Callable[..., Tensor]] = {"nalu": _nalu, "inalu": _inalu}


def _overflow(x: Tensor, weight: Tensor, upstream: Tensor, dtype: torch.dtype) -> bool:
    """Whether a product of some of a row's factors and its upstream gradient may overflow."""
    x, weight = x.double(), weight.double()
    weight = weight.unsqueeze(-3) if weight.dim() > 2 else weight
    f = weight * x.unsqueeze(-2) + (1 - weight)  # [K, B, O, I]
    size = f.abs().clamp(min=1).log().sum(-1) + upstream.double().abs().clamp(min=1).log().reshape(
        f.shape[:-1]
    )
    return bool((size > math.log(torch.finfo(dtype).max / 64)).any())


class Printed:
    """Prints as the call that makes it, without what is as by default."""

    def __repr__(self) -> str:
        changed = [f for f in dataclasses.fields(self) if getattr(self, f.name) != default(f)]
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in changed)})"


def default(f: dataclasses.Field[Any]) -> Any:
    return f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default


@dataclass(frozen=True, repr=False)
class Call(Printed):
    """One call and its gradients.

    special: pairs of a tensor's name ("x", "upstream", or one of the layer's) and the kind of
    special values in it. needs: which tensors require a gradient, one bit each, x first.
    """

    layer: str
    batch: tuple[int, ...] = (1,)
    in_features: int = 1
    out_features: int = 1
    models: int | None = None
    shared: bool = False
    without: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float64"
    layouts: tuple[str, ...] = (
        "contiguous",
    ) * 3  # of x, the layer's tensors, the upstream gradient
    special: tuple[tuple[str, str], ...] = ()
    needs: int = 63
    route: str = "fast"
    isa: str | None = None
    threads: int = 1
    seed: int = 0

    def _tensors(self, record: OperatorRecord, memory: Memory) -> dict[str, Tensor | None]:
        """The input and the layer's tensors; None for one that this call leaves out."""
        models = () if self.models is None else (self.models,)
        size = {"O": self.out_features, "I": self.in_features, "J": 2 * self.in_features}
        layout_x, layout_weights, _ = self.layouts
        shape = (*(() if self.shared else models), *self.batch, self.in_features)
        tensors: dict[str, Tensor | None] = {"x": memory.tensor("x", shape, layout_x, -2, 2)}
        # Exponents shrink with the number of inputs, as Glorot's do: results stay finite.
        shrunk = min(1.0, 3 / max(1, self.in_features) ** 0.5)
        for name, letters in record.shapes.items():
            low, high = (-0.25, 1.25) if name == "gate" else record.weight_range
            scale = shrunk if low < 0 and name != "gate" else 1.0
            shape = (*models, *(size[letter] for letter in letters))
            drawn = memory.tensor(name, shape, layout_weights, low * scale, high * scale)
            tensors[name] = None if name in self.without else drawn
        return tensors

    def problem(self) -> Problem:
        record, memory = RECORDS[self.layer], Memory(self.dtype, self.seed, self.special)
        dtype = torch.float64 if self.dtype == "float64" else torch.float32  # of the arithmetic
        models = () if self.models is None else (self.models,)
        tensors = self._tensors(record, memory)
        shape = (*models, *self.batch, self.out_features)
        upstream = memory.tensor("upstream", shape, self.layouts[2], -1, 1)

        def function(leaves: Tensors) -> tuple[Tensor, ...]:
            return (record.function(*(leaves.get(name) for name in tensors), **self.options),)

        def flat(x: Tensor) -> Tensor:
            if self.models is None or self.shared:
                return x
            return x.reshape(self.models, math.prod(self.batch), self.in_features)

        def formula(
            leaves: Tensors,
            product: Callable[..., Tensor] | None = None,
            change: Change | None = None,
        ) -> tuple[Tensor, ...]:
            x, *rest = (leaves.get(name) for name in tensors)
            assert x is not None
            if product and self.layer in PRODUCTS:
                factors = self._factors(flat(x), rest[0])
                y = _by_products(*factors, rest[0], self.options, change)
                return (y.reshape(upstream.shape),)
            more: dict[str, Any] = {"eps": torch.finfo(dtype).eps} if self.layer == "npu" else {}
            more |= {"product": product} if self.layer == "inalu" else {}
            of_layer = EXACT.get(self.layer, record.reference) if product else record.reference
            if change and self.layer == "npu":
                of_layer = functools.partial(_npu, change=change)
            y = of_layer(flat(x), *rest, **{**more, **self.options})
            return (y.reshape(upstream.shape),)

        def exact(leaves: Tensors, change: Change | None = None) -> tuple[Tensor, ...]:
            return formula(leaves, _Product.apply, change)

        present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        needs = tuple(name for bit, name in enumerate(present) if self.needs >> bit & 1)
        overflows = self.layer in PRODUCTS and _overflow(
            *self._factors(flat(present["x"]), present["weight"]), upstream, dtype
        )
        run = (self.layer in FUSED, self.route, self.isa, self.threads, overflows)
        inexact = exact if self.layer in (*PRODUCTS, "npu") else None
        return Problem(
            function, exact, formula, present, [upstream], memory.storages, needs, dtype, *run,
            inexact,
        )  # fmt: skip

    def _factors(self, x: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
        """What the products of NMU and NMRU are of: `_Product`'s operands."""
        assert weight is not None
        if self.layer == "nmru":
            eps = self.options.get("eps", 0.0)
            x = torch.cat((x, (x + eps if eps else x).reciprocal()), -1)
        return x, weight.clamp(0, 1) if self.options.get("clip", True) else weight


# ---- drawing --------------------------------------------------------------------------------
#
# Few draws of whole numbers: Hypothesis takes longer for a draw than a small layer does for a call.
# 0 is the simplest.


def size_table(greatest: int) -> list[int]:
    """Every size, small ones and those at the edges of vectors more often, in order."""
    edges = [edge for edge in EDGES if edge <= greatest]
    return sorted(
        [
            *range(greatest + 1),
            *[*range(min(6, greatest))] * 10,
            *[*range(min(20, greatest))] * 4,
            *edges * 5,
        ]
    )


def pick(number: int, *choices: Sequence[Any]) -> list[Any]:
    """One of each from one number below the product of their lengths; the first ones for 0."""
    chosen = []
    for choice in choices:
        number, index = divmod(number, len(choice))
        chosen.append(choice[index])
    return chosen


def below(*choices: Sequence[Any]) -> st.SearchStrategy[int]:
    return st.integers(0, math.prod(len(choice) for choice in choices) - 1)


def special_in(names: Sequence[str], numbers: tuple[int, ...]) -> tuple[tuple[str, str], ...]:
    """Pairs for the numbers below 0."""
    pairs = [(name, kind) for name in names for kind in KINDS]
    return tuple(dict.fromkeys(pairs[-number % len(pairs)] for number in numbers if number < 0))


SPECIAL = st.tuples(st.integers(-48, 48), st.integers(-48, 48))
SEEDS = st.integers(0, 2**16)


def calls(
    layers: tuple[str, ...] = tuple(OPTIONS),
    *,
    routes: tuple[str, ...] = ("fast", "operators"),
    isas: tuple[str | None, ...] = ISAS,
    threads: tuple[int, ...] = (1, 2, 3, 4),
    greatest: int = 300,
    max_work: int = 200_000,
) -> st.SearchStrategy[Call]:
    """Calls whose sizes are at most `greatest` and have a product of at most about `max_work`."""
    table = size_table(greatest)
    models = [(None, False), *((k, shared) for k in (1, 2, 3, 4, 0) for shared in (False, True))]
    forms = [(-1,), (-1, 1), (1, -1), (2, -1), (-1, 2), (0, -1), ()]
    kinds = [
        (name, w, o) for name in layers for w in RECORDS[name].variants() for o in OPTIONS[name]
    ]
    runs = (routes, threads, isas)

    def make(
        kind: int, dtype: str, form: int, sizes: list[int], layout: int, special: tuple[int, ...], needs: int, run: int,
        seed: int,
    ) -> Call:  # fmt: skip
        layer, without, options = kinds[kind]
        (k, shared), batch = pick(form, models, forms)
        rows, in_features, out_features = (table[size] for size in sizes)
        room = max(1, max_work // max(1, k or 1))
        out_features = min(out_features, room)
        in_features = min(in_features, max(1, room // max(1, out_features)))
        rows = min(rows, max(1, room // max(1, out_features * in_features)))
        if shared or (k is not None and not batch):
            batch = (-1,)
        batch = tuple(rows if size < 0 else size for size in batch)
        route, number, isa = pick(run, *runs)
        values = special_in(("x", "upstream", *RECORDS[layer].shapes), special)
        layouts = tuple(pick(layout, *[LAYOUTS] * 3))
        return Call(
            layer, batch, in_features, out_features, k, shared, without, options, dtype, layouts,
            values, 63 - needs, route, isa, number, seed,
        )  # fmt: skip

    size = st.integers(0, len(table) - 1)
    return st.builds(
        make, below(kinds), st.sampled_from(DTYPES), below(models, forms),
        st.tuples(size, size, size), below(*[LAYOUTS] * 3), SPECIAL,
        st.just(0) | st.integers(0, 63), below(*runs), SEEDS,
    )  # fmt: skip
