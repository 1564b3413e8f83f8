"""Checkpoints whose values have another form: each is an error, and nothing is touched."""

import copy
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
        from tests.support.equations import uniform

        self.x = uniform(2, 60)
        self.regressor = NPURegressor(random_state=0, max_terms=1, target_powers=(1,), n_init=4)
        self.go_on()
        self.regressor = NPURegressor(random_state=0, max_terms=1, target_powers=(1,), n_init=4)

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
            self.model, T, predators(T), init="model", simplify=False, checkpoint=self.path
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


CRAFTED: dict[type[Work], dict[str, Change]] = {
    Training: {
        "done is text": of("done", to="3"),
        "without done": without("done"),
        "something more": lambda state: state.update(more=1),
        "parameters are a dict": of("parameters", to={}),
        "a parameter less": of("parameters", to=lambda old: old[:-1]),
        "the last parameter is larger": of("parameters", to=item(-1, longer)),
        "a parameter of another dtype": of("parameters", to=item(-1, torch.Tensor.double)),
        "a parameter that broadcasts": of("parameters", to=item(0, lambda old: old[:1, :1])),
        "a parameter is a number": of("parameters", to=item(-1, 0.0)),
        "a buffer more": of("buffers", to=[torch.zeros(1)]),
        "losses of another length": of("losses", to=lambda old: old[:-1]),
        "losses are None": of("losses", to=None),
        "the optimizer is a list": of("optimizer", to=[]),
        "the optimizer has no groups": without("optimizer", "param_groups"),
        "a group more": of("optimizer", "param_groups", to=lambda old: old * 2),
        "a group without lr": without("optimizer", "param_groups", 0, "lr"),
        "lr is text": of("optimizer", "param_groups", 0, "lr", to="0.01"),
        "three betas": of("optimizer", "param_groups", 0, "betas", to=(0.9, 0.9, 0.9)),
        "no generator's state": of("generator", to=None),
        "no fingerprint": of("fingerprint", to=3),
        "a fingerprint by numbers": of("fingerprint", to=lambda old: {**old, 5: "x" * 300}),
        "a fingerprint of other things": of("fingerprint", to=lambda old: {**old, "more": "1"}),
    },
    Fitting: {
        "stage is text": of("stage", to="1"),
        "without a judge": without("judge"),
        "something more": lambda state: state.update(more=1),
        "holdout errors of another size": of("judge", "holdout_errors", to=lambda old: old[:, :-1]),
        "holdout errors of another dtype": of("judge", "holdout_errors", to=torch.Tensor.float),
        "a pool without holdout errors": without("judge", "pool", "holdout_error"),
        "a search without its moments": without("search", "moments"),
        "a search of a tensor less": of("search", "tensors", to=lambda old: old[:-1]),
        "a search's tensor of another size": of(
            "search", "tensors", to=item(-1, lambda old: old[..., :-1])
        ),
        "a search of another dtype": of("search", "squares", to=item(0, torch.Tensor.double)),
    },
    Refining: {
        "a refinement without start": without("refinement", "start"),
        "a refinement of wider models": of(
            "refinement", "start", to=lambda old: torch.cat([old, old], 1)
        ),
        "a solver of another size": of("refinement", "solver", "end_g", to=longer),
        "candidates of other sizes": of("judge", "pool", "flat", to=lambda old: old[:, :-1]),
    },
    Equations: {"without seed": without("seed"), "without results": without("kept")},
    Series: {"without seconds": without("seconds"), "something more": of("more", to=1)},
}


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
    """It names the file, and nothing is touched: model, optimizer, generator, schedules, file."""
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
