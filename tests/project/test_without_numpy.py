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
from npu_kernels import RealNPU
from npu_kernels.training import run
x = torch.rand(20, 2) + 1
for _ in range(2):  # the second time from the checkpoint, if there is one
    torch.manual_seed(0)
    result = run(RealNPU(2, 1), x, x[:, :1], steps=5, lr=0.01, checkpoint={checkpoint})
print(len(result.losses))
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


def run_without_numpy(code: str, folder: Path) -> str:
    run = run_python("-c", WITHOUT_NUMPY + code, env={"PYTHONPATH": str(ROOT)}, cwd=folder)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_quick_start(tmp_path: Path) -> None:
    page = examples.of_page(ROOT / "docs" / "quickstart.md")
    assert len(page) >= 4
    assert "[1000, 20]" in run_without_numpy("\n".join(example.code for example in page), tmp_path)


def test_star_import_leaves_out_the_estimator(tmp_path: Path) -> None:
    assert run_without_numpy(STAR + REGRESSOR, tmp_path).split() == ["3", "False", "numpy"]
    with_numpy = run_forked("import torch\n" + STAR, env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    assert with_numpy.stdout.split() == ["3", "True"], with_numpy.stderr


def test_training_run(tmp_path: Path) -> None:
    """Without a checkpoint, and with one."""
    code = "".join(RUN_TWICE.format(checkpoint=path) for path in ("None", "'run.pt'"))
    assert run_without_numpy(code, tmp_path).split() == ["5", "5"]


def test_a_stand_in_for_numpy(tmp_path: Path) -> None:
    """A module without a __spec__, as documentation tools and tests make them."""
    code = "import sys, types\nimport torch\nsys.modules['numpy'] = types.ModuleType('numpy')\n"
    run = run_forked(code + STAR, env={"PYTHONPATH": str(ROOT)}, cwd=tmp_path)
    assert run.stdout.split() == ["3", "False"], run.stderr
