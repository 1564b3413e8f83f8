"""The fast path from Python to the CPU kernels, which saves most of a small layer's time.

It is compiled against one torch and one Python and loaded by no other; without it the same kernels are called through
torch's registered operators. Its functions are None then, and `reason` says why. Loaded, it also lets these operators
read the float32 matmul precision, which torch's stable interface does not tell; without it they are full float32.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from npu_kernels import ops
from npu_kernels.backends import cpu

LIBRARY = cpu.LIBRARY.with_name(f"direct-torch{torch.__version__}-{sys.implementation.cache_tag}.so")

# The functions of csrc/direct/module.cpp: of the layers, whose names their records have, and others. They answer
# NotImplemented to what is not plain. None: not loaded.
NAMES = (*(name for name, layer in ops.LAYERS.items() if layer.fast_path), "nau", "mse", "adam", "ode")
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

    def backward(grad_y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
        operands = enumerate((grad_y, x, weight, *rest))
        grad_x, *grads = function(*(_flat(t, weight) if n in (0, 1, *rows) else t for n, t in operands))
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
        others = sorted(path.name for path in LIBRARY.parent.glob("direct-*.so"))
        built = f"only {', '.join(others)}" if others else "none"
        reason = f"{LIBRARY.name} is not built ({built} is; build it with `{cpu.BUILD_COMMAND}`)"
        return
    spec = importlib.util.spec_from_file_location("direct", LIBRARY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Built from an older tree it lacks a layer, which is called through its operators then.
    globals().update({name: getattr(module, name, None) for name in NAMES})
    _set_backward, reason = module.set_backward, ""
