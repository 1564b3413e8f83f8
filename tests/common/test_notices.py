"""Every warning points to the user's line, from however deep."""

import importlib.util
import itertools
import json
import os
import re
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import needs_fast_path
from tests.support.building import ROOT, run_forked
from tests.support.loops import new_notices

# The user's file. The warning of each function must point to its line with the comment "here".
CODE = """
import numpy as np, torch
import npu_kernels as nk
from npu_kernels import ode, debug, training
from npu_kernels.equations import NPURegressor
from npu_kernels.fitting import Recipe, fit_batch

X = torch.rand(60, 2, generator=torch.Generator().manual_seed(0)) + 1
Y = X[:, :1] * X[:, 1:]
QUICK = Recipe(rungs=((2, 1.0),), refine=2, settle=1, denominators=(1,))
TIMES = torch.linspace(0, 2, 12, dtype=torch.float64)

class Mine(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Sequential(nk.RealNPU(2, 2))
    def forward(self, x):
        return self.layer(x)  # here

def layer():
    nk.RealNPU(2, 1)(X)  # here

def function():
    nk.functional.npu(X, X[:3])  # here

def sequential():
    model = torch.nn.Sequential(torch.nn.Sequential(nk.RealNPU(2, 2)), nk.NAU(2, 2))
    model(X)  # here

@torch.no_grad()
def without_gradients():
    torch.nn.Sequential(nk.RealNPU(2, 2))(X)  # here

def in_a_users_module():
    torch.nn.Sequential(Mine())(X)

def decorated_layer():
    torch.no_grad()(nk.RealNPU(2, 1))(X)  # here

def compiled():
    torch.compile(torch.nn.Sequential(nk.RealNPU(2, 2)), backend="eager")(X)  # here

def graph():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("0", (x,)))
    torch.fx.GraphModule(torch.nn.Sequential(nk.RealNPU(2, 2)), graph)(X)  # here

def one_by_one():
    model = torch.nn.Sequential(nk.NAU(2, 2), torch.nn.Linear(2, 2))
    training.run(model, X, X, steps=2, lr=0.01, progress=False)  # here

def decorated_run():
    model = torch.nn.Sequential(nk.NAU(2, 2), torch.nn.Linear(2, 2))
    nk.use_backend("reference")(training.run)(model, X, X, steps=2, lr=0.01, progress=False)  # here

def overflow():
    model = torch.nn.Sequential(nk.RealNPU(2, 1))
    model[0].weight_re.data.fill_(1e4)
    with debug.detect_nonfinite(model, "warn"):
        model(X)  # here

def overflow_of_gradients():
    model = torch.nn.Sequential(nk.NAU(2, 1))
    with debug.detect_nonfinite(model, "warn"):
        loss = model(X).sum() * float("inf")
        loss.backward()  # here

def _stiff():
    model = torch.nn.Sequential(nk.RealNPU(2, 2), nk.NAU(2, 2, clip=False)).double()
    with torch.no_grad():
        model[0].weight_re.copy_(torch.eye(2))
        model[0].gate.fill_(1)
        model[1].weight.copy_(torch.diag(torch.tensor([-1.0, -1000.0])))
    return model

def stiff():
    ode.rollout(_stiff(), torch.ones(2).double(), t=[0.0, 0.1, 1.0], method="dopri5", atol=1e-6)  # here

def stiff_weights():
    power, nau = _stiff()
    weights = power.weight_re, None, power.gate, nau.weight
    ode.integrate(torch.ones(2).double(), *weights, t=[0.0, 1.0], method="dopri5", atol=1e-6, clip=False)  # here

def _regressor(**options):
    return NPURegressor(max_terms=1, target_powers=[1], n_init=4, random_state=0, **options)

def constant_column():
    x = X.double().numpy().copy()
    x[:, 1] = 2
    _regressor().fit(x, x[:, 0])  # here

def few_rows():
    _regressor().fit(X[:20].double().numpy(), Y[:20, 0].double().numpy())  # here

def undefined_prediction():
    model = _regressor().fit(X.double().numpy(), 1 / X[:, 0].double().numpy())
    model.predict(np.zeros((1, 2)))  # here

def in_a_pipeline():
    from sklearn.pipeline import make_pipeline
    make_pipeline(_regressor()).fit(X[:20].double().numpy(), Y[:20, 0].double().numpy())  # here

def by_joblib():
    from joblib import Parallel, delayed
    Parallel()([delayed(nk.functional.npu)(X, X[:3])])  # here

def held_out():
    nk.fit(nk.RealNPU(2, 1, num_models=2), X[:3], Y[:3], recipe=QUICK, progress=False)  # here

def saved_run(path):
    model = torch.nn.Sequential(nk.RealNPU(2, 2), nk.NAU(2, 1))
    training.run(model, X, Y, steps=4, lr=0.01, checkpoint=path, progress=False)  # here

def saved_fit(path):
    nk.fit(nk.RealNPU(2, 1, num_models=2), X, Y, recipe=QUICK, progress=False, checkpoint=path)  # here

def saved_regressor(path):
    _regressor().fit(X.double().numpy(), Y[:, 0].double().numpy(), checkpoint=path)  # here

def saved_series(path):
    model = torch.nn.Sequential(nk.RealNPU(1, 1, num_models=2), nk.NAU(1, 1, num_models=2))
    ode.fit(model, TIMES, 1 / (1 + TIMES / 2), progress=False, checkpoint=path)  # here
"""

SLOW = "npu_kernels: cpu tensors are computed with the slower eager implementation"
FEW = "NPURegressor: .* rows are "
LOST = "checkpoint .* could not be written"
OTHERS = {
    "one_by_one": "npu_kernels: training.run makes its steps one by one",
    "decorated_run": "npu_kernels: training.run makes its steps one by one",
    "overflow": "npu: 0 .RealNPU.: output 0 is inf",
    "overflow_of_gradients": "npu: 0 .NAU.: the gradient",
    "stiff": "rollout: .* steps",
    "stiff_weights": "integrate: .* steps",
    "constant_column": "NPURegressor: constant columns",
    "few_rows": FEW,
    "in_a_pipeline": FEW,
    "undefined_prediction": "NPURegressor: 1 predictions are infinite",
    "held_out": "fit: the loss is of",
}


def _load(folder: Path, name: str, code: str = CODE) -> ModuleType:
    path = folder / f"{name}.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module of a user whose package's name begins as ours and torch's do."""
    return _load(tmp_path_factory.mktemp("user"), "npu_kernels_torch_user")


def _line(user: ModuleType, definition: str) -> tuple[str, int]:
    """The file and the line of a definition to which its warnings must point."""
    assert user.__file__ is not None
    lines = Path(user.__file__).read_text().splitlines()
    first = next(
        i for i, line in enumerate(lines) if re.match(rf"(def|class) {definition}\b", line)
    )
    line = next(i for i in range(first, len(lines)) if lines[i].endswith("# here")) + 1
    return user.__file__, line


def _points(user: ModuleType, name: str, message: str, *arguments: Any) -> None:
    """Call a function of the user's, all of whose warnings with this message point to its line."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        getattr(user, name)(*arguments)
    ours = [warning for warning in seen if re.search(message, str(warning.message))]
    assert ours, [str(warning.message) for warning in seen]
    assert {(warning.filename, warning.lineno) for warning in ours} == {_line(user, name)}


# In forks of a process, each of which calls one of the user's functions, as the notice is given
# once in a process.
FORKS = """
import json, os, sys, warnings
import torch
if sys.argv[1]:
    torch.__version__ = sys.argv[1]
sys.path.insert(0, sys.argv[2])
import npu_kernels_torch_user as user
for name in sys.argv[3:]:
    if os.fork():
        os.wait()
        continue
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        getattr(user, name)()
    print(json.dumps([name, *([str(w.message), w.filename, w.lineno] for w in seen)]), flush=True)
    os._exit(0)
"""
OF_THE_BACKEND = {
    **dict.fromkeys(
        ("layer", "function", "sequential", "without_gradients", "decorated_layer", "compiled",
         "graph", "by_joblib"),
    ),
    "in_a_users_module": "Mine",  # the user's innermost line counts
}  # fmt: skip


def _of_processes(user: ModuleType, package: Path, version: str, names: list[str]) -> list[str]:
    """The texts of the notices, one for each function, each of which points to its line."""
    assert user.__file__ is not None
    folder = str(Path(user.__file__).parent)
    run = run_forked(FORKS, version, folder, *names, cwd=package)
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert [name for name, *_ in answers] == names, run.stderr
    texts = []
    for name, *seen in answers:
        ((text, *line),) = [w for w in seen if w[0].startswith("npu_kernels:")]
        assert tuple(line) == _line(user, OF_THE_BACKEND[name] or name), name
        texts.append(text)
    return texts


def test_of_the_backend(user: ModuleType, bare_package: Path) -> None:
    """The library is missing; anything may call the layer."""
    pytest.importorskip("joblib")
    for text in _of_processes(user, bare_package, "", list(OF_THE_BACKEND)):
        assert text.startswith(SLOW)


@needs_fast_path
def test_of_the_fast_path(user: ModuleType) -> None:
    (text,) = _of_processes(user, ROOT, "2.10.0", ["sequential"])
    assert "the fast path from Python to the kernels is missing: there is no fast_path-" in text


@pytest.mark.parametrize("name", OTHERS)
def test_of_all_others(name: str, user: ModuleType) -> None:
    if OTHERS[name].startswith("NPU"):
        pytest.importorskip("sklearn")
    with new_notices():
        _points(user, name, OTHERS[name])


@pytest.mark.parametrize("name", ["saved_run", "saved_fit", "saved_regressor", "saved_series"])
def test_of_checkpoints(
    name: str, user: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"saved_regressor": "sklearn", "saved_series": "scipy"}.get(name, "torch"))

    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    minutes = itertools.count(0, 60)  # it is saved at each opportunity
    monkeypatch.setattr(time, "monotonic", lambda: next(minutes))
    monkeypatch.setattr(os, "fsync", refuse)
    _points(user, name, LOST, tmp_path / "state")


def test_each_line_is_warned_of_by_the_users_filters(user: ModuleType) -> None:
    """Filters by module see the user's: "default" warns of a line once, "error" raises."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("default", "rollout: ", module="npu_kernels_torch_user$")
        user.stiff()
        user.stiff()
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=r"^rollout: .* steps"):
            user.stiff()


def test_one_place_warns() -> None:
    """It alone says where a warning points."""
    pattern = r"stacklevel|warnings\.warn|from warnings import"
    sources = (ROOT / "npu_kernels").rglob("*.py")
    assert sum(bool(re.search(pattern, path.read_text(encoding="utf-8"))) for path in sources) == 1
