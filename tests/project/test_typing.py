"""What type checkers and editors see of the installed package, from a folder outside of the
tree."""

import importlib.metadata
import json
import sysconfig
from pathlib import Path

import pytest

from tests.support.building import ROOT, run_python

# Other packages' types take minutes to read, and decide nothing here.
SETTINGS = """
[mypy]
[mypy-torch.*,numpy.*,sklearn.*,scipy.*,sympy.*,tqdm.*]
follow_imports = skip
ignore_missing_imports = True
"""
USERS_FILE = """
import npu_kernels
from npu_kernels import NPURegressor
reveal_type(NPURegressor(max_terms=2))
NPURegressor(no_such_argument=3)
npu_kernels.no_such_name
"""


SITE = sysconfig.get_path("purelib")


@pytest.fixture
def installed() -> None:
    """Skip where another tree, or no tree, is installed."""
    # In this folder alone: the tree has metadata of its own, of a build.
    installed = importlib.metadata.Distribution.discover(name="npu_kernels", path=[SITE])
    texts = [distribution.read_text("direct_url.json") or "{}" for distribution in installed]
    if ROOT.as_uri() not in [json.loads(text).get("url") for text in texts]:
        pytest.skip("this tree is not installed by `make install`")


def test_an_editable_install_names_the_tree(installed: None) -> None:
    """A .pth file names the tree: type checkers and editors read these, and run no import hook."""
    (path,) = Path(SITE).glob("__editable__.npu_kernels-*.pth")
    assert path.read_text().split() == [str(ROOT)]


def test_a_users_file_outside_of_the_tree(installed: None, tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed (`make lint` installs it)")
    (tmp_path / "user.py").write_text(USERS_FILE)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    command = [
        "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "--hide-error-context", "user.py",
    ]  # fmt: skip
    run = run_python(*command, env={"PYTHONPATH": "", "MYPYPATH": ""}, cwd=tmp_path)
    lines = [line for line in run.stdout.splitlines() if "note: " not in line or "Revealed" in line]
    assert lines[:-1] == [
        'user.py:4: note: Revealed type is "npu_kernels.equations._table.estimator.NPURegressor"',
        'user.py:5: error: Unexpected keyword argument "no_such_argument" for "NPURegressor"  [call-arg]',
        'user.py:6: error: Module has no attribute "no_such_name"  [attr-defined]',
    ], run.stdout + run.stderr
