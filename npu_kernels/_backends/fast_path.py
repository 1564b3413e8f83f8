"""The fast path from Python to the CPU kernels, which saves most of a small layer's time.

It is compiled against one torch and one Python and loaded by no other; a wheel holds it for several. Without it the
same kernels are called through torch's registered operators. Its functions are None then, `reason` says why, and
`npu_kernels._operators.dispatch` says it once. Loaded, it also lets these operators read the float32 matmul precision, which
torch's stable interface does not tell; without it they are full float32.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from npu_kernels._backends import cpu
from npu_kernels._operators import ops


def file_names(version: str, python: str) -> list[str]:
    """The files that serve a torch of this version under this Python, the best first.

    A build on this machine is for the very torch that is here. The library in a wheel is for a release of torch,
    without its local version: a release's builds for the CPU and for every CUDA declare the same classes. Of what is no
    release, only the local version tells one build from another.
    """
    public, _, local = version.partition("+")
    released = [public] if local and re.fullmatch(r"\d+\.\d+\.\d+", public) else []
    return [f"fast_path-torch{name}-{python}.so" for name in (version, *released)]


def _find() -> Path:
    # A Python without a global lock has the same tag as one with it, except for the flags.
    python = f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"
    found = [cpu.LIBRARY.with_name(name) for name in file_names(torch.__version__, python)]
    return next((path for path in found if path.exists()), found[0])


LIBRARY = _find()

# The functions of csrc/fast_path/module.cpp: of the layers, whose names their records have, and others. They answer
# NotImplemented to what is not plain. None: not loaded.
NAMES = (
    *(name for name, layer in ops.LAYERS.items() if layer.fast_path),
    "nau",
    "mse",
    "adam",
    "ode",
)
globals().update(dict.fromkeys(NAMES))
if TYPE_CHECKING:

    def __getattr__(name: str) -> Callable[..., Any] | None: ...


_set_backward: Callable[[str, Callable[..., Any]], None] | None = None
reason: str = "not loaded yet"


def _flat(tensor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    extra = tensor.dim() - weight.dim()
    if extra > 0:
        return tensor.flatten(weight.dim() - 2, -2)
    return tensor.unsqueeze(0) if extra < 0 and weight.dim() == 2 else tensor


def _of_any_rows(function: Callable[..., Any], rows: tuple[int, ...]) -> Callable[..., Any]:
    """A backward of flat rows, for operands with any leading dimensions."""

    def backward(
        grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *rest: Any
    ) -> tuple[Any, ...]:
        operands = enumerate((grad_y, x, weight, *rest))
        grad_x, *grads = function(
            *(_flat(t, weight) if n in (0, 1, *rows) else t for n, t in operands)
        )
        return (None if grad_x is None else grad_x.reshape(x.shape), *grads)

    return backward


def set_backward(name: str, function: Callable[..., Any]) -> None:
    """The function that computes the gradients of one of them, named so, where they are not plain.

    That of a layer with a record takes rows as [K, B, ...].
    """
    if _set_backward is None:
        return
    if name in ops.LAYERS:
        layer = ops.LAYERS[name]
        first = 1 + layer.operands  # grad_y and x have rows, and what was saved
        function = _of_any_rows(function, tuple(range(first, first + len(layer.saved))))
    _set_backward(name, function)


def load() -> None:
    """Load it where it is built for this torch and Python."""
    global reason, _set_backward
    runs, reason = cpu.available()
    if not runs:
        return
    if not LIBRARY.exists():
        served = sorted({path.name.split("-")[1] for path in LIBRARY.parent.glob("fast_path-*.so")})
        built = f"there are some for {', '.join(served)}" if served else "there is none"
        reason = f"there is no {LIBRARY.name} ({built})"
        return
    spec = importlib.util.spec_from_file_location("fast_path", LIBRARY)
    assert spec is not None
    assert spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except (
        ImportError
    ) as error:  # a torch that was built in another way, or a library of an older build
        reason = f"{LIBRARY.name} does not load with torch {torch.__version__}: {error}"
        return
    globals().update({name: getattr(module, name) for name in NAMES})
    _set_backward, reason = module.set_backward, ""
