"""What notebooks show of results."""

import sys

import pytest
import torch
from torch import nn

from npu_kernels import NAU, RealNPU, fit, formula
from npu_kernels.training import run

pytest.importorskip("sympy", reason="sympy is not installed")
X = torch.empty(60, 2).uniform_(1, 2, generator=torch.Generator().manual_seed(0))
QUOTIENT = X[:, :1] / X[:, 1:]


def quotient():
    layer = RealNPU(2, 1)
    layer.load_state_dict({"weight_re": torch.tensor([[1.0, -0.5]]), "gate": torch.ones(2)})
    return layer


def test_cells_and_captions_are_escaped():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from npu_kernels import NPURegressor

    table = pandas.DataFrame(X.numpy(), columns=["<script>", "a & b"])
    model = NPURegressor(random_state=0).fit(table, QUOTIENT[:, 0].numpy())
    text = model._repr_html_()
    assert "<caption><code>y = `&lt;script&gt;`/`a &amp; b`</code></caption>" in text
    assert "<td>coefficient of `&lt;script&gt;`/`a &amp; b`</td>" in text
    assert "<th>" in model.equations_._repr_html_()


def test_equations_are_aligned():
    layer = RealNPU(2, 2)
    layer.load_state_dict({"weight_re": torch.eye(2), "gate": torch.ones(2)})
    text = formula.extract(layer)._repr_latex_()
    assert text == (
        r"$\displaystyle \begin{aligned} y_{0} &= x_{0} \\ y_{1} &= x_{1} \end{aligned}$"
    )


def test_without_sympy_there_is_no_latex(monkeypatch):
    read = formula.extract(quotient(), ["mass", "r"], nonnegative=True)
    monkeypatch.setitem(sys.modules, "sympy", None)
    assert read._repr_latex_() is None


def test_a_fit():
    result = fit(RealNPU(2, 1, num_models=8), X, QUOTIENT, progress=False)
    text = result._repr_html_()
    assert "<caption><code>y = x0/x1</code></caption>" in text
    assert "<td>initialisations</td><td>8</td>" in text
    assert "<td>complete</td><td>yes</td>" in text
    assert str(result).startswith("y = x0/x1\n  held-out error: ")


@pytest.mark.parametrize("models", [None, 3])
def test_a_training(models):
    model = nn.Sequential(RealNPU(2, 2, num_models=models), NAU(2, 1, num_models=models))
    result = run(model, X, QUOTIENT, steps=20, lr=0.01, progress=False)
    text = result._repr_html_()
    last = float(result.losses[-1].min())
    assert f" and {last:.3g}</td>" in text
    assert f"<td>models</td><td>{models or 1}</td>" in text
    maker = "C++" if result.fused else "the standard PyTorch loop"
    assert str(result).startswith(f"Sequential\n  steps: 20\n  made by: {maker}\n")


def test_an_equation_of_a_table():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from npu_kernels import NPURegressor

    model = NPURegressor(random_state=0)
    assert (
        "<caption>" not in model._repr_html_()
    )  # scikit-learn's diagram until there is an equation
    model.fit(X.numpy(), QUOTIENT[:, 0].numpy())
    for text in (model._repr_html_(), model._repr_mimebundle_()["text/html"]):
        assert "<caption><code>y = x0/x1</code></caption>" in text
        assert "<td>coefficient of x0/x1</td><td>1</td>" in text
    assert r"\frac{1.0 x_{0}}{x_{1}}" in model.best_equation_._repr_latex_()
    assert "<td>y = x0/x1</td>" in model.equations_._repr_html_()


def test_an_equation_of_a_series():
    pytest.importorskip("scipy", reason="scipy is not installed")
    from npu_kernels import ode

    t = torch.linspace(0, 4, 20, dtype=torch.float64)
    model = nn.Sequential(RealNPU(1, 1, num_models=2), NAU(1, 1, num_models=2))
    result = ode.fit(model, t, torch.exp(-0.5 * t), names=["u"], progress=False)
    text = result._repr_html_()
    assert "<caption><code>u&#x27; = -0.5*u</code></caption>" in text
    assert text.endswith(f"<p>{result.diagnostics}</p>")
    assert str(result) == f"u' = -0.5*u\n{result.diagnostics}"
    assert "u' &= - 0.5 u" in result.equation._repr_latex_()
