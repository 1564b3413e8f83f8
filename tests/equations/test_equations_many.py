"""Many problems at once: each has its own equation or error; processes, checkpoints, Ctrl-C."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import joblib

from npu_kernels.equations import NPURegressor, Outcomes, fit_many
from tests.support.building import ROOT
from tests.support.equations import uniform
from tests.support.moments import at_call, at_line, calls_of

X = uniform(2, 60)
MODEL = NPURegressor(random_state=0, max_terms=1, n_init=4, target_powers=(1,))
PROBLEMS = {
    "quotient": (X, 3 * X[:, 0] / X[:, 1]),
    "text": (X, np.full(60, "a")),
    "square": (X, X[:, 0] ** 2, np.ones(60)),
    "unknown": (X * np.nan, np.ones(60)),
}
LINES = [
    "quotient: y = 3*x0/x1",
    "text: ValueError: ",
    "square: y = x0**2",
    "unknown: ValueError: Input X contains NaN.",
]


def same(outcomes):
    lines = str(outcomes).splitlines()
    return len(lines) == len(LINES) and all(map(str.startswith, lines, LINES))


def test_errors_stay_with_their_problems(tmp_path):
    outcomes = fit_many(PROBLEMS, MODEL)
    assert same(outcomes)
    assert outcomes.complete
    assert not hasattr(MODEL, "best_equation_")
    assert [outcome.error is None for outcome in outcomes] == [True, False, True, False]
    assert outcomes[0].model.predict(X) == pytest.approx(PROBLEMS["quotient"][1])
    assert [outcome.name for outcome in fit_many(list(PROBLEMS.values())[:2], MODEL)] == [0, 1]
    assert fit_many([], MODEL) == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_processes_give_the_same():
    assert same(fit_many(PROBLEMS, MODEL, n_jobs=2))


def test_a_folder_of_checkpoints(tmp_path):
    """New problems alone are searched, in whatever order."""
    folder = tmp_path / "equations"
    assert same(fit_many(PROBLEMS, MODEL, checkpoint=folder))
    assert len(list(folder.iterdir())) == 2
    turned = dict(reversed([*PROBLEMS.items(), ("new", (X, X[:, 1] ** 3))]))
    outcomes = fit_many(turned, MODEL, checkpoint=folder)
    assert str(outcomes).splitlines()[0] == "new: y = x1**3"
    assert same(Outcomes(outcomes[:0:-1]))
    assert len(list(folder.iterdir())) == 3
    with pytest.raises(FileNotFoundError):
        fit_many(PROBLEMS, MODEL, checkpoint=tmp_path / "absent" / "equations")


def test_a_checkpoint_is_found_by_the_data_of_its_problem(tmp_path):
    """Not by its name, which for a sequence is the place, and need not be that of a file."""
    square, cube = (X, X[:, 0] ** 2), (X, X[:, 1] ** 3)
    fit_many([square, cube], MODEL, checkpoint=tmp_path)
    assert str(fit_many([cube, square], MODEL, checkpoint=tmp_path)) == "0: y = x1**3\n1: y = x0**2"
    assert str(fit_many({"a/b": cube}, MODEL, checkpoint=tmp_path)) == "a/b: y = x1**3"
    assert len(list(tmp_path.iterdir())) == 2


def test_groups_of_a_problem(tmp_path):
    """Labels are the fourth part; a checkpoint of other labels is another one."""
    labels = np.repeat(["a", "b"], 30)
    y = np.where(labels == "a", 2.0, 5.0) * X[:, 0] ** 2
    problems = [(X, y, None, labels), (X, y)]
    outcomes = fit_many(problems, MODEL, checkpoint=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert outcomes[0].model.predict(X, groups=labels) == pytest.approx(y)
    assert outcomes[0].model.best_equation_.labels == ("a", "b")
    assert str(fit_many(problems, MODEL, checkpoint=tmp_path)) == str(outcomes)
    assert len(list(tmp_path.iterdir())) == 2


def test_interrupt_gives_what_was_found():
    """Ctrl-C before a problem has any equation, and within its search."""
    options = {"max_terms": 2, "n_init": 4, "target_powers": (1,), "ratios": False}
    model = NPURegressor(random_state=0, noise="additive", **options)
    y = X[:, 0] + X[:, 1] ** 2 + 0.1 * (uniform(1, 60, seed=4)[:, 0] - 1.75)
    with at_line(3), pytest.warns(UserWarning, match="was interrupted"):
        outcomes = fit_many([(X, y), (X, 2 * y), (X, 3 * y)], model)
    assert not outcomes.complete
    assert [outcome.complete for outcome in outcomes] == [True, False]
    with at_call(1.1 * calls_of(lambda: fit_many([(X, y)], model))):
        outcomes = fit_many([(X, y), (X, 2 * y), (X, 3 * y)], model)
    assert not outcomes.complete
    assert [outcome.complete for outcome in outcomes] == [True]


FIRST_IS_SLOW = """
import signal
import sys
import time
import numpy as np
from npu_kernels.equations import NPURegressor, fit_many
signal.signal(signal.SIGINT, signal.default_int_handler)
rng = np.random.default_rng(0)
X = rng.uniform(0.5, 3, (100, 2))
slow = rng.uniform(0.5, 3, (20000, 6))
problems = [(slow, np.sin(slow).sum(1) + rng.standard_normal(20000))]
problems += [(X, k * X[:, 0] ** 2) for k in range(1, 9)]
found = fit_many(problems, NPURegressor(random_state=0), n_jobs=2, checkpoint=sys.argv[1])
print(found.complete, all(one.error is None for one in found), *[one.name for one in found])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no process groups")
def test_interrupted_processes_keep_what_was_found_beside_a_slow_problem(tmp_path):
    """Ctrl-C in a terminal reaches all processes at once."""
    folder = tmp_path / "equations"
    with subprocess.Popen(
        [sys.executable, "-c", FIRST_IS_SLOW, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        try:
            for _ in range(1200):
                if process.poll() is not None or (
                    folder.exists() and len(list(folder.iterdir())) >= 5
                ):
                    break
                time.sleep(0.1)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, err
    is_complete, has_no_error, *names = out.split()
    assert (is_complete, has_no_error) == ("False", "True")
    assert {"1", "2"} <= set(names)
    # Between two jobs a process of joblib's has no handler of ours and says so: "Process
    # LokyProcess-1:", traceback.
    assert not re.search(r"(?<!Process-\d:\n)Traceback", err)


def test_progress(capsys):
    fit_many(PROBLEMS, MODEL, progress=True)
    assert "fit_many: 100 %" in capsys.readouterr().err
    fit_many(PROBLEMS, MODEL, progress=False)
    assert capsys.readouterr().err == ""


class _Read:
    """Measurements that act when they are read."""

    def __init__(self, act):
        self.act = act

    def __array__(self, dtype=None, copy=None):
        self.act()
        return X

    def __len__(self):
        return len(X)


def _deadly():
    """Measurements that end the process that reads them, unless it is this one."""
    process = os.getpid()
    return _Read(lambda: os.getpid() == process or os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_lost_worker_loses_no_other_problem():
    """A problem that loses its worker is fitted again; at the second time that is its error."""
    y = 3 * X[:, 0] / X[:, 1]
    problems = dict.fromkeys(range(5), (X, y))
    problems[2] = (_deadly(), y)
    with pytest.warns(UserWarning, match=r"^fit_many: a worker was lost \(TerminatedWorkerError\)"):
        outcomes = fit_many(problems, MODEL, n_jobs=2)
    assert [outcome.name for outcome in outcomes] == list(problems)
    assert outcomes.complete
    assert [outcome.name for outcome in outcomes if outcome.error is not None] == [2]
    assert all(str(o).endswith("y = 3*x0/x1") for o in outcomes if o.error is None)


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_backends_of_further_machines(backend):
    """Their workers give what this process gives."""
    with contextlib.ExitStack() as stack:
        if backend == "dask":
            distributed = pytest.importorskip("distributed", reason="Dask is not installed")
            cluster = stack.enter_context(
                distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None)
            )
            stack.enter_context(distributed.Client(cluster))
        else:
            ray = pytest.importorskip("ray", reason="Ray is not installed")
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
            stack.callback(ray.shutdown)
            pytest.importorskip("ray.util.joblib").register_ray()
        stack.enter_context(joblib.parallel_config(backend=backend))
        assert same(fit_many(PROBLEMS, MODEL, n_jobs=2))


class _Lists(joblib.parallel.ThreadingBackend):
    """A backend without generators, such as ray's."""

    supports_return_generator = False


@pytest.fixture
def _lists():
    joblib.register_parallel_backend("lists", _Lists)
    with joblib.parallel_config(backend="lists"):
        yield
    del joblib.parallel.BACKENDS["lists"]


@pytest.mark.usefixtures("_lists")
def test_a_backend_without_generators(monkeypatch):
    """Some problems at a time; Ctrl-C keeps those that were done before."""
    plain, sizes = joblib.Parallel.__call__, []

    def call(self, jobs):
        sizes.append(len(jobs))
        if len(sizes) == 5:
            raise KeyboardInterrupt
        return plain(self, jobs)

    monkeypatch.setattr(joblib.Parallel, "__call__", call)
    assert same(fit_many(PROBLEMS, MODEL, n_jobs=2))
    nine = fit_many([PROBLEMS["square"]] * 9, MODEL, n_jobs=2)
    assert nine.complete
    assert str(nine).splitlines() == [f"{k}: y = x0**2" for k in range(9)]
    outcomes = fit_many([PROBLEMS["square"]] * 9, MODEL, n_jobs=2)
    assert sizes == [4, 8, 1, 8, 1]
    assert len(outcomes) == 8
    assert not outcomes.complete


def test_equal_numbers_of_other_columns(tmp_path):
    """They are problems of their own, with files of their own."""
    pandas = pytest.importorskip("pandas")
    y = X[:, 0] * X[:, 1]
    named = [
        (pandas.DataFrame(X, columns=["a", "b"]), y),
        (pandas.DataFrame(X, columns=["c", "d"]), y),
        (X, pandas.Series(y, name="z")),
        (X, y),
    ]
    lines = "0: y = a*b\n1: y = c*d\n2: z = x0*x1\n3: y = x0*x1"
    for _ in range(2):
        assert str(fit_many(named, MODEL, checkpoint=tmp_path)) == lines
    assert len(list(tmp_path.iterdir())) == len(named)
