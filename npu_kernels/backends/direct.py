"""Neural Power Unit, a layer: the direct way from Python to the CPU kernels, which saves most of a small layer's time.

It is compiled against one torch and one Python and loaded by no other; without it the same kernels are called through
torch's registered operators. `npu` and `nmu` are None then, and
`reason` says why.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch

from npu_kernels.backends import cpu

LIBRARY = cpu.LIBRARY.with_name(f"direct-torch{torch.__version__}-{sys.implementation.cache_tag}.so")

# npu(x, weight_re, weight_im, gate, eps, gate_gradient), nmu(x, weight, clip): y, or NotImplemented for what is not
# plain. None: not loaded.
npu: Callable[..., Any] | None = None
nmu: Callable[..., Any] | None = None
reason = "not loaded yet"


def load(npu_backward: Callable[..., Any], nmu_backward: Callable[..., Any]) -> None:
    """Load it where it is built for this torch and Python; the two functions compute gradients that are not plain."""
    global npu, nmu, reason
    runs, reason = cpu.available()
    if not runs:
        return
    if not LIBRARY.exists():
        others = sorted(path.name for path in LIBRARY.parent.glob("direct-*.so"))
        built = f"only {', '.join(others)}" if others else "none"
        reason = f"{LIBRARY.name} is not built ({built} is; build it with `{cpu.BUILD_COMMAND}`)"
        return
    spec = importlib.util.spec_from_file_location("direct", LIBRARY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.set_backwards(npu_backward, nmu_backward)
    npu, nmu, reason = module.npu, module.nmu, ""
