"""From time series to their law: many starts, the trajectories fitted, the best made simpler."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from npu_kernels._common import checks
from npu_kernels._common.checks import check_flag, check_whole
from npu_kernels._jobs.checkpoint import Checkpoint, digest
from npu_kernels._jobs.driver import Progress, interruptible, terminable
from npu_kernels.equations._numbers import MOST_DENOMINATOR
from npu_kernels.equations._series import data as series
from npu_kernels.equations._series.data import NAME, Series
from npu_kernels.equations._series.diagnostics import advice, poor_fit
from npu_kernels.equations._series.known import Known, read_known
from npu_kernels.equations._series.laws import Job
from npu_kernels.equations._series.outliers import Outcome, found_without, said
from npu_kernels.equations._series.result import SeriesFitResult, finished
from npu_kernels.equations._series.search import ALL_STEPS, Search
from npu_kernels.equations._series.sensitivity import (
    FIXED,
    IMPLICIT,
)
from npu_kernels.equations._series.starts import sized
from npu_kernels.layers import NAU, RealNPU
from npu_kernels.ode._loop import layers_of
from npu_kernels.ode._methods import AUTO

NEW_WEIGHTS = (
    f"{NAME}: init='model' begins with the model's own weights, which are those of a new layer: "
    "its gates are 0.5; set them to a law's, or take init='search'"
)
INSTALL = f"{NAME} needs numpy and scipy: pip install 'npu_kernels[sklearn]'"


@torch.inference_mode(False)
def fit(
    model: nn.Module,
    t: Any,
    u: Any,
    *,
    u0: Any = "fit",
    inputs: Any = None,
    sigma: Any = None,
    observed: Sequence[int] | None = None,
    names: Sequence[str] | None = None,
    init: str = "search",
    simplify: bool = True,
    max_denominator: int = 4,
    exponents: tuple[Any, Any] | None = None,
    integer_exponents: bool | Sequence[str] = False,
    required_terms: Any = None,
    stoichiometry: Any = None,
    conserved: Any = None,
    signs: str = "any",
    method: str = AUTO,
    seed: int = 0,
    progress: bool | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> SeriesFitResult:
    """The law ``u' = NAU(NPU(u))`` behind time series, as an equation with confidence intervals.

    Args:
        model: ``nn.Sequential(RealNPU(D, h, num_models=K), NAU(h, D, num_models=K))``: D states, at
            most h products of powers, K starts. Only its sizes matter (but see `init`), and it is
            not changed. Exponents are real, gates 0 or 1, and coefficients of any size, whatever
            the layers' own are.
        t: times ``[M]``, in any order and at any distances.
        u: the states at these times ``[M, D]``, nan where one is missing. Tensors, arrays,
            DataFrames, whose columns become names. Several series: lists of t and u, or
            ``u [S, M, D]`` with ``t [M]`` or ``[S, M]``.
        u0: the states at the first times: "fit" if they are unknown, or ``[D]`` or ``[S, D]``, with
            nan for unknown ones. Where fitted ones would hide what a law misses, those of a smooth
            curve may be taken; the report says so.
        inputs: known columns v(t), such as a forcing, a temperature or a dose: ``(times, values)``,
            values ``[T]`` or ``[T, J]``, linear between the times, which must cover t. One that is
            switched needs the times just before and behind each edge. A list of such pairs has
            those of each series. The model's NPU then has D + J in_features, the
            states first: products of powers contain the inputs, and no equation has them.
        sigma: standard deviations of the errors of u: a number, one for each column, or one for
            each value; none below the value's rounding in float64 (where it is 0: its column's).
            None: each column has one of its own, which is estimated. "proportional": in proportion
            to the states, by an unknown factor for each column; logarithms are fitted where all
            values are above 0. Elsewhere the size of a smooth curve counts, at least a tenth of the
            column's root mean square.
        observed: which states the columns of u are, if not all; the others were not measured.
        names: of the D states, or of the D states and the inputs.
        init: "search" for a law of any form, or "model": from the model's own exponents and
            coefficients. Zeros among them remain 0. Of a layer whose weights have
            requires_grad=False the numbers stay as they are, whatever else is said here: none is
            estimated.
        simplify: remove terms and exponents that the data do not need, and make exponents
            fractions, by the Bayesian information criterion. False: estimate all numbers.
        max_denominator: of these fractions, at most 64.
        exponents: their bounds ``(low, high)``, each a number, or one for each state and, behind
            them, each input; None: -6 to 6.
        integer_exponents: True for whole exponents only, or the names of states and inputs that
            have those.
        required_terms: products that the law has, exponents ``[n, D]``, with inputs ``[n, D + J]``,
            or text such as ``["S*I"]``; the search finds the others.
        stoichiometry: a matrix N ``[D, R]`` with ``u' = N v``: its columns are reactions, which
            change several states at one rate. Each rate is a sum of the products.
        conserved: sums ``[m, D]`` of the states that do not change: ``[[1, 1, 1]]`` for ``S + I +
            R``. The law is then one of flows between states.
        signs: "nonnegative" for coefficients (with stoichiometry or conserved: rates) that are not
            below 0, in a model of ``init="model"`` too; "model", with ``init="model"``: they keep
            the model's signs, in which its n_init must agree.
        method: of integration: "rk4", "kvaerno5" (implicit, for stiff laws), or "auto": rk4, and
            kvaerno5 for laws that 64 steps from sample to sample do not solve, for starts of
            ``init="model"`` whose trajectories rk4 does not follow, or where no start has a finite
            trajectory by rk4.
        seed: of the starts, at least 0.
        progress: show the progress on stderr; None: if that is a terminal.
        checkpoint: a file. If it exists, the fit continues from it, with the same bits as without
            an interruption. It is written in the first seconds, every half a minute, at the end,
            and before SIGTERM ends the process.

    Values that are far from the law of all others, at most a fifth of a column's, are left out, as
    if they were nan: a warning and the `diagnostics` name them. `left_out` says which they are.

    Returns a `SeriesFitResult`, and warns with a `PoorFitWarning` if its `diagnostics` is not good:
    its message says what to try. Ctrl-C ends the search, saves it if there is a checkpoint, and
    gives the best law until then (`complete` is False), or raises KeyboardInterrupt if there is
    none.

    The method, in float64: the series are smoothed, and sets of products of powers that explain the
    states or their slopes best become the starts. Levenberg-Marquardt fits each stretch from node
    to node, then growing parts of the trajectory, then all of it, for all starts at once by the
    fused time loop; the derivatives are those of its adjoint, chained along the nodes. Sets of
    products are chosen and fitted again along the trajectory of the best law. Steps are
    classic Runge-Kutta ones, halved until their error is a tenth of that of the measurements, or
    implicit ones of a tolerance that is made smaller until then. A law that no steps solve so is no
    result.

    States whose values are (nearly) all positive are amounts: their first states are not below 0.
    States of both signs get integer exponents, none below 0 if they pass 0 in a series. With
    ``init="model"`` they are the ones nearest to the model's, or its own, whole or not, where they
    stay.

    Raises ValueError and TypeError for arguments that do not fit, such as dates, ValueError for a
    file that is a damaged checkpoint or one of another fit (other data, model, options or versions
    of torch or npu_kernels), OSError if it cannot be written, ImportError without scipy,
    RuntimeError if no start has a finite trajectory.

        >>> import torch
        >>> from npu_kernels import NAU, RealNPU, ode
        >>> t = torch.linspace(0, 4, 20, dtype=torch.float64)
        >>> u = 1 / (1 + 0.5 * t)  # of u' = -0.5 u**2
        >>> model = torch.nn.Sequential(RealNPU(1, 1, num_models=4), NAU(1, 1, num_models=4))
        >>> found = ode.fit(model, t, u, names=["c"])
        >>> print(found.equation)
        c' = -0.5*c**2
    """
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise ImportError(INSTALL) from error
    _check(init, simplify, method)
    max_denominator = check_whole(
        NAME, "max_denominator", max_denominator, maximum=MOST_DENOMINATOR
    )
    seed = check_whole(NAME, "seed", seed, 0, bounded=False)
    data, facts, power, nau = _read(model, t, u, u0, inputs, sigma, observed, names)
    searching = init == "search"
    if init == "model" and _is_new(power):
        checks.warn(NEW_WEIGHTS)
    rules = read_known(
        exponents, integer_exponents, required_terms, stoichiometry, conserved, signs,
        data.names, power.out_features, searching, data.inputs,
    )  # fmt: skip
    determined = {"model": _identity(power, nau, init), **facts}
    determined |= {"init": repr(init), "simplify": repr(simplify)}
    determined |= _known_facts(rules, stoichiometry, conserved)
    determined |= {"max_denominator": repr(max_denominator), "seed": repr(seed)}
    determined |= {"method": repr(method)}
    job = Job(NAME, ALL_STEPS, determined)
    job.checkpoint = None if checkpoint is None else Checkpoint(job, checkpoint)
    shown = sys.stderr.isatty() if progress is None else progress
    with (
        interruptible() as job.pressed,
        Progress(NAME, ALL_STEPS, sys.stderr, shown) as job.bar,
        terminable(None if checkpoint is None else job.save, at_once=True),
    ):
        try:
            starts = power.num_models or 1
            denominator = max_denominator if simplify else 0

            def law_of(data: Series) -> Outcome:
                search = Search(data.scaled(), rules, power.out_features, starts, seed, job, method)
                if searching:
                    return search.from_drawn_starts(denominator)
                loosen = power.weight_re.requires_grad
                return search.best(*search.begin(power, nau), denominator, loosen, True)

            (law, free, met), left_out = found_without(data, law_of, job)
        except Exception:
            job.checkpoint = None  # a file whose content leads to an error stays as it is
            raise
        finally:
            job.save()
    result = finished(law, free, data, job.seconds, not job.pressed, met, denominator, left_out)
    if left_out.any():
        checks.warn(f"{NAME}: {' '.join(said(result.law, data, left_out, result.names))}")
    if not result.diagnostics.good:
        hint = advice(law, result.df_resid, searching, power.num_models or 1, power.out_features)
        checks.warn(poor_fit(result.diagnostics, hint))
    return result


def _read(
    model: Any, t: Any, u: Any, u0: Any, inputs: Any, sigma: Any, observed: Any, names: Any
) -> tuple[Series, dict[str, str], RealNPU, NAU]:
    """Return the checked series, what decides it by argument, and the model's layers.

    The inputs are behind the states.
    """
    count = series.input_columns(inputs)
    power, nau = _layers(model, count)
    states = nau.out_features
    series.check_observed(observed, states)
    input_names = series.input_names(inputs, count)
    if count and names is not None and len(names) == states + count:
        names, input_names = list(names)[:states], list(names)[states:]
    data = series.read(t, u, u0, sigma, observed, names, states)
    data = sized(data) if data.sized else data
    series.check_names(input_names)
    states_seen = sorted(range(states) if observed is None else observed)
    values = digest(data.values, data.seen, torch.tensor(data.digits))
    facts = {"t": digest(data.times), "u": values, "u0": digest(data.start)}
    facts["sigma"] = digest(data.weight) if data.has_sigma else repr(sigma)
    facts |= {"observed": repr(states_seen), "names": repr((*data.names, *input_names))}
    facts["inputs"] = "None"
    if count:
        tables = series.read_inputs(inputs, len(data.times))
        facts["inputs"] = digest(*(part for table in tables for part in table[:2]))
        data = series.with_inputs(data, tables, input_names)
    return data, facts, power, nau


def _known_facts(rules: Known, stoichiometry: Any, conserved: Any) -> dict[str, str]:
    """Return what is known of a law by argument, as text."""
    facts = {
        "exponents": repr((rules.low.tolist(), rules.high.tolist())),
        "integer_exponents": repr(rules.integer.tolist()),
        "required_terms": repr(rules.terms.tolist()),
        "signs": repr(rules.signs),
    }
    for name, matrix in (("stoichiometry", stoichiometry), ("conserved", conserved)):
        numbers = None if matrix is None else series.tensor(NAME, name, matrix).tolist()
        facts[name] = repr(numbers)
    return facts


def _identity(power: RealNPU, nau: NAU, start: str) -> str:
    """Return a text that changes with all that a fit takes from the model."""
    states, terms, starts = power.in_features, power.out_features, power.num_models or 1
    sizes = f"{states} states, {terms} terms, {starts} starts"
    if start == "search":
        return sizes
    trained = power.weight_re.requires_grad, nau.weight.requires_grad
    return f"{sizes}, {digest(power.weight_re, power.gate, nau.weight, *trained)}"


def _layers(model: Any, inputs: int) -> tuple[RealNPU, NAU]:
    """Return the two layers; raise TypeError for a unit whose exponents are not real."""
    power, nau = layers_of(model, NAME, "RealNPU", "", inputs)
    if not isinstance(power, RealNPU):
        raise TypeError(
            f"{NAME}: model must be an nn.Sequential of RealNPU and NAU, since the exponents of a "
            f"law are real, got Sequential({', '.join(type(layer).__name__ for layer in model)})"
        )
    return power, nau


def _is_new(power: RealNPU) -> bool:
    """Return whether all gates have the value of `reset_parameters`, and exponents are not 0."""
    gate = power.gate
    return gate is not None and bool((gate == 0.5).all()) and bool(power.weight_re.any())


def _check(start: Any, simplify: Any, method: Any) -> None:
    if start not in ("search", "model"):
        raise ValueError(f"{NAME}: start must be 'search' or 'model', got {start!r}")
    check_flag(NAME, "simplify", simplify)
    if method not in (AUTO, FIXED, IMPLICIT):
        rule = f"{AUTO!r}, {FIXED!r} or {IMPLICIT!r}"
        raise ValueError(f"{NAME}: method must be {rule}, got {method!r}")
