"""Cases that failed once. They are run before any drawn one, where the library has their
instruction set: one for this processor alone has no other."""

from typing import TypeVar

from tests.fuzz.layers import Call
from tests.fuzz.rollouts import Rollout
from tests.fuzz.training import History, Loss
from tests.support.machine import ISAS

_Case = TypeVar("_Case", Call, Rollout)


def here(cases: list[_Case]) -> list[_Case]:
    return [case for case in cases if case.isa in (None, *ISAS)]


_NEGATED = ("contiguous", "contiguous", "negated")  # an upstream gradient that is not plain
CALLS: list[Call] = [
    Call("npu", batch=(1, 2), layouts=_NEGATED),
    Call("npu", batch=(), in_features=2, out_features=2, layouts=_NEGATED),
    Call("nmu", batch=(2, 3), models=2, layouts=_NEGATED),
    Call("inalu", batch=(2, 3), models=2, layouts=_NEGATED),
    # The upstream gradient and the last seven factors overflow; all twelve do not.
    Call("nmu", (6,), 12, 2, dtype="float32", layouts=("permuted", "contiguous", "contiguous"),
         isa="baseline", seed=1, special=(("x", "huge"), ("upstream", "whole"))),
    # x / x in a product: the gradient of x, 0, is a difference of rounded products.
    Call("nmru", (1, 39), 2, models=3, dtype="float32",
         layouts=("permuted", "contiguous", "contiguous"), special=(("x", "tiny"),),
         isa="baseline"),
    Call("nmru", (31, 2), 31, 49, models=4, options={"sign": "separate"}, dtype="float32",
         isa="baseline", seed=28, layouts=("permuted", "expanded", "stepped"),
         special=(("upstream", "whole"),)),
    # 494 terms of a phase.
    Call("nmru", (1, 1), 247, models=2, options={"sign": "separate"}, dtype="float32",
         isa="baseline", layouts=("contiguous", "expanded", "overlapping")),
    # A phase of 1e153, whose half change looked linear by luck: the oracle's fault.
    Call("npu", (4,), 47, 47, models=3, shared=True, special=(("weight_im", "any"),),
         isa="baseline"),
    # A result, and a gradient, near the greatest number: sums on the way to others overflow.
    Call("nalu", (3,), 143, 142, dtype="float32", special=(("x", "huge"), ("weight", "whole")),
         isa="baseline"),
    Call("nac", (296,), 2, 17, models=3, shared=True, dtype="float32",
         layouts=("permuted", "contiguous", "contiguous"), special=(("x", "huge"),),
         isa="baseline", seed=1),
    # An exponent that is a difference of sums of 1e38.
    Call("npu", (37,), 109, 31, without=("gate",), dtype="float32",
         special=(("weight_im", "huge"),), isa="baseline"),
    # A gate of the least subnormal number: pi times it is three of them.
    Call("npu", in_features=5, out_features=4, dtype="float32", isa="baseline",
         layouts=("permuted", "contiguous", "contiguous"),
         special=(("x", "huge"), ("gate", "tiny"))),
    # A gate near 1, whose 1 - g cancels in the formula in float64.
    Call("nalu", in_features=193, out_features=4, special=(("gate_weight", "whole"),),
         isa="baseline"),
    # Two rows of one phase, -51.9, that cancel in a weight's gradient.
    Call("npu", (2,), 121, 17, models=4, without=("weight_im", "gate"), dtype="float16",
         isa="baseline", layouts=("overlapping", "expanded", "contiguous")),
    # 1 / x overflows in products with other factors: gradients of the formula are inf, the kernel's
    # are numbers.
    Call("nmru", (300,), 3, isa="baseline", layouts=("permuted", "contiguous", "contiguous"),
         special=(("x", "tiny"),)),
]  # fmt: skip
TURNS: list[list[Call]] = []
LOSSES: list[Loss] = [
    Loss(shape=(0,), models=True, route="operators"),  # no models at all
    Loss(shape=(0, 3), models=True, shared=True),
]
_PLAIN, _INFINITE = (0, "plain", "none"), (0, "infinite", "none")
HISTORIES: list[History] = [
    History(
        shapes=((4,),), options={"betas": (0.0, 0.0)}, steps=(_PLAIN, (0, "huge", "none"), _PLAIN)
    ),
    History(shapes=((4,),), options={"betas": (0.5, 0.9)}, steps=(_PLAIN, _INFINITE)),
    History(
        shapes=((4,),), steps=(_PLAIN, _INFINITE, _PLAIN)
    ),  # no weight decay: a nan of the parameter stays there
    History(shapes=((4,),), options={"maximize": 1}, steps=(_PLAIN,) * 3),
    History(shapes=((4,),), options={"amsgrad": 1}, steps=(_PLAIN,) * 3),
    # Gradients that cancel in the mean.
    History(
        shapes=((1,), (0,), (0, 5)),
        layouts=("offset", "contiguous", "offset"),
        dtype="float32",
        steps=(_PLAIN, (2, "expanded", "none"), _PLAIN),
        seed=1049,
    ),
]
# Units beside the last multiply the logarithm of an infinite state by 0.
ROLLOUTS: list[Rollout] = [
    Rollout(without=("weight_im",), special=(("u0", "infinite"),)),
    Rollout(d=5, h=3, models=2, steps=8, dt=0.1, method="midpoint",
            layouts=("offset", "permuted", "expanded"), special=(("weight_im", "any"),),
            isa="baseline", seed=264),
    Rollout(without=("weight_im",), derivatives=True, clip=False, isa="baseline",
            special=(("u0", "infinite"),)),
]  # fmt: skip
INTERPRETED: list[Call] = [
    # A gradient from results that were rounded to float16.
    Call("npu", out_features=2, dtype="float16", route="triton"),
    # A weight whose bfloat16 is subnormal, and below 0: Triton's interpreter read -0.
    Call("nmru", (3,), 3, 4, dtype="bfloat16", special=(("weight", "tiny"),), route="triton"),
    # A gate of -0 in bfloat16: Triton's interpreter found it less than 0.
    Call("npu", (13,), dtype="bfloat16", layouts=("offset", "contiguous", "contiguous"),
         special=(("gate", "whole"),), route="triton"),
    # Terms of 2.3 in all whose changes cancelled in both draws: the oracle's fault.
    Call("npu", (13,), 3, 9, models=1, shared=True, dtype="bfloat16",
         layouts=("overlapping", "contiguous", "stepped"), special=(("gate", "whole"),),
         route="triton", seed=1557),
    # A weight above 1 with separate signs, whose cosine is not of the clipped one: the oracle's fault.
    Call("nmru", in_features=3, out_features=7, options={"sign": "separate"},
         layouts=("stepped", "offset", "offset"), special=(("x", "huge"),), route="triton",
         seed=65536),
    # A gate with strides, in the operator itself: the gradients of its closed entries were others'.
    Call("npu", in_features=16, layouts=("negated", "stepped", "offset"), route="triton"),
]  # fmt: skip
