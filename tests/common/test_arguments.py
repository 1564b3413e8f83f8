"""What a user hands over by mistake, and the message that names the mistake."""

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from npu_kernels import (
    NAC,
    NALU,
    NAU,
    NMRU,
    NMU,
    NPU,
    NaiveNPU,
    RealNPU,
    fit,
    formula,
    functional,
    iNALU,
    interop,
    ode,
)
from npu_kernels.fitting import Recipe, Run, fit_many
from npu_kernels.training import SteppedSchedule, l1, mse_loss, project_, regularizer

UNITS = (NPU, RealNPU, NaiveNPU, NAU, NMU, NMRU, NAC, NALU, iNALU)


def _nested(t: Tensor, layout: torch.layout = torch.strided) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that they are a prototype
        return torch.nested.nested_tensor([t, t], layout=layout)


def _csr(t: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it is in beta
        return torch.atleast_2d(t).to_sparse_csr()


NOT_DENSE: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.sparse_coo": Tensor.to_sparse,
    "torch.sparse_csr": _csr,
    "torch._mkldnn": Tensor.to_mkldnn,
    "a nested tensor": _nested,
    "a nested tensor ": functools.partial(_nested, layout=torch.jagged),
}


def _model() -> nn.Sequential:
    return nn.Sequential(NPU(2, 3), NAU(3, 2))


def _starts(units: int = 2) -> RealNPU:
    return RealNPU(units, 1, num_models=4)


X, Y = torch.rand(9, 2) + 1, torch.rand(9, 1)
W, V, G = torch.rand(3, 2), torch.rand(2, 3), torch.rand(2)


# ---- dense tensors --------------------------------------------------------------------------


def _dense_calls() -> dict[str, Callable[[Callable[[Tensor], Tensor]], object]]:
    """Every public function that takes tensors, each in turn; the argument spoils one of them."""
    grid = {"steps": 2, "dt": 0.1}
    calls: dict[str, Callable[[Callable[[Tensor], Tensor]], object]] = {}
    for unit in UNITS:
        calls[f"{unit.__name__} x"] = lambda bad, unit=unit: unit(2, 3)(bad(X))
    calls |= {
        "npu weight_re": lambda bad: functional.npu(X, bad(W)),
        "npu weight_im": lambda bad: functional.npu(X, W, bad(W)),
        "npu gate": lambda bad: functional.npu(X, W, W, bad(G)),
        "nau weight": lambda bad: functional.nau(X, bad(W)),
        "nmu weight": lambda bad: functional.nmu(X, bad(W)),
        "nac mask": lambda bad: functional.nac(X, W, bad(W)),
        "nalu mask": lambda bad: functional.nalu(X, W, bad(W), W),
        "nalu gate_bias": lambda bad: functional.nalu(X, W, W, W, bad(torch.rand(3))),
        "inalu mask_add": lambda bad: functional.inalu(X, W, bad(W), W, W, W),
        "l1": lambda bad: l1(bad(W)),
        "regularizer": lambda bad: regularizer([W, bad(W)]),
        "mse_loss y": lambda bad: mse_loss(bad(W), W),
        "mse_loss target": lambda bad: mse_loss(W, bad(W)),
        "mse_loss models": lambda bad: mse_loss(bad(W), W, num_models=3),
        "fit x": lambda bad: fit(_starts(), bad(X), Y),
        "fit y": lambda bad: fit(_starts(), X, bad(Y)),
        "fit batches": lambda bad: fit(_starts(), [(bad(X), Y)]),
        "fit_many x": lambda bad: fit_many(_starts(), bad(X), Y),
        "simplify x": lambda bad: formula.simplify(_model(), bad(X)),
        "simplify y": lambda bad: formula.simplify(_model(), X, bad(X)),
        "as_fraction": lambda bad: formula.as_fraction(bad(W)),
        "nearest_fraction": lambda bad: formula.nearest_fraction(bad(W)),
        "relative_error": lambda bad: formula.relative_error(W, bad(W)),
        "from_parameters": lambda bad: interop.from_parameters({"Re": bad(W), "g": G}),
        "rollout u0": lambda bad: ode.rollout(_model(), bad(G), **grid),
        "integrate weight_re": lambda bad: ode.integrate(G, bad(W), None, None, V, **grid),
        "integrate gate": lambda bad: ode.integrate(G, W, None, bad(G), V, **grid),
        "integrate weight": lambda bad: ode.integrate(G, W, None, None, bad(V), **grid),
        "rollout_any u0": lambda bad: ode.rollout_any(lambda u: -u, bad(G), **grid),
        "interpolate trajectory": lambda bad: ode.interpolate(bad(W), [0.0], dt=0.1),
        "interpolate times": lambda bad: ode.interpolate(W, bad(G), dt=0.1),
        "interpolate derivatives": lambda bad: ode.interpolate(
            W, [0.0], dt=0.1, method="hermite", derivatives=bad(W)
        ),
        "first_nonfinite": lambda bad: ode.first_nonfinite(bad(W)),
    }
    return calls


@pytest.mark.parametrize("name", _dense_calls())
def test_what_is_not_dense_is_named(name: str, backend: str) -> None:
    for layout, bad in NOT_DENSE.items():
        got = layout if layout.startswith("a ") else f"layout {layout}"
        with pytest.raises(
            TypeError, match=rf"^\w+: .* must be a dense tensor, got {got.strip()}$"
        ):
            _dense_calls()[name](bad)


def test_a_formula_takes_dense_tensors() -> None:
    pytest.importorskip("sympy")
    with pytest.raises(
        TypeError, match=r"^formula: x must be a dense tensor, got layout torch.sparse_coo$"
    ):
        formula.read(_model())(X.to_sparse())


# ---- messages -------------------------------------------------------------------------------


def _run() -> Run:
    return Run(_starts(), X[None], Y[None], [0])


def _pruned() -> nn.Sequential:
    model = _model()
    prune.l1_unstructured(model[0], "weight_re", amount=2)
    return model


VALUE_ERRORS: list[tuple[Callable[[], Any], str]] = [
    (lambda: fit(_starts(), X.numpy()), r"fit: y must be given with an x of rows, got None"),
    (lambda: fit(_starts(), [(X, Y), (X[:, :1], Y)]),
     r"fit: x of all batches must have the same columns, dtype and device, got .*"),
    (lambda: fit(_starts(), [(X, Y), (X, Y.double())]),
     r"fit: y of all batches must have the same .*"),
    (lambda: fit(_starts(3), X, Y),
     r"fit: x must have last dimension 3 \(in_features of model\), got 2"),
    (lambda: fit(nn.Sequential(_starts(), NAU(2, 1, num_models=4)), X, Y),
     r"fit: model must take x with 2 columns, got nau: x must have last dimension 2 .*"),
    (lambda: fit(nn.Sequential(_starts(), nn.Flatten(0)), X, Y),
     r"fit: model must give \(num_models, rows, out_features\), got shape \(8,\) for 2 rows"),
    (lambda: fit(RealNPU(2, 1, num_models=4, device="meta"), X, Y),
     r"fit: model must be on .* meta"),
    (lambda: fit(_starts(), X[:0], Y[:0]), r"fit: x must not be empty, got shape \(0, 2\)"),
    (lambda: fit(_starts(), X, Y[:, :0]), r"fit: y must not be empty, got shape \(9, 0\)"),
    (lambda: fit(_starts(), X, Y, rows=0), r"fit: rows must be an integer of at least 2, got 0"),
    (lambda: fit_many(_starts(), X[None], Y[None], seeds=[True]),
     r"fit_many: seeds must be 1 integers .*"),
    (lambda: fit_many(_starts(), X[:0, None, :], Y[:0, None]),
     r"fit_many: x must not be empty, got .*"),
    (lambda: _run().advance(-1), r"fit_many: rounds must be an integer of at least 0, got -1"),
    (lambda: _run().restore({"done": 3}), r"it is no state of a fit: without .*"),
    *((lambda v=v: Recipe(rungs=v),
      r"Recipe: rungs must be pairs .*, the shares falling from 1, got .*")
      for v in (5, None, "ab", (), ((5,),), ((5, "a"),), ((5, math.nan),))),
    *((lambda n=n, v=v: Recipe(**{n: v}), rf"Recipe: {n} must .*, got .*")
      for n in ("wide", "hidden", "gates", "imaginary", "finalists", "rows", "denominators",
      "rate", "bound", "slack", "holdout", "batch", "refine", "loss") for v in (None, "ab", 1.5j)),
    (lambda: project_(nn.Linear(2, 2)),
     r"project_: model must have units of npu_kernels, got Linear .*"),
    (lambda: project_(_model(), weights="a"),
     r"project_: weights must be None, or greater than 0, got 'a'"),
    (lambda: l1(W, num_models=-1), r"l1: num_models must be an integer of at least 1, got -1"),
    (lambda: l1(W, "a"), r"l1: beta must be a tensor, or finite, got 'a'"),
    (lambda: SteppedSchedule("a", 1, 1), r"SteppedSchedule: start must be finite, got 'a'"),
    (lambda: SteppedSchedule(0, 1, 1).load_state_dict({}),
     r"SteppedSchedule: state must be one of .*"),
    (lambda: formula.simplify(_model(), X[:0]),
     r"simplify: x must not be empty, got shape \(0, 2\)"),
    (lambda: formula.simplify(_model(), X * math.nan),
     r"simplify: x must be finite, got shape \(9, 2\)"),
    (lambda: formula.simplify(_model(), X, steps=3), r"simplify: steps must be of .*, got 3"),
    (lambda: formula.simplify(_model(), X, threshold="a"),
     r"simplify: threshold must be .*, got 'a'"),
    (lambda: formula.simplify(_model(), X, tolerance="a"),
     r"simplify: tolerance must be .*, got 'a'"),
    (lambda: formula.select(_pruned()), r"select: layer .0. must not be pruned; torch.nn.*"),
    (lambda: formula.relative_error(X, X[:3]),
     r"relative_error: prediction and target must have one .*"),
    (lambda: interop.swap(_model(), eps="a"), r"swap: eps must be None, or finite .*, got 'a'"),
    (lambda: interop.to_reference(_model(), ["julia"]), r"to_reference: layout must be .*"),
    (lambda: ode.first_nonfinite(W[:0]),
     r"first_nonfinite: trajectory must have shape \(.*\), got .*"),
]  # fmt: skip
TYPE_ERRORS: list[tuple[Callable[[], Any], str]] = [
    (lambda: fit(_starts(), np.full((9, 2), "a"), Y),
     r"fit: x must be .* numbers, got ndarray: .*"),
    (lambda: fit(_starts(), X.tolist(), Y.tolist()),
     r"fit: x must be rows .*, got list; batches bring .*"),
    (lambda: fit(_starts(), [(X.numpy(), Y.numpy())]),
     r"fit: a batch must be two tensors \(x, y\), got tuple of ndarray, ndarray"),
    (lambda: fit(_starts(), X, Y, recipe={"rate": 0.1}),
     r"fit: recipe must be a Recipe, got dict; Recipe\(\*\*recipe\) makes one"),
    (lambda: fit_many(_starts(), X[None], Y[None], seeds=3),
     r"fit_many: seeds must be a sequence of integers, got int"),
    (lambda: project_(W), r"project_: model must be a torch.nn.Module, got Tensor"),
    (lambda: l1(None), r"l1: parameters must be a module, a tensor or tensors, got NoneType"),
    (lambda: l1([W, 1.0]), r"l1: parameters must be a torch.Tensor, got float"),
    (lambda: regularizer(W.int()),
     r"regularizer: parameters must have a floating-point dtype, got .*"),
    (lambda: functional.inalu(X, W, None, W, W, W),
     r"inalu: mask_add must be a torch.Tensor, got NoneType"),
    (lambda: functional.nac(X, W, None), r"nac: mask must be a torch.Tensor, got NoneType"),
    (lambda: formula.simplify(None, X),
     r"simplify: module must be a torch.nn.Module, got NoneType"),
    (lambda: formula.simplify(_model(), X.numpy()),
     r"simplify: x must be a torch.Tensor, got ndarray; .*"),
    (lambda: formula.simplify(_model(), X, X.int()), r"simplify: y must have a floating-point .*"),
    (lambda: formula.simplify(_model(), score=3),
     r"simplify: score must be a function .*, got int"),
    (lambda: formula.simplify(_model(), score=lambda m: None),
     r"simplify: score must give a number, .*"),
    (lambda: interop.swap(None), r"swap: model must be a torch.nn.Module, got NoneType"),
    (lambda: interop.swap(_model(), inplace="no"),
     r"swap: inplace must be True or False, got 'no'"),
    (lambda: interop.swap(_model(), allow="g"),
     r"swap: allow must be a collection of names, got 'g'"),
    (lambda: interop.from_parameters(None),
     r"from_parameters: parameters must be a dictionary, .*"),
    (lambda: interop.from_parameters({"Re": W, "g": G.double()}),
     r"from_parameters: all tensors must have one dtype, got .*"),
    (lambda: interop.from_parameters({"Re": [[1.0], [1.0, 2.0]], "g": G}),
     r"from_parameters: Re must .*"),
    (lambda: interop.from_parameters({"Re": W.int(), "g": G}),
     r"from_parameters: Re must have a .*"),
    (lambda: ode.integrate(G, W, None, None, None, steps=2, dt=0.1),
     r"integrate: weight must be a torch.Tensor, got NoneType"),
    (lambda: ode.integrate(G, W, None, None, V, steps=2, dt=0.1, clip="a"),
     r"integrate: clip must be True or False, got 'a'"),
    (lambda: ode.interpolate(W, None, dt=0.1),
     r"interpolate: times must be a tensor or numbers, .*"),
    (lambda: ode.interpolate(W, G * 1j, dt=0.1),
     r"interpolate: times must be real, got torch.complex64"),
    (lambda: ode.interpolate(W.int(), [0.0], dt=0.1),
     r"interpolate: trajectory must have a floating-.*"),
    (lambda: ode.interpolate(W, [0.0], dt=0.1, method="hermite", derivatives=W.double()),
     r"interpolate: derivatives must have trajectory's dtype, torch.float32, got torch.float64"),
    (lambda: ode.rollout_any(3, G, steps=2, dt=0.1),
     r"rollout_any: model must be a module or a function, got int"),
    (lambda: ode.rollout_any(lambda a, b, c: a, G, steps=2, dt=0.1),
     r"rollout_any: model must take u, or t and u, got one that takes \(a, b, c\)"),
    (lambda: ode.rollout_any(lambda u: u, G.int(), steps=2, dt=0.1),
     r"rollout_any: u0 must be floating.*"),
]  # fmt: skip
MESSAGES = [
    *((call, ValueError, message) for call, message in VALUE_ERRORS),
    *((call, TypeError, message) for call, message in TYPE_ERRORS),
]


@pytest.mark.parametrize(("call", "error", "message"), MESSAGES, ids=range(len(MESSAGES)))
def test_mistakes_are_named(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}$"):
        call()


def test_numpy_numbers_are_numbers() -> None:
    project_(_model(), weights=np.float64(2.0))
    assert l1(W, np.float32(2.0)).item() == pytest.approx(2 * W.sum().item())


# ---- functions of time ----------------------------------------------------------------------


class _Falling(nn.Module):
    def forward(self, t: Tensor, u: Tensor) -> Tensor:
        return -u * t


def test_rollout_any_takes_functions_of_u_and_of_t_and_u() -> None:
    pytest.importorskip("torchdiffeq")
    run = functools.partial(ode.rollout_any, u0=torch.ones(2), steps=3, dt=0.5)
    assert torch.equal(run(lambda u: -u), run(lambda t, u: -u))
    assert torch.equal(run(lambda u, scale=1.0: -scale * u), run(torch.neg))
    assert torch.equal(run(functools.partial(lambda k, u: -k * u, 1.0)), run(lambda *u: -u[0]))
    assert torch.equal(run(_Falling()), run(lambda t, u: -u * t))
    assert run(_Falling())[1].tolist() == [1, 1]  # at t = 0 nothing falls
    for wrong in (lambda u: u[:1], lambda u: None):  # torch would expand the first
        with pytest.raises(
            ValueError, match=r"^rollout_any: model must give the shape of u, \(2,\), got "
        ):
            run(wrong)


def test_a_pruned_layer_is_read_as_it_is() -> None:
    """Its attribute is of the last forward pass; an optimiser's step changes the original."""
    pytest.importorskip("sympy")
    model = _pruned()
    with torch.no_grad():
        model[0].weight_re_orig.fill_(3.0)
        model[0].gate.fill_(1.0)
    expected = model(X)
    with torch.no_grad():
        model[0].weight_re_orig.fill_(-3.0)
        model[0].weight_re_orig.neg_()
    stale, model[0].weight_re = model[0].weight_re, torch.zeros(3, 2)
    torch.testing.assert_close(formula.read(model, eps=True)(X), expected, rtol=1e-4, atol=1e-4)
    assert stale.count_nonzero() == 4
