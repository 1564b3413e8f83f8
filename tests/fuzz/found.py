"""Cases that failed once. They are run before any drawn one."""

from __future__ import annotations

from tests.fuzz.layers import Call
from tests.fuzz.rollouts import Rollout
from tests.fuzz.training import History, Loss

_NEGATED = ("contiguous", "contiguous", "negated")  # an upstream gradient that is not plain
CALLS: list[Call] = [
    Call("npu", batch=(1, 2), layouts=_NEGATED),
    Call("npu", batch=(), in_features=2, out_features=2, layouts=_NEGATED),
    Call("nmu", batch=(2, 3), models=2, layouts=_NEGATED),
    Call("inalu", batch=(2, 3), models=2, layouts=_NEGATED),
    # A phase of 1e153, whose half change looked linear by luck: the oracle's fault.
    Call("npu", (4,), 47, 47, models=3, shared=True, special=(("weight_im", "any"),), isa="baseline"),
]
TURNS: list[list[Call]] = []
LOSSES: list[Loss] = [
    Loss(shape=(0,), models=True, way="operators"),  # no models at all
    Loss(shape=(0, 3), models=True, shared=True),
]
_PLAIN, _INFINITE = (0, "plain", "none"), (0, "infinite", "none")
HISTORIES: list[History] = [
    History(shapes=((4,),), options={"betas": (0.0, 0.0)}, steps=(_PLAIN, (0, "huge", "none"), _PLAIN)),
    History(shapes=((4,),), options={"betas": (0.5, 0.9)}, steps=(_PLAIN, _INFINITE)),
    History(shapes=((4,),), steps=(_PLAIN, _INFINITE, _PLAIN)),  # no weight decay: a nan of the parameter stays there
    History(shapes=((4,),), options={"maximize": 1}, steps=(_PLAIN,) * 3),
    History(shapes=((4,),), options={"amsgrad": 1}, steps=(_PLAIN,) * 3),
]
ROLLOUTS: list[Rollout] = []
INTERPRETED: list[Call] = []  # way="triton"
