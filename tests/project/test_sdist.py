"""The source distribution: complete, and made without torch.

That a wheel can be built from it alone is tested by `make test-sdist` (release/try_install.py),
which compiles everything and takes minutes.
"""

import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support.building import ROOT, run_python

# What serves the repository alone.
LEFT_OUT = (".ci/", ".github/", ".gitignore")
MADE_BY_SETUPTOOLS = ("PKG-INFO", "setup.cfg")


def git_files(*options: str) -> set[str]:
    try:
        run = subprocess.run(
            ["git", "ls-files", "-z", *options], capture_output=True, text=True, cwd=ROOT
        )
    except FileNotFoundError:
        pytest.skip("needs git")
    if run.returncode != 0:
        pytest.skip("needs the git repository")
    return {name for name in run.stdout.split("\0") if name and (ROOT / name).exists()}


def test_it_holds_what_git_holds(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "torch"  # a torch that cannot be imported, before the real one
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('no torch here')")
    environment = {"PYTHONPATH": str(hidden.parent), "PATH": "/nowhere"}  # no compiler either
    tracked, new = git_files(), git_files("--others", "--exclude-standard")
    command = [
        "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path), "sdist", "-d", str(tmp_path),
    ]  # fmt: skip
    run = run_python(*command, env=environment)
    assert run.returncode == 0, run.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        held = {member.name.partition("/")[2] for member in files.getmembers() if member.isfile()}
    assert {name for name in tracked if not name.startswith(LEFT_OUT)} - held == set()
    generated = {name for name in held if name in MADE_BY_SETUPTOOLS or ".egg-info/" in name}
    assert held - generated - tracked - new == set()


def test_the_description_of_a_package_index_has_no_links_into_the_repository() -> None:
    run = run_python("setup.py", "--long-description")
    assert run.returncode == 0, run.stderr
    text, readme = run.stdout, (ROOT / "README.md").read_text()
    assert "[Quick start](docs/quickstart.md)" in readme
    assert '<img src="docs/' in readme
    assert "Quick start" in text
    assert "](docs/" not in text
    assert "<img" not in text
