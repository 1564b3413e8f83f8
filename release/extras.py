"""Installs each extra of a wheel alone, into an empty environment, and runs its first example.

python -m release.extras dist/npu_kernels-*_x86_64.whl [--torch 2.13.0] [--only units,equations]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from release.try_install import in_a_new_environment

# What the documents do first with an option.
EXAMPLES = {
    "triton": """
import os
os.environ["TRITON_INTERPRET"] = "1"  # without a GPU
from npu_kernels import NPU, use_backend
with use_backend("triton"):
    assert NPU(2, 3)(torch.rand(4, 2)).shape == (4, 3)
""",
    "formula": """
from npu_kernels import RealNPU, formula
print(formula.extract(RealNPU(2, 1), ["a", "b"], nonnegative=True))
""",
    "sklearn": """
from npu_kernels import NAU, NPURegressor, RealNPU, ode
X = np.random.default_rng(0).uniform(1, 2, (60, 2))
model = NPURegressor(random_state=0, n_init=8).fit(X, X[:, 0] / X[:, 1])
assert str(model.best_equation_) == "y = x0/x1"
print(model.report(), model.sympy(), model.bootstrap(X, X[:, 0] / X[:, 1], n_resamples=10))
t = np.linspace(0, 2, 30)
layers = torch.nn.Sequential(RealNPU(1, 1), NAU(1, 1))
print(ode.fit(layers, t, np.exp(-t)[:, None], progress=False))
""",
    "units": """
from npu_kernels import NPURegressor
X = np.random.default_rng(0).uniform(1, 2, (60, 2))
model = NPURegressor(random_state=0, n_init=8, X_units=["kg", "m/s"], y_units="J")
assert str(model.fit(X, X[:, 0] * X[:, 1] ** 2 / 2).best_equation_) == "y = 0.5*x0*x1**2"
""",
    "equations": """
import pathlib
from npu_kernels.equations.__main__ import main
a, b = np.random.default_rng(0).uniform(1, 2, (2, 60))
rows = [f"{x},{y},{x * y * y / 2}" for x, y in zip(a, b)]
pathlib.Path("data.csv").write_text("\\n".join(["m [kg],v [m/s],E [J]", *rows]))
assert main(["data.csv", "--n-init", "8", "--plot", "equation.png"]) == 0
assert pathlib.Path("equation.png").stat().st_size > 1000
""",
}


def code_of(extra: str) -> str:
    return "import numpy as np\nimport torch\n" + EXAMPLES[extra]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m release.extras",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--torch", default="2.13.0")
    parser.add_argument("--only", default=",".join(EXAMPLES), help="some of them, with commas")
    options = parser.parse_args()
    unknown = set(options.only.split(",")) - EXAMPLES.keys()
    if unknown:
        parser.error(f"--only must be of {', '.join(EXAMPLES)}, got {', '.join(sorted(unknown))}")
    file, failed = options.file.resolve(strict=True), []
    for name in options.only.split(","):
        try:
            with in_a_new_environment(sys.executable, options.torch) as call:
                call("-m", "pip", "install", "-q", f"{file}[{name}]")
                call("-c", code_of(name))
        except (subprocess.CalledProcessError, OSError) as error:
            print(error, file=sys.stderr, flush=True)
            failed.append(name)
    if failed:
        sys.exit(f"release.extras: failed: {', '.join(failed)}")
    print(f"{file.name}: each of {options.only} installed alone, and its example run")


if __name__ == "__main__":
    main()
