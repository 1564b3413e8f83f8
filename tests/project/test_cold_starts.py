"""What a first call imports, in a fresh process."""

import json

import pytest

from tests.support.building import run_forked

START = """
import json, sys, time
import torch
torch.manual_seed(0)
x = torch.rand(100, 2)
y = x[:, :1] * x[:, 1:]
def chain(**settings):
    return torch.nn.Sequential(npu_kernels.NPU(2, 6, **settings), npu_kernels.NAU(6, 1, **settings))
def train():
    npu_kernels.training.run(chain(), x, y, steps=200, lr=1e-3, optimizer="{optimizer}")
def fit():
    npu_kernels.fit(chain(num_models=2), x, y, recipe=npu_kernels.fitting.Recipe(rungs=((2, 1.0),)))
def regressor():
    from npu_kernels import NPURegressor
before = set(sys.modules)
import npu_kernels
"""
COMPILER = ("torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "sympy")
ROOMS = tuple(f"npu_kernels.{name}" for name in ("ode", "fitting", "formula", "equations"))
PICTURES = ("matplotlib", "sympy")


def _printed(code: str) -> str:
    ran = run_forked(code)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@pytest.mark.parametrize(
    ("call", "optimizer", "slow"),
    [
        ("train()", "adam", (*COMPILER, *PICTURES, *ROOMS, "sklearn", "scipy", "pandas")),
        ("train()", "rmsprop", (*COMPILER, *PICTURES, *ROOMS, "sklearn", "scipy", "pandas")),
        ("fit()", "adam", (*COMPILER, *PICTURES, "npu_kernels.ode", "sklearn", "scipy", "pandas")),
        ("regressor()", "adam", (*COMPILER, *PICTURES)),
    ],
)
def test_a_first_call_imports_nothing_slow(call: str, optimizer: str, slow: tuple[str]) -> None:
    if call == "regressor()":
        pytest.importorskip("sklearn")
    code = START.replace("{optimizer}", optimizer) + f"{call}\n"
    code += "print(json.dumps(sorted(set(sys.modules) - before)))"
    imported = set(json.loads(_printed(code)))
    assert "npu_kernels.layers" in imported
    assert not imported & set(slow)


def test_modules_that_are_imported_late_are_attributes() -> None:
    code = (
        "import npu_kernels\n"
        "names = set(dir(npu_kernels))\n"
        "assert names >= {*npu_kernels.__all__, 'functional', '__version__'}\n"
        "assert npu_kernels.ode.__name__ == 'npu_kernels.ode'\n"
        "assert npu_kernels.fit is npu_kernels.fitting.fit\n"
        "assert npu_kernels.fit_batch is npu_kernels.fitting.fit_batch\n"
        "from npu_kernels import *\n"
        "print(formula.__name__, fit.__module__, hasattr(npu_kernels, 'nothing'))"
    )
    assert _printed(code) == "npu_kernels.formula npu_kernels.fitting._fit False"


def test_a_method_that_was_replaced_is_called() -> None:
    code = (
        "import functools, sys, torch\n"
        "from npu_kernels.optim import Adam\n"
        "from npu_kernels._common import checks\n"
        "kind, groups = torch.optim.Optimizer, []\n"
        "def watched(method):\n"
        "    @functools.wraps(method)\n"
        "    def add(self, group):\n"
        "        groups.append(group)\n"
        "        return method.__wrapped__(self, group)\n"
        "    return add\n"
        "kind.add_param_group = watched(kind.add_param_group)\n"
        "parameters = [torch.zeros(1, requires_grad=True)]\n"
        "Adam(parameters)\n"
        "optimizer = checks.make_optimizer(torch.optim.RMSprop, parameters, lr=0.5)\n"
        "assert type(optimizer) is torch.optim.RMSprop and 'add_param_group' not in vars(optimizer)\n"
        "assert optimizer.param_groups[0]['lr'] == 0.5\n"
        "print(len(groups), 'torch._dynamo' in sys.modules)"
    )
    assert _printed(code) == "2 False"


def test_names_are_listed_before_their_first_use() -> None:
    """An editor or a shell completes them."""
    code = "import npu_kernels\nfrom npu_kernels import equations, ode\n"
    code += "for package in (npu_kernels, equations, ode):\n"
    code += "    print(sorted(set(package.__all__) - set(dir(package))))\n"
    assert _printed(code).splitlines() == ["[]"] * 3
