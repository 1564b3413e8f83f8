"""The fast path from Python to the CPU kernels, which saves most of a small layer's time.

It is compiled against one torch and one Python and loaded by no other; a wheel holds it for
several. Without it the same kernels are called through torch's registered operators: its functions
are None then, `reason` says why, and `npu_kernels._operators.dispatch` says it once. Once loaded,
it also lets these operators read the float32 matmul precision, which torch's stable interface does
not tell; without it they are full float32.
"""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from npu_kernels._operators import cpu, ops


def file_names(version: str, python: str) -> list[str]:
    """Return the files that serve a torch of this version under this Python, the best first.

    A build on this machine is for exactly this machine's torch. The library in a wheel is for a
    release of torch, without its local version: a release's builds for the CPU and for every CUDA
    declare the same classes. Builds that are no release differ in the local version alone.
    """
    public, _, local = version.partition("+")
    released = [public] if local and re.fullmatch(r"\d+\.\d+\.\d+", public) else []
    return [f"fast_path-torch{name}-{python}.so" for name in (version, *released)]


def _library() -> Path:
    # A Python without a global lock has the same tag as one with it, except for the flags.
    python = f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"
    candidates = [cpu.LIBRARY.with_name(name) for name in file_names(torch.__version__, python)]
    return next((path for path in candidates if path.exists()), candidates[0])


LIBRARY = _library()

# The functions of csrc/fast_path/module.cpp: those of layers, whose names their records have, and
# others. They return NotImplemented for calls that are not plain. None: not loaded.
npu: Callable[..., Any] | None = None
nmu: Callable[..., Any] | None = None
nmru: Callable[..., Any] | None = None
nalu: Callable[..., Any] | None = None
inalu: Callable[..., Any] | None = None
nau: Callable[..., Any] | None = None
nac: Callable[..., Any] | None = None
mse: Callable[..., Any] | None = None
adam: Callable[..., Any] | None = None
ode: Callable[..., Any] | None = None
training_plan: Callable[..., Any] | None = None
training_step: Callable[..., Any] | None = None
NAMES = ("npu", "nmu", "nmru", "nalu", "inalu", "nau", "nac", "mse", "adam", "ode")

_set_backward: Callable[[str, Callable[..., Any]], None] | None = None
reason: str = "not loaded yet"


def _flat(tensor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    extra = tensor.dim() - weight.dim()
    if extra > 0:  # by a view: a gradient that stands for many has no `flatten`
        lead = tensor.shape[: weight.dim() - 2]
        rows = math.prod(tensor.shape[weight.dim() - 2 : -1])
        return tensor.reshape((*lead, rows, tensor.shape[-1]))
    return tensor.unsqueeze(0) if extra < 0 and weight.dim() == 2 else tensor


def _of_any_rows(
    function: Callable[[tuple[Any, ...]], Any], rows: tuple[int, ...], results: tuple[int, ...]
) -> Callable[..., Any]:
    """Return a backward for operands with any leading dimensions from one of flat rows.

    function: takes all arguments as one tuple. rows: the positions of the arguments that have rows;
    the third one is the weight. results: of the first results, the positions of the arguments whose
    shapes they have.
    """

    def backward(*arguments: Any) -> Any:
        weight = arguments[2]
        flat = tuple(
            [
                _flat(value, weight) if n in rows and value is not None else value
                for n, value in enumerate(arguments)
            ]
        )
        grads = list(function(flat))
        for index, argument in enumerate(results):
            if grads[index] is not None:
                grads[index] = grads[index].reshape(arguments[argument].shape)
        return tuple(grads)

    return backward


def set_backward(name: str, function: Callable[..., Any]) -> None:
    """Set what computes the gradients of the function of this name where they are not plain.

    For a layer with a record and for "npu_second", `function` takes its arguments as one tuple,
    with rows as [K, B, ...].
    """
    if _set_backward is None:
        return
    if name in ops.LAYERS:
        layer = ops.LAYERS[name]
        saved = range(1 + layer.operands, 1 + layer.operands + len(layer.saved))
        function = _of_any_rows(function, (0, 1, *saved), (1,))  # grad_y, x and what was saved
    elif name == ops.SECOND:
        function = _of_any_rows(function, (0, 1, 5, 6, 10), (0, 1))  # grad_y, x, y, s, along_x
    _set_backward(name, function)


def load() -> None:
    """Load the library where it is built for this torch and Python."""
    global npu, nmu, nmru, nalu, inalu, nau, nac, mse, adam, ode, training_plan, training_step
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
    except ImportError as error:  # another build of torch, or a library of an older build
        reason = f"{LIBRARY.name} does not load with torch {torch.__version__}: {error}"
        return
    npu, nmu, nmru = module.npu, module.nmu, module.nmru
    nalu, inalu, nau, nac = module.nalu, module.inalu, module.nau, module.nac
    mse, adam, ode = module.mse, module.adam, module.ode
    training_plan, training_step = module.training_plan, module.training_step
    _set_backward, reason = module.set_backward, ""
