"""An environment without NumPy: layers, training and formulas work, and what needs NumPy says
so."""

from pathlib import Path

from tests.support import examples
from tests.support.building import ROOT, run_forked, run_python

WITHOUT_NUMPY = """
import sys, warnings
sys.modules["numpy"] = None  # every import of it fails
warnings.simplefilter("error")
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch's, at its import
import torch
torch.set_num_threads(1)
"""
RUN_TWICE = """
from npu_kernels import NAU, NPU
from npu_kernels.training import run
warnings.filterwarnings("ignore", message=".*makes its steps one by one")
x = torch.rand(20, 2).to({dtype}) + 1
for ends_early in (True, False):  # the second one goes on from the checkpoint, if there is one
    model = torch.nn.Sequential(NPU(2, 3), NAU(3, 2)).to({dtype})
    result = run(model, x, x, steps=20, lr=0.01, checkpoint={checkpoint}, callback_every=5,
                 callbacks=lambda result: ends_early)
    print(result.n_steps)
"""
STAR = """
from npu_kernels import *
print(NPU(2, 3)(torch.ones(1, 2)).shape[1], "NPURegressor" in globals())
"""
REGRESSOR = """
try:
    from npu_kernels import NPURegressor
except ImportError as error:
    print(error.name)
"""


def test_quick_start_trainings_and_names(tmp_path: Path) -> None:
    """The last without a checkpoint and with one; the estimator is not among the names."""
    page = examples.of_page(ROOT / "docs" / "quickstart.md")
    need_numpy = "import numpy", "ode.fit("  # SciPy needs it
    page = [one for one in page if not any(word in one.code for word in need_numpy)]
    assert len(page) >= 4
    parts = [WITHOUT_NUMPY, *(example.code for example in page)]
    for path, dtype in (("None", "torch.float32"), ("'run.pt'", "torch.bfloat16")):
        parts.append(RUN_TWICE.format(checkpoint=path, dtype=dtype))
    code = "\n".join([*parts, STAR, REGRESSOR])
    run = run_python("-c", code, env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "[1000, 20]" in run.stdout
    assert run.stdout.split()[-7:] == ["5", "20", "5", "20", "3", "False", "numpy"]


def test_star_import_has_the_estimator(tmp_path: Path) -> None:
    run = run_forked("import torch\n" + STAR, env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    assert run.stdout.split() == ["3", "True"], run.stderr


def test_a_stand_in_for_numpy(tmp_path: Path) -> None:
    """A module without a __spec__, as documentation tools and tests make them."""
    code = "import sys, types\nimport torch\nsys.modules['numpy'] = types.ModuleType('numpy')\n"
    run = run_forked(code + STAR, env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    assert run.stdout.split() == ["3", "False"], run.stderr
