"""What a user hands over by mistake, and the message that names the mistake."""

import functools
import warnings
from collections.abc import Callable

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
    ode,
)

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
    """Layers and functions of layers, each in turn; the argument spoils one of their tensors."""
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
        "integrate weight_re": lambda bad: ode.integrate(G, bad(W), None, None, V, **grid),
        "integrate gate": lambda bad: ode.integrate(G, W, None, bad(G), V, **grid),
        "integrate weight": lambda bad: ode.integrate(G, W, None, None, bad(V), **grid),
        "fit x": lambda bad: fit(_starts(), bad(X), Y),
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


# ---- messages -------------------------------------------------------------------------------


def _pruned() -> nn.Sequential:
    model = _model()
    prune.l1_unstructured(model[0], "weight_re", amount=2)
    return model


def test_a_pruned_layer_is_read_as_it_is() -> None:
    """Its attribute is of the last forward pass; an optimizer's step changes the original."""
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
    torch.testing.assert_close(formula.extract(model, eps=True)(X), expected, rtol=1e-4, atol=1e-4)
    assert stale.count_nonzero() == 4
