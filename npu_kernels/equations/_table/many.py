"""Many tables of measurements, each with its own equation."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from npu_kernels._common.checks import warn
from npu_kernels._jobs.checkpoint import digest
from npu_kernels._jobs.driver import Progress
from npu_kernels.equations._rows import as_labels, separated
from npu_kernels.equations._table.arguments import as_array, check_jobs, column_names
from npu_kernels.equations._table.estimator import NPURegressor

BATCH = 4  # problems for each process at once, where joblib's backend gives results as a list only


@dataclass(frozen=True)
class Outcome:
    """The outcome of a problem.

    Attributes:
        name: the key or index of the problem.
        model: the fitted `NPURegressor`; None if the fit raised an error.
        error: this exception.
    """

    name: Any
    model: NPURegressor | None
    error: Exception | None = None

    @property
    def complete(self) -> bool:
        """False if Ctrl-C ended the search. The model then has the best equation so far."""
        return self.model is None or all(table.complete for table in self.model._tables())

    def __str__(self) -> str:
        if self.model is None:
            return (
                f"{self.name}: {type(self.error).__name__}: {str(self.error).partition(chr(10))[0]}"
            )
        best = self.model.best_equation_
        return f"{self.name}: " + "; ".join(map(str, best if isinstance(best, list) else [best]))


class Outcomes(list[Outcome]):
    """A list with an `Outcome` for each problem; ``str()`` has a line for each.

    outcomes: the outcomes, in the order of the problems. complete: False if Ctrl-C ended the fit;
    some outcomes are then missing, or have the equations of an interrupted search.
    """

    def __init__(self, outcomes: Sequence[Outcome] = (), complete: bool = True) -> None:
        super().__init__(outcomes)
        self.complete = complete

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self), self.complete)

    def __str__(self) -> str:
        return "\n".join(map(str, self))


def fit_many(
    problems: Any,
    model: NPURegressor | None = None,
    n_jobs: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> Outcomes:
    """Fit an `NPURegressor` to each of many problems.

    An error in one problem does not affect the other problems.

    Args:
        problems: a sequence, or a dict whose keys become names. Each problem is ``(X, y)``,
            ``(X, y, sample_weight)`` or ``(X, y, sample_weight, groups)``, as for
            `NPURegressor.fit`.
        model: an `NPURegressor` with the settings for all problems. Clones of it are fitted, the
            model is not. With an integer random_state the results are the same in each call.
        n_jobs: number of processes, as in joblib; joblib's backends for Dask and Ray use further
            machines. If a worker dies, Dask fits its problem on another worker; with other backends
            a warning reports it, and the problems that were being fitted are fitted again, one at a
            time. If the worker of a problem dies again, its outcome has this error.
        checkpoint: a folder, created if it does not exist, with a file for each problem. The same
            call continues from it, also with more problems or in another order.
        progress: whether progress is shown on stderr; None: if stderr is a terminal.

    Returns an `Outcomes` list: for each problem its name, and the fitted model or the error. Ctrl-C
    returns the outcomes so far. Raises TypeError and ValueError for invalid arguments, OSError if
    the folder cannot be created.

        >>> import numpy as np
        >>> from npu_kernels.equations import NPURegressor, fit_many
        >>> X = np.random.default_rng(0).uniform(0.5, 3, (100, 2))
        >>> problems = {"p": (X, 3 * X[:, 0] / X[:, 1]), "q": (X, X[:, 0] ** 2)}
        >>> print(fit_many(problems, NPURegressor(random_state=0)))
        p: y = 3*x0/x1
        q: y = x0**2
    """
    named = _problems(problems)
    model = NPURegressor() if model is None else model
    if not isinstance(model, NPURegressor):
        raise TypeError(f"fit_many: model must be a NPURegressor, got {type(model).__name__}")
    check_jobs("fit_many", n_jobs)
    folder = None if checkpoint is None else Path(checkpoint)
    if folder is not None:
        folder.mkdir(exist_ok=True)
    shown = sys.stderr.isatty() if progress is None else progress
    outcomes: dict[int, Outcome] = {}
    complete = True
    with Progress("fit_many", max(1, len(named)), sys.stderr, shown) as bar:
        try:
            for number, outcome in _fitted(named, model, folder, n_jobs):
                outcomes[number] = outcome
                bar.update(len(outcomes))
                complete = complete and outcome.complete
        except KeyboardInterrupt:
            complete = False
    return Outcomes([outcomes[number] for number in sorted(outcomes)], complete)


def _problems(problems: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Names and data; checks that there are two to four parts."""
    if isinstance(problems, Mapping):
        named = list(problems.items())
    elif isinstance(problems, Sequence) and not isinstance(problems, str):
        named = list(enumerate(problems))
    else:
        raise TypeError(
            "fit_many: problems must be a sequence or a dict of (X, y), "
            f"got {type(problems).__name__}"
        )
    for name, data in named:
        if not isinstance(data, (tuple, list)) or not 2 <= len(data) <= 4:
            raise ValueError(
                "fit_many: problems must be (X, y), (X, y, sample_weight) or (X, y, sample_weight, "
                f"groups), got another one for {name!r}"
            )
    return named


def _fitted(
    named: list[tuple[Any, tuple[Any, ...]]],
    model: NPURegressor,
    folder: Path | None,
    n_jobs: int | None,
) -> Iterator[tuple[int, Outcome]]:
    """Numbers and outcomes as they come; none after the one that Ctrl-C has ended."""
    if n_jobs in (None, 1):
        for number, (name, data) in enumerate(named):
            outcome = _one(name, data, model, folder)
            yield number, outcome
            if not outcome.complete:
                return
        return
    from joblib import effective_n_jobs

    remaining = dict(enumerate(named))
    while remaining:
        try:
            for number, outcome in _in_parallel(dict(remaining), model, folder, n_jobs):
                del remaining[number]
                yield number, outcome
        except Exception as error:  # the backend's own, since `_one` keeps those of a fit
            # Jobs begin in their order, so these are the first that have not ended.
            at_work = dict(itertools.islice(remaining.items(), effective_n_jobs(n_jobs)))
            names = ", ".join(str(name) for name, _ in at_work.values())
            warn(
                f"fit_many: a worker was lost ({type(error).__name__}); the next problems are "
                f"fitted again, one at a time: {names}"
            )
            for number, problem in at_work.items():
                del remaining[number]
                try:
                    yield from _in_parallel({number: problem}, model, folder, n_jobs)
                except Exception as again:
                    yield number, Outcome(problem[0], None, again)


def _in_parallel(
    named: dict[int, tuple[Any, tuple[Any, ...]]],
    model: NPURegressor,
    folder: Path | None,
    n_jobs: int | None,
) -> Iterator[tuple[int, Outcome]]:
    """Numbers and outcomes by joblib's backend, as they come."""
    from joblib import Parallel, delayed, effective_n_jobs

    jobs = [
        delayed(_numbered)(number, name, data, model, folder)
        for number, (name, data) in named.items()
    ]
    try:
        parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    except ValueError:  # the backend gives lists only, as ray's does: some at a time, for Ctrl-C
        with Parallel(n_jobs=n_jobs) as parallel:
            size = BATCH * effective_n_jobs(n_jobs)
            for start in range(0, len(jobs), size):
                yield from parallel(jobs[start : start + size])
        return
    with contextlib.closing(parallel(jobs)) as outcomes:
        yield from outcomes


def _numbered(number: int, *problem: Any) -> tuple[int, Outcome]:
    return number, _one(*problem)


def _one(name: Any, data: tuple[Any, ...], model: NPURegressor, folder: Path | None) -> Outcome:
    """Fit one problem."""
    from sklearn.base import clone

    try:
        X, y, weight, groups = (*data, None, None)[:4]
        path = None if folder is None else folder / f"{_digest(X, y, weight, groups)}.pt"
        fitted = clone(model).fit(X, y, weight, groups=groups, checkpoint=path)
    except Exception as error:  # of any kind: the other problems shall be fitted
        return Outcome(name, None, error)
    return Outcome(name, fitted)


def _digest(X: Any, y: Any, weight: Any, groups: Any) -> str:
    """A text that is another one for other data."""
    names = column_names(X), column_names(y)
    X, labels = separated("fit_many", X, groups)
    numbers = [as_array(part) for part in (X, y, weight) if part is not None]
    tensors = [torch.from_numpy(np.array(part, dtype=np.float64, order="C")) for part in numbers]
    texts = [] if labels is None else [str(as_labels(labels).tolist())]
    return digest(*tensors, *names, *texts)
