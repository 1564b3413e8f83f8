"""Checks the npu_kernels that this Python has installed: every layer against its eager formulas,
training, and the commands `npu_kernels.env` and `npu_kernels.certify`.

    python release/check_install.py [--fast-path] [--row FILE [--sha256 HASH]]

--fast-path: fail where the fast path is missing. --row: append what was run to a file, one JSON
object a line, from which `python -m release.support` makes the table in docs/install.md.
--emulated: the row says that an emulator ran it. --sha256: the wheel's, for that row. The package
in the source tree is refused.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import npu_kernels
from npu_kernels._operators import cpu, fast_path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for the tests; `npu_kernels` is imported already

from tests.support.samples import RECORDS, Sample  # noqa: E402


def outcome(sample: Sample, function: Callable[..., Tensor]) -> list[Tensor]:
    """The result and the gradients."""
    sample = sample.requires_grad()
    y = sample.call(function)
    y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape))
    return [y.detach(), *(leaf.grad for leaf in sample.leaves() if leaf.grad is not None)]


def check_layers() -> int:
    """Values and gradients of every layer's samples, as a user calls them; the number of calls."""
    calls = 0
    for record in RECORDS.values():
        for dtype, tolerance in ((torch.float32, 2e-3), (torch.float64, 1e-9)):
            for sample in record.samples(dtype):
                pairs = zip(
                    outcome(sample, record.function), outcome(sample, record.reference), strict=True
                )
                for actual, expected in pairs:
                    scale = float(expected.abs().max()) if expected.numel() else 1.0
                    torch.testing.assert_close(
                        actual, expected, rtol=tolerance, atol=tolerance * scale
                    )
                calls += 1
    return calls


def losses(backend: str, make_optimizer: Callable[..., torch.optim.Optimizer]) -> Tensor:
    """Of 20 steps of training, for 8 models."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        npu_kernels.NPU(2, 6, num_models=8), npu_kernels.NAU(6, 1, num_models=8)
    )
    x = torch.rand(64, 2) + 1
    target = (x[:, :1] / x[:, 1:]).expand(8, -1, -1)
    optimizer = make_optimizer(model.parameters(), lr=1e-2)
    found = []
    with npu_kernels.use_backend(backend):
        for _ in range(20):
            optimizer.zero_grad()
            loss = npu_kernels.training.mse_loss(model(x), target)
            found.append(loss.detach())
            loss.sum().backward()
            optimizer.step()
    return torch.stack(found)


def check_training() -> None:
    """The package's loss and Adam train as the eager formulas and torch's Adam do."""
    found, expected = losses("cpu", npu_kernels.optim.Adam), losses("reference", torch.optim.Adam)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert bool((found[-1] < found[0]).all()), found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m release.check_install",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--fast-path", action="store_true")
    parser.add_argument("--emulated", action="store_true")
    parser.add_argument("--row", type=Path)
    parser.add_argument("--sha256", default="")
    arguments = parser.parse_args()
    if Path(npu_kernels.__file__).is_relative_to(ROOT / "npu_kernels"):
        sys.exit(
            f"release/check_install.py: this Python has the source tree, {ROOT}, and nothing installed"
        )
    runs, reason = cpu.available()
    if not runs:
        sys.exit(f"release/check_install.py: {reason}")
    if arguments.fast_path and fast_path.npu is None:
        sys.exit(f"release/check_install.py: {fast_path.reason}")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "error" if arguments.fast_path else "default"
        )  # the notice of a missing fast path
        calls = check_layers()
        check_training()
    for command in ("env", "certify"):
        subprocess.run([sys.executable, "-m", f"npu_kernels.{command}"], check=True)
    tags = importlib.metadata.distribution("npu_kernels").read_text("WHEEL") or ""
    row = {
        "npu_kernels": npu_kernels.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()),
        "torch": str(torch.__version__),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "fast path": fast_path.npu is not None,
        "wheel": next(
            (line.split()[-1] for line in tags.splitlines() if line.startswith("Tag:")), ""
        ),
        "sha256": arguments.sha256,
        "calls": calls,
        **({"emulated": True} if arguments.emulated else {}),
    }
    print(f"{calls} calls agree with the eager formulas")
    if arguments.row:
        with arguments.row.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
