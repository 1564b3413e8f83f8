"""Samples and errors of every layer's function, read by tests, benchmarks and tools.

A record names the fused function and its eager reference, draws valid samples over the sizes and
layouts that break kernels (0, 1, odd, around vector widths; contiguous, transposed, expanded,
sliced), and bounds the error: at most twice the eager layer's, measured against float64, plus a few
ulp.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from npu_kernels import functional, reference
from npu_kernels._operators import ops

# Batch, in and out sizes: 0, 1, odd, and around the widths of vectors and tiles.
SIZES: tuple[tuple[int, int, int], ...] = (
    (0, 3, 2), (1, 1, 1), (3, 5, 7), (7, 1, 4), (16, 15, 16), (17, 17, 15),
    (33, 16, 31), (31, 31, 17), (49, 47, 48), (5, 48, 49), (2, 100, 1), (100, 6, 2),
)  # fmt: skip
MODELS: tuple[int | None, ...] = (None, 1, 3)
LAYOUTS = ("contiguous", "transposed", "expanded", "sliced")


@dataclass(frozen=True)
class Sample:
    """One valid call: ``function(x, *tensors.values(), **options)``; absent tensors are None."""

    name: str
    x: Tensor
    tensors: dict[str, Tensor | None]
    options: dict[str, Any] = field(default_factory=dict)

    def call(self, function: Callable[..., Tensor]) -> Tensor:
        """Return the function's result."""
        return function(self.x, *self.tensors.values(), **self.options)

    def map(self, change: Callable[[Tensor], Tensor]) -> Sample:
        """Return the sample with every tensor changed."""
        tensors = {name: None if t is None else change(t) for name, t in self.tensors.items()}
        return Sample(self.name, change(self.x), tensors, self.options)

    def requires_grad(self) -> Sample:
        """Return the sample over fresh leaves that require gradients."""
        layout = torch.preserve_format
        return self.map(lambda t: t.detach().clone(memory_format=layout).requires_grad_())

    def leaves(self) -> list[Tensor]:
        """Return x and the tensors that are present."""
        return [self.x, *(t for t in self.tensors.values() if t is not None)]


@dataclass(frozen=True)
class OperatorRecord:
    """A layer's function for tests and benchmarks."""

    name: str  # in `functional`, `reference` and `ops`
    function: Callable[..., Tensor]  # the fused function
    reference: Callable[..., Tensor]  # the eager function
    weight_range: tuple[float, float] = (-1.0, 1.0)  # of the values of all tensors but gates
    option_sets: tuple[Mapping[str, Any], ...] = ({},)  # keyword arguments of the sampled calls
    min_input: float = 0.0  # the least magnitude of an element of x

    @property
    def shapes(self) -> Mapping[str, str]:
        """The sizes of each tensor, as in `ops.WEIGHTS`."""
        return ops.WEIGHTS[self.name]

    @property
    def optional(self) -> tuple[str, ...]:
        """Tensors that may be None."""
        return ops.LAYERS[self.name].optional if self.name in ops.LAYERS else ()

    def sample(
        self,
        batch: int,
        in_features: int,
        out_features: int,
        *,
        num_models: int | None = None,
        shared: bool = False,
        without: tuple[str, ...] = (),
        options: Mapping[str, Any] | None = None,
        layout: str = "contiguous",
        dtype: torch.dtype = torch.float64,
        device: str = "cpu",
        seed: int = 0,
    ) -> Sample:
        """Return a valid call. It is drawn in float64: all dtypes see the same numbers, rounded."""
        generator = torch.Generator().manual_seed(seed)

        def draw(low: float, high: float, *shape: int, smallest: float = 0.0) -> Tensor:
            values = torch.rand(shape, generator=generator, dtype=torch.float64)
            values = values * (high - low) + low
            bounded = values.clamp(max=-smallest), values.clamp(min=smallest)
            values = torch.where(values < 0, *bounded)
            return with_layout(values.to(device=device, dtype=dtype), layout)

        models = () if num_models is None else (num_models,)
        x = draw(-2, 2, *(() if shared else models), batch, in_features, smallest=self.min_input)
        sizes = {"O": out_features, "I": in_features, "J": 2 * in_features}
        tensors: dict[str, Tensor | None] = {}
        for name, letters in self.shapes.items():
            low, high = (-0.25, 1.25) if name == "gate" else self.weight_range
            # Exponents shrink with the number of inputs, as by Glorot's rule: results stay finite.
            scale = min(1.0, 3 / max(in_features, 1) ** 0.5) if low < 0 and name != "gate" else 1.0
            shape = (*models, *(sizes[letter] for letter in letters))
            tensors[name] = None if name in without else draw(low * scale, high * scale, *shape)
        title = f"{self.name}-B{batch}-I{in_features}-O{out_features}-K{num_models}"
        title += ("-shared" if shared else "") + "".join(f"-no_{name}" for name in without)
        title += "" if layout == "contiguous" else f"-{layout}"
        options = dict(self.option_sets[0] if options is None else options)
        title += "".join(f"-{value}" for value in options.values())
        return Sample(title, x, tensors, options)

    def variants(self) -> list[tuple[str, ...]]:
        """Return every choice of the optional tensors to leave out."""
        choices: list[tuple[str, ...]] = [()]
        for name in self.optional:
            choices += [(*choice, name) for choice in choices]
        return choices

    def samples(
        self, dtype: torch.dtype = torch.float64, device: str = "cpu", seed: int = 0
    ) -> Iterator[Sample]:
        """Draw valid calls of every size, and of all models, options and layouts on an odd size."""
        draw = functools.partial(self.sample, dtype=dtype, device=device, seed=seed)
        for batch, in_features, out_features in SIZES:
            yield draw(batch, in_features, out_features)
        for num_models in MODELS:
            for shared in (False, True) if num_models else (False,):
                odd = functools.partial(draw, 17, 5, 3, num_models=num_models, shared=shared)
                for without in self.variants():
                    for options in self.option_sets:
                        yield odd(without=without, options=options)
                for layout in LAYOUTS[1:]:
                    yield odd(layout=layout)
        yield draw(33, 31, 17, num_models=3)


def _record(name: str, *samples: Any) -> OperatorRecord:
    return OperatorRecord(name, getattr(functional, name), getattr(reference, name), *samples)


RECORDS: dict[str, OperatorRecord] = {
    **{n: _record(n, e.sampled_within, e.calls, e.min_input) for n, e in ops.LAYERS.items()},
    "nau": _record("nau", (-1.5, 1.5), ({}, {"clip": False})),
    "nac": _record("nac"),
}


def with_layout(tensor: Tensor, layout: str) -> Tensor:
    """Return the tensor in a memory layout; "expanded" repeats the first entry of dimension 0."""
    if layout not in LAYOUTS:
        raise ValueError(f"with_layout: layout is {layout!r}; use one of {LAYOUTS}")
    if layout == "contiguous":
        return tensor.contiguous()
    if layout == "transposed":
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "expanded":
        return tensor[:1].expand(tensor.shape)
    # "sliced": every second element of a larger tensor, whose other elements are nan
    padded = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), float("nan"))
    padded[..., 1::2] = tensor
    return padded[..., 1::2]


def normwise_error(actual: Tensor, expected: Tensor) -> float:
    """Return the normwise relative error: the greatest difference over the greatest magnitude.

    The magnitude is that of `expected`. Entries that are not finite must be the same in both, else
    the error is inf. The error of empty tensors is 0.
    """
    actual, expected = actual.detach().double(), expected.detach().double()
    if actual.shape != expected.shape:
        shapes = f"{tuple(actual.shape)} and {tuple(expected.shape)}"
        raise ValueError(f"normwise_error: shapes differ, {shapes}")
    finite = expected.isfinite()
    rest = (tensor[~finite].nan_to_num(nan=0.5) for tensor in (actual, expected))
    if not torch.equal(finite, actual.isfinite()) or not torch.equal(*rest):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = expected[finite].abs().max().item()
    difference = (actual - expected)[finite].abs().max().item()
    return difference / scale if scale else difference


def rms_error(actual: Tensor, exact: Tensor, scale: Tensor | None = None) -> float:
    """Return the root mean square of ``(actual - exact) / scale``.

    It compares how two programs round one formula. A maximum depends on chance at a single element,
    and so does a common scale where magnitudes differ much. So the default scale is the magnitude
    of each element, at least the median magnitude.
    """
    if exact.numel() == 0:
        return 0.0
    exact = exact.detach().double()
    scale = exact.abs().clamp(min=exact.abs().median().item()) if scale is None else scale
    error = (actual.detach().double() - exact) / scale.clamp(min=1e-300)
    return error.square().mean().sqrt().item()


def error_bound(eager_error: float, dtype: torch.dtype, ulps: float = 4.0) -> float:
    """Return a kernel's greatest error: twice the eager layer's, against float64, plus some ulp."""
    return 2 * eager_error + ulps * torch.finfo(dtype).eps


@contextlib.contextmanager
def fill_uninitialized_with_nan() -> Iterator[None]:
    """Fill the memory of every new output, so that a test sees what a kernel leaves unwritten.

    Where torch's operators allocate, nan fills it. torch does not fill what a C++ library allocates
    through its stable C interface; there the C library does it (glibc only), with bytes that read
    as -1.5 and 3 in float32 and as -0.12 and 33 in float64.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda option, value: None)
    perturb = -6  # M_PERTURB
    options: Any = torch.utils.deterministic
    # On CUDA torch's products otherwise refuse to run; read at every call.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    deterministic = torch.are_deterministic_algorithms_enabled()
    fill = options.fill_uninitialized_memory
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    options.fill_uninitialized_memory = True
    mallopt(perturb, 0xBF)
    try:
        yield
    finally:
        mallopt(perturb, 0)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        options.fill_uninitialized_memory = fill


class CountCalls(TorchDispatchMode):
    """Counts the runs of each of our operators inside the block: ``calls["npu_forward"]``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "npu_kernels":
            self.calls[func.name().partition("::")[2]] += 1
        return func(*args, **(kwargs or {}))
