"""Checkpoints that hold something else: each is an error, and nothing is touched."""

import copy
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NAU, NPU, fit, ode
from npu_kernels._jobs import files
from npu_kernels.training import SteppedSchedule
from tests.jobs.runs import chain, trained
from tests.support.fits import SHORT, hard, interrupted_fit
from tests.support.time_series import T, known, predators

pytestmark = pytest.mark.filterwarnings("ignore:.*makes its steps one by one")


Change = Callable[[dict[str, Any]], Any]


class Work:
    """Work that was interrupted: its file, a call that continues it, and what must not change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begin()

    def begin(self) -> None:
        raise NotImplementedError

    def go_on(self) -> Any:
        raise NotImplementedError

    def moved(self) -> list[Any]:
        raise NotImplementedError


class Training(Work):
    def begin(self) -> None:
        trained(self.path, 20)
        self.model = chain()
        self.generator, self.schedule = (
            torch.Generator().manual_seed(3),
            SteppedSchedule(1e-3, 1.0, step=15),
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)

    def go_on(self) -> Any:
        penalties = {"l1": self.schedule, "madsen": 0.1}
        return trained(
            self.path,
            model=self.model,
            generator=self.generator,
            optimizer=self.optimizer,
            penalties=penalties,
        )

    def moved(self) -> list[Any]:
        state = self.optimizer.state_dict()
        tensors = [p.detach().clone() for p in self.model.parameters()]
        return [*tensors, self.generator.get_state(), repr(state), repr(self.schedule)]


class Fitting(Work):
    AT = 7

    def begin(self) -> None:
        x, y = hard()
        self.model = nn.Sequential(NPU(2, 3, num_models=8), NAU(3, 1, num_models=8, clip=False))
        with interrupted_fit(self.AT):
            fit(copy.deepcopy(self.model), x, y, recipe=SHORT, checkpoint=self.path)

    def go_on(self) -> Any:
        return fit(self.model, *hard(), recipe=SHORT, checkpoint=self.path)

    def moved(self) -> list[Any]:
        return [p.detach().clone() for p in self.model.parameters()]


class Refining(Fitting):
    AT = 35


class Equations(Work):
    def begin(self) -> None:
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
        from npu_kernels.equations import NPURegressor
        from tests.support.laws import uniform

        self.x = uniform(2, 60)
        self.regressor = NPURegressor(random_state=0, max_terms=1, output_powers=(1,), starts=4)
        self.go_on()
        self.regressor = NPURegressor(random_state=0, max_terms=1, output_powers=(1,), starts=4)

    def go_on(self) -> Any:
        return self.regressor.fit(self.x, self.x[:, 0] / self.x[:, 1], checkpoint=self.path)

    def moved(self) -> list[Any]:
        return [hasattr(self.regressor, "equations_")]


class Series(Work):
    def begin(self) -> None:
        pytest.importorskip("scipy.optimize", reason="scipy is not installed")
        self.model = known()
        self.go_on()

    def go_on(self) -> Any:
        return ode.fit(
            self.model, T, predators(T), start="model", simplify=False, checkpoint=self.path
        )

    def moved(self) -> list[Any]:
        return [p.detach().clone() for p in self.model.parameters()]


def of(*path: Any, to: Any) -> Change:
    """Change an entry; to: a value, or a function of the old one. A number stands for that key in
    order."""

    def change(state: dict[str, Any]) -> None:
        inner: Any = state
        for part in path[:-1]:
            inner = inner[_key(inner, part)]
        key = _key(inner, path[-1])
        inner[key] = to(inner[key]) if callable(to) else to

    return change


def _key(inner: Any, part: Any) -> Any:
    return (
        list(inner)[part]
        if isinstance(inner, dict) and isinstance(part, int) and part not in inner
        else part
    )


def without(*path: Any) -> Change:
    def change(state: dict[str, Any]) -> None:
        inner: Any = state
        for part in path[:-1]:
            inner = inner[_key(inner, part)]
        del inner[path[-1]]

    return change


def item(number: int, to: Any) -> Callable[[Any], Any]:
    """A list or tuple with another entry."""

    def change(old: Any) -> Any:
        parts = list(old)
        parts[number] = to(parts[number]) if callable(to) else to
        return type(old)(parts)

    return change


def longer(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor[:1]])


def beyond(tensor: Tensor) -> Tensor:
    return tensor + 10**6


def points(change: Any) -> Change:
    """Change the points of a search, which are the first part of its step."""
    return of("kept", "0.0", to=item(0, change))


def sums(change: Any) -> Change:
    return of("kept", "0.1", to=item(0, change))


def descent(part: int, change: Any) -> Change:
    return of("kept", 0, to=item(part, change))


def points_of_one_input(old: list[Tensor]) -> list[Tensor]:
    return [*(t[..., :1] for t in old[:2]), *old[2:]]


def points_of_twice_the_terms(old: list[Tensor]) -> list[Tensor]:
    return [*(t.repeat(1, 2, 1) for t in old[:2]), old[2].repeat(1, 2), old[3]]


COUNTS = {
    "huge": 10**12, "negative": -1, "a bool": True, "a float": 3.0, "text": "3", "nothing": None,
}  # fmt: skip
CRAFTED: dict[type[Work], dict[str, Change]] = {
    Training: {
        **{f"done is {name}": of("done", to=value) for name, value in COUNTS.items()},
        "done beyond the end": of("done", to=61),
        "without done": without("done"),
        "without parameters": without("parameters"),
        "something more": lambda state: state.update(more=1),
        "parameters are a dict": of("parameters", to={}),
        "a parameter less": of("parameters", to=lambda old: old[:-1]),
        "the last parameter is larger": of("parameters", to=item(-1, longer)),
        "a parameter of another dtype": of("parameters", to=item(-1, torch.Tensor.double)),
        "a parameter that broadcasts": of("parameters", to=item(0, lambda old: old[:1, :1])),
        "a parameter is a number": of("parameters", to=item(-1, 0.0)),
        "a sparse parameter": of("parameters", to=item(-1, torch.Tensor.to_sparse)),
        "a buffer more": of("buffers", to=[torch.zeros(1)]),
        "losses of another length": of("losses", to=lambda old: old[:-1]),
        "losses are None": of("losses", to=None),
        "the optimiser is a list": of("optimizer", to=[]),
        "the optimiser has no groups": without("optimizer", "param_groups"),
        "a group more": of("optimizer", "param_groups", to=lambda old: old * 2),
        "a group without lr": without("optimizer", "param_groups", 0, "lr"),
        "a group of other parameters": of("optimizer", "param_groups", 0, "params",
                                          to=[0, 1, 2, 7]),
        "lr is text": of("optimizer", "param_groups", 0, "lr", to="0.01"),
        "lr is beyond the floats": of("optimizer", "param_groups", 0, "lr", to=10**400),
        "params of a tensor": of("optimizer", "param_groups", 0, "params",
                                 to=item(0, torch.tensor([1, 2]))),
        "params of a bool": of("optimizer", "param_groups", 0, "params", to=item(0, False)),
        "a fingerprint by numbers": of("fingerprint", to=lambda old: {**old, 5: "x" * 300}),
        "a fingerprint by tuples": of("fingerprint", to=lambda old: {**old, (1, 2): "x" * 300}),
        "a fingerprint of a tensor": of("fingerprint", "torch", to=torch.tensor([1, 2])),
        "lr is infinite": of("optimizer", "param_groups", 0, "lr", to=math.inf),
        "three betas": of("optimizer", "param_groups", 0, "betas", to=(0.9, 0.9, 0.9)),
        "betas are a number": of("optimizer", "param_groups", 0, "betas", to=0.9),
        "the optimiser's state is a list": of("optimizer", "state", to=[]),
        "a state of a parameter that is not there": of("optimizer", "state",
                                                       to=lambda old: {**old, 9: old[0]}),
        "a parameter without a state": without("optimizer", "state", 2),
        "a state without a moment": without("optimizer", "state", 0, "exp_avg"),
        "a state with something more": lambda state: state["optimizer"]["state"][0].update(more=1),
        "a moment of another size": of("optimizer", "state", 0, "exp_avg", to=lambda old: old[:1]),
        "a moment of another dtype": of("optimizer", "state", 3, "exp_avg_sq",
                                        to=torch.Tensor.double),
        "a moment is a number": of("optimizer", "state", 0, "exp_avg", to=0.0),
        "a step of several numbers": of("optimizer", "state", 0, "step", to=torch.zeros(2)),
        "a negative step": of("optimizer", "state", 0, "step", to=torch.tensor(-3.0)),
        "a generator's state of another size": of("generator", to=lambda old: old[:-8]),
        "a generator's state without sense": of("generator", to=torch.zeros_like),
        "no generator's state": of("generator", to=None),
        "a schedule less": of("schedules", to={}),
        "a schedule of another penalty": of("schedules", to=lambda old: {"madsen": old["l1"]}),
        "a schedule without beta": without("schedules", "l1", "beta"),
        "a schedule's beta is text": of("schedules", "l1", "beta", to="1"),
        "a schedule's beta is beyond its end": of("schedules", "l1", "beta", to=2.0),
        "a schedule before its beginning": of("schedules", "l1", "iteration", to=-1),
        "no fingerprint": of("fingerprint", to=3),
        "a fingerprint of other things": of("fingerprint", to=lambda old: {**old, "more": "1"}),
    },
    Fitting: {
        **{f"done is {name}": of("done", to=value) for name, value in COUNTS.items()},
        "stage beyond the end": of("stage", to=10**12),
        "another stage": of("stage", to=2),
        "at beyond its stage": of("at", to=20),
        "_moved is negative": of("_moved", to=-1),
        "_moved is huge": of("_moved", to=10**12),
        "without pool": without("pool"),
        "something more": lambda state: state.update(more=1),
        "seconds are nan": of("seconds", to=math.nan),
        "seconds are text": of("seconds", to="1"),
        "a history of nothing": of("history", to=[{}]),
        "a history is text": of("history", to="none"),
        "scores of another size": of("scores", to=lambda old: old[:, :-1]),
        "scores of another dtype": of("scores", to=torch.Tensor.float),
        "solved is a list": of("solved", to=[False]),
        "the pool is a list": of("pool", to=[]),
        "a pool without scores": without("pool", "score"),
        "no search": of("search", to=None),
        "a search without its moments": without("search", "moments"),
        "a search of a tensor less": of("search", "tensors", to=lambda old: old[:-1]),
        "a search's tensor of another size": of("search", "tensors",
                                                to=item(-1, lambda old: old[..., :-1])),
        "a search's moments of other models": of("search", "moments", to=item(-1, longer)),
        "a search of another dtype": of("search", "squares", to=item(0, torch.Tensor.double)),
        "a search of another problem": of("search", "problem", to=beyond),
        "a search's start of another length": of("search", "start", to=longer),
        "a search's step is huge": of("search", "step", to=10**12),
        "a refinement in the search": of("refinement", to={}),
        "an origin in the search": of("origin", to=[1]),
    },
    Refining: {
        "a history less": of("history", to=lambda old: old[:-1]),
        "a history's error is text": of("history", 0, "worst", to="1"),
        "a search in the refinement": of("search", to={}),
        "no refinement": of("refinement", to=None),
        "a refinement without start": without("refinement", "start"),
        "a refinement of wider models": of("refinement", "start",
                                           to=lambda old: torch.cat([old, old], 1)),
        "a refinement that holds others": of("refinement", "held", to=longer),
        "a refinement of other problems": of("refinement", "problem", to=beyond),
        "a refinement of float32": of("refinement", "start", to=torch.Tensor.float),
        "a solver without x": without("refinement", "solver", "x"),
        "a solver of another size": of("refinement", "solver", "end_g", to=longer),
        "a solver of another dtype": of("refinement", "solver", "f", to=torch.Tensor.float),
        "a solver's end that is not there": of("refinement", "solver", "low", to=beyond),
        "a solver's negative pairs": of("refinement", "solver", "pairs", to=lambda old: old - 100),
        "a solver's status": of("refinement", "solver", "status", to=beyond),
        "a solver's purpose": of("refinement", "solver", "purpose", to=beyond),
        "a rounding that is not there": of("rounding", to=beyond),
        "a rounding of other models": of("rounding", to=longer),
        "an origin that is not there": of("origin", to=beyond),
        "a candidate of another problem": of("pool", "problem", to=beyond),
        "a candidate of another start": of("pool", "start", to=lambda old: old - 100),
        "a candidate of another kind": of("pool", "kind", to=beyond),
        "a candidate's denominator": of("pool", "denominator", to=beyond),
        "a candidate that is not finite": of("pool", "score", to=lambda old: old * math.nan),
        "candidates of other sizes": of("pool", "flat", to=lambda old: old[:, :-1]),
        "candidates without a base": of("pool", "base", to=lambda old: old[:-1]),
    },
    Equations: {
        **{f"seed is {name}": of("seed", to=value) for name, value in COUNTS.items()},
        "another seed": of("seed", to=5),
        "without seed": without("seed"),
        "kept is a list": of("kept", to=[]),
        "kept by numbers": of("kept", to=lambda old: {3: old["0.0"]}),
        "a step is a number": of("kept", "0.0", to=3),
        "points of a part less": points(lambda old: old[:-1]),
        "points of another dtype": points(item(0, torch.Tensor.float)),
        "points of other coefficients": points(item(2, longer)),
        "points of other inputs": points(points_of_one_input),
        "points of other terms": points(points_of_twice_the_terms),
        "no state of a generator": of("kept", "0.0", to=item(1, "{}")),
        "a generator's state that is no JSON": of("kept", "0.0", to=item(1, "{")),
        "sums instead of points": lambda state: state["kept"].update({"0.0": state["kept"]["0.1"]}),
        "points instead of sums": lambda state: state["kept"].update({"0.1": state["kept"]["0.0"]}),
        "a sum of a part less": sums(lambda old: old[:-1]),
        "a sum of other inputs": sums(lambda old: [*(t[:, :1] for t in old[:3]), *old[3:]]),
        "a sum of other coefficients": sums(item(3, longer)),
        "a sum's exponents are nan": sums(item(0, lambda old: old * math.nan)),
        "a sum's flags are numbers": sums(item(2, torch.Tensor.double)),
        "a sum's loss is negative": sums(item(4, -5.0)),
        "a sum's leave-one-out error is negative": sums(item(5, -5)),
        "a sum's cost is text": sums(item(-1, "0")),
        "two sums where one is expected": of("kept", -1, to=lambda old: old * 2),
    },
    Series: {
        "seconds are negative": of("seconds", to=-1.0),
        "seconds are infinite": of("seconds", to=math.inf),
        "seconds are a bool": of("seconds", to=True),
        "without kept": without("kept"),
        "kept is None": of("kept", to=None),
        "kept by numbers": of("kept", to={3: ()}),
        "a descent is a number": of("kept", 0, to=3),
        "a descent of a part less": of("kept", 0, to=lambda old: old[:-1]),
        "a descent of more numbers": descent(0, lambda old: torch.cat([old, old], 1)),
        "a descent of more laws": of("kept", 0, to=lambda old: (*map(longer, old[:3]), *old[3:])),
        "a descent of another dtype": descent(0, torch.Tensor.float),
        "another error": descent(2, longer),
        "another damping": descent(1, lambda old: old[0]),
        **{f"steps are {name}": descent(4, value) for name, value in COUNTS.items()},
        **{f"steps without a gain are {name}": descent(3, n) for name, n in COUNTS.items()},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> Callable[[type[Work]], Work]:
    """Each kind of work, begun once."""
    begun: dict[type[Work], tuple[Work, bytes]] = {}

    def work(kind: type[Work]) -> Work:
        if kind not in begun:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                first = kind(tmp_path_factory.mktemp(kind.__name__) / "the.file")
            begun[kind] = first, first.path.read_bytes()
        job, content = begun[kind]
        job.path.write_bytes(content)
        return job

    return work


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, changes in CRAFTED.items() for name in changes],
    ids=str,
)
def test_a_crafted_file_is_an_error(
    kind: type[Work], name: str, works: Callable[[type[Work]], Work]
) -> None:
    """It names the file, and nothing is touched: model, optimiser, generator, schedules, file."""
    job = works(kind)
    state = files.load(job.path, [])
    CRAFTED[kind][name](state)
    files.save(job.path, state)
    content, before = job.path.read_bytes(), job.moved()
    with pytest.raises(
        ValueError, match=r"(run|fit): checkpoint must be .*the\.file': (lbfgs: )?it.*"
    ):
        job.go_on()
    for old, new in zip(before, job.moved(), strict=True):
        assert torch.equal(old, new) if isinstance(old, Tensor) else old == new
    assert job.path.read_bytes() == content


@pytest.mark.parametrize("kind", CRAFTED)
def test_an_unchanged_file_is_none(kind: type[Work], works: Callable[[type[Work]], Work]) -> None:
    job = works(kind)
    files.save(job.path, files.load(job.path, []))
    copy.copy(job).go_on()
