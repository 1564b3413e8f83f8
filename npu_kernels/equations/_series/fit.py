"""`fit`: the call, its arguments, and the search for the equations of time series."""

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
from npu_kernels.equations._numbers import MAX_DENOMINATOR
from npu_kernels.equations._series import data as series
from npu_kernels.equations._series.candidates import Job
from npu_kernels.equations._series.data import NAME, Series
from npu_kernels.equations._series.diagnostics import advice, poor_fit
from npu_kernels.equations._series.guesses import sized
from npu_kernels.equations._series.known import Known, read_known
from npu_kernels.equations._series.outliers import Outcome, found_without, outlier_notes
from npu_kernels.equations._series.result import SeriesFitResult, finished
from npu_kernels.equations._series.search import ALL_STEPS, Search
from npu_kernels.equations._series.sensitivity import FIXED, IMPLICIT
from npu_kernels.layers import NAU, RealNPU
from npu_kernels.ode._loop import layers_of
from npu_kernels.ode._methods import AUTO

NEW_WEIGHTS = (
    f"{NAME}: init='model' begins with the weights of the model, and this model is untrained (its "
    "gates are 0.5): set its weights, or use init='search'"
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
    """Fit equations ``u' = NAU(RealNPU(u))`` to time series, with confidence intervals.

    Args:
        model: ``nn.Sequential(RealNPU(D, h, num_models=K), NAU(h, D, num_models=K))``: D states, at
            most h products of powers, K random initialisations. With ``init="search"`` only the
            sizes of the model are used. The model is not changed. Exponents are real, gates are 0
            or 1, and coefficients are unbounded, also if the layers clip their weights.
        t: times ``[M]``, in any order and with any spacing.
        u: the states at these times ``[M, D]`` or, for one column, ``[M]``; nan where a value is
            missing. Tensors, arrays or DataFrames, whose columns become names. Several series:
            lists of t and u, or ``u [S, M, D]`` with ``t [M]`` or ``[S, M]``.
        u0: the states at the first times: "fit" if they are unknown, or ``[D]`` or ``[S, D]``, with
            nan for unknown values. If the equations fit only with implausible initial values,
            `ode.fit` may use the first values of a smoothing spline through each column instead;
            `SeriesFitResult.report` then says so.
        inputs: exogenous inputs v(t), such as a forcing, a temperature or a dose:
            ``(times, values)`` with values ``[T]`` or ``[T, J]``, interpolated linearly; the times
            must cover t. A switched input needs the times just before and after each edge. A list
            of such pairs has the inputs of each series. The model's NPU then has D + J in_features,
            the states first: products of powers may contain inputs, and inputs have no equations.
        sigma: standard deviations of the noise of u: a number, one for each column, or one for each
            value, none below the rounding error of float64. None: each column has a standard
            deviation of its own, which is estimated. "proportional": they are proportional to the
            states, with an unknown factor for each column. If all values of all columns are above
            0, logarithms are fitted. Otherwise the standard deviations are proportional to
            ``max(|s|, 0.1 RMS of the column)``, where s is a smoothing spline through the column.
        observed: indices of the states that the columns of u contain; None: all states. The other
            states were not measured.
        names: names of the D states, or of the D states and the inputs.
        init: "search" for equations of any form, or "model" to begin with the model's own exponents
            and coefficients. Zeros among them remain 0. With "model", the weights of a layer
            with requires_grad=False are held fixed.
        simplify: remove terms and exponents that the data do not need, and round exponents to
            fractions, by the BIC. False: estimate all parameters.
        max_denominator: maximum denominator of these fractions, at most 64.
        exponents: bounds ``(low, high)`` of exponents, each a number, or a list of one number for
            each state, followed by one for each input; None: -6 to 6.
        integer_exponents: True for integer exponents only, or the names of the states and inputs
            with integer exponents.
        required_terms: products that the equations have, as exponents ``[n, D]``, with inputs
            ``[n, D + J]``, or as text such as ``["S*I"]``. The search finds the other products.
        stoichiometry: a matrix N ``[D, R]`` with ``u' = N r``. Its columns are reactions: each
            changes several states at one rate. The R rates r are sums of the products.
        conserved: weights ``[m, D]`` of m sums of states that are constant in time: ``[[1, 1, 1]]``
            for ``S + I + R``. Each term is then a flow: it leaves one state and enters
            another, at rates that keep the sums constant.
        signs: signs of the coefficients; with stoichiometry or conserved, of the coefficients of
            the rates. "any" and "nonnegative" are possible for each `init`. "model", only with
            ``init="model"``: each coefficient keeps its sign in the model, which must be the same
            in all K models.
        method: of integration: "rk4", "kvaerno5" (implicit, for stiff equations), or "auto": rk4
            and, where rk4 is too inaccurate, also kvaerno5; the result with the lower BIC is
            returned. rk4 is too inaccurate if 64 steps between samples do not suffice for the best
            equations, for a candidate or for one of the K models of ``init="model"``, or if no
            initialisation has a finite trajectory.
        seed: seed of the random initialisations, at least 0.
        progress: whether progress is shown on stderr; None: if stderr is a terminal.
        checkpoint: a file. If it exists, the fit continues from it; on the same processor the
            result is bitwise identical to that of an uninterrupted fit. The file is written in the
            first seconds, every half a minute, at the end, and before SIGTERM ends the process.

    Returns:
        A `SeriesFitResult`. Outliers, at most a fifth of a column's values, are ignored as if they
            were nan: a warning and `diagnostics` name them, and `left_out` is their mask. If
            `diagnostics` has failures, a `PoorFitWarning` suggests what to try. Ctrl-C ends the
            search, saves it if there is a checkpoint, and returns the best equations so far with
            `complete` False; it raises KeyboardInterrupt if there are none yet.

    Raises:
        ValueError, TypeError: an argument is invalid, such as dates for t; ValueError: the
            checkpoint is damaged, or belongs to another fit (other data, model, options or versions
            of torch or npu_kernels).
        OSError: the checkpoint cannot be written.
        ImportError: scipy is not installed.
        RuntimeError: no initialisation has a finite trajectory.

    States whose values are (nearly) all positive are treated as nonnegative, and so are their
    initial values. A state with both signs has integer exponents. If it passes 0 within a series,
    its exponents are also nonnegative. With ``init="model"`` the model's exponents are rounded to
    such integers, unless their ``requires_grad=False`` keeps them.

    The fit runs in float64. The series are smoothed, and the sets of products of powers that best
    explain the states or their derivatives become the initial guesses. Levenberg-Marquardt fits
    each segment between samples, then growing parts of the trajectory, then the whole trajectory,
    for all guesses at once, using the fused ODE solver and its adjoint. Sets of products are then
    chosen again along the best trajectory. The steps of rk4 are halved, or the tolerance of
    kvaerno5 is reduced, until the error of the trajectory is a tenth of the noise. Equations that
    neither method solves accurately enough are rejected.

        >>> import torch
        >>> from npu_kernels import NAU, RealNPU, ode
        >>> t = torch.linspace(0, 4, 20, dtype=torch.float64)
        >>> u = 1 / (1 + 0.5 * t)  # of u' = -0.5 u**2
        >>> model = torch.nn.Sequential(RealNPU(1, 1, num_models=4), NAU(1, 1, num_models=4))
        >>> result = ode.fit(model, t, u, names=["c"])
        >>> print(result.equation)
        c' = -0.5*c**2
    """
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise ImportError(INSTALL) from error
    _check(init, simplify, method)
    max_denominator = check_whole(NAME, "max_denominator", max_denominator, maximum=MAX_DENOMINATOR)
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

            def candidate_of(data: Series) -> Outcome:
                search = Search(data.scaled(), rules, power.out_features, starts, seed, job, method)
                if searching:
                    return search.search_all(denominator)
                loosen = power.weight_re.requires_grad
                return search.best(search.begin(power, nau), denominator, loosen, True)

            (candidate, free, visited), left_out = found_without(data, candidate_of, job)
        except Exception:
            job.checkpoint = None  # a file whose content leads to an error stays as it is
            raise
        finally:
            job.save()
    result = finished(
        candidate, free, data, job.seconds, not job.pressed, visited, denominator, left_out
    )
    if left_out.any():
        checks.warn(
            f"{NAME}: {' '.join(outlier_notes(result.candidate, data, left_out, result.names))}"
        )
    if not result.diagnostics.good:
        hint = advice(
            candidate, result.df_resid, searching, power.num_models or 1, power.out_features
        )
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
    """Return what is known of the equations by argument, as text."""
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
            f"{NAME}: model must be an nn.Sequential of RealNPU and NAU, since exponents are real, "
            f"got Sequential({', '.join(type(layer).__name__ for layer in model)})"
        )
    return power, nau


def _is_new(power: RealNPU) -> bool:
    """Return whether all gates have the value of `reset_parameters`, and exponents are not 0."""
    gate = power.gate
    return gate is not None and bool((gate == 0.5).all()) and bool(power.weight_re.any())


def _check(start: Any, simplify: Any, method: Any) -> None:
    if start not in ("search", "model"):
        raise ValueError(f"{NAME}: init must be 'search' or 'model', got {start!r}")
    check_flag(NAME, "simplify", simplify)
    if method not in (AUTO, FIXED, IMPLICIT):
        rule = f"{AUTO!r}, {FIXED!r} or {IMPLICIT!r}"
        raise ValueError(f"{NAME}: method must be {rule}, got {method!r}")
