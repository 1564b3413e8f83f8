"""Samples and errors of every layer's function, read by the tests and by the benchmarks.

A record names the fused function and its eager reference, draws valid samples over the sizes and layouts that break
kernels (0, 1, odd, around vector widths; contiguous, transposed, expanded, sliced), lists the calls that must fail with
their messages, and bounds the error: at most twice the eager layer's, measured against float64, plus a few ulp.
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

from npu_kernels import functional, ops, reference

# Batch, in and out sizes: nothing, one, odd, and around the widths of vectors and tiles.
SIZES: tuple[tuple[int, int, int], ...] = (
    (0, 3, 2),
    (1, 1, 1),
    (3, 5, 7),
    (7, 1, 4),
    (16, 15, 16),
    (17, 17, 15),
    (33, 16, 31),
    (31, 31, 17),
    (49, 47, 48),
    (5, 48, 49),
    (2, 100, 1),
    (100, 6, 2),
)
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
        """The function's result."""
        return function(self.x, *self.tensors.values(), **self.options)

    def map(self, change: Callable[[Tensor], Tensor]) -> Sample:
        """The sample with every tensor changed."""
        tensors = {name: None if t is None else change(t) for name, t in self.tensors.items()}
        return Sample(self.name, change(self.x), tensors, self.options)

    def requires_grad(self) -> Sample:
        """The sample over fresh leaves that require gradients."""
        return self.map(lambda t: t.detach().clone(memory_format=torch.preserve_format).requires_grad_())

    def leaves(self) -> list[Tensor]:
        """x and the tensors that are present."""
        return [self.x, *(t for t in self.tensors.values() if t is not None)]


@dataclass(frozen=True)
class ErrorSample:
    """One call that must raise `error` with a message that matches `message` (a regular expression)."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    error: type[Exception]
    message: str


@dataclass(frozen=True)
class OperatorRecord:
    """What a test or a benchmark needs to know about a layer's function; `ops` has its shapes."""

    name: str
    function: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    weight_range: tuple[float, float] = (-1.0, 1.0)
    option_sets: tuple[Mapping[str, Any], ...] = ({},)
    least_input: float = 0.0  # the size of an element of x

    @property
    def shapes(self) -> Mapping[str, str]:
        """Tensor -> its sizes, as in `ops.WEIGHTS`."""
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
        """One valid call. Values are drawn in float64, so that dtypes see the same numbers up to rounding."""
        generator = torch.Generator().manual_seed(seed)

        def draw(low: float, high: float, *shape: int) -> Tensor:
            values = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
            return with_layout(values.to(device=device, dtype=dtype), layout)

        def inputs(*shape: int) -> Tensor:
            values = torch.rand(shape, generator=generator, dtype=torch.float64) * 4 - 2
            values = torch.where(values < 0, values.clamp(max=-self.least_input), values.clamp(min=self.least_input))
            return with_layout(values.to(device=device, dtype=dtype), layout)

        models = () if num_models is None else (num_models,)
        x = inputs(*(() if shared else models), batch, in_features)
        sizes = {"O": out_features, "I": in_features, "J": 2 * in_features}
        tensors: dict[str, Tensor | None] = {}
        for name, letters in self.shapes.items():
            low, high = (-0.25, 1.25) if name == "gate" else self.weight_range
            # Exponents shrink with the number of inputs, as Glorot's do, so that results stay finite.
            scale = min(1.0, 3 / max(in_features, 1) ** 0.5) if low < 0 and name != "gate" else 1.0
            shape = (*models, *(sizes[letter] for letter in letters))
            tensors[name] = None if name in without else draw(low * scale, high * scale, *shape)
        title = f"{self.name}-B{batch}-I{in_features}-O{out_features}-K{num_models}{'-shared' if shared else ''}"
        title += "".join(f"-no_{name}" for name in without) + ("" if layout == "contiguous" else f"-{layout}")
        options = dict(self.option_sets[0] if options is None else options)
        title += "".join(f"-{value}" for value in options.values())
        return Sample(title, x, tensors, options)

    def variants(self) -> list[tuple[str, ...]]:
        """Every choice of the optional tensors to leave out."""
        choices: list[tuple[str, ...]] = [()]
        for name in self.optional:
            choices += [(*choice, name) for choice in choices]
        return choices

    def samples(self, dtype: torch.dtype = torch.float64, device: str = "cpu", seed: int = 0) -> Iterator[Sample]:
        """Valid calls: every size; every number of models, optional tensor, option and layout on an odd size."""
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

    def error_samples(self) -> list[ErrorSample]:
        """Calls that must fail: 4 inputs, 2 outputs, 8 rows."""
        good = self.sample(8, 4, 2)
        models = self.sample(8, 4, 2, num_models=3)
        names = list(good.tensors)
        first = names[0]

        def bad(name: str, error: type[Exception], message: str, base: Sample = good, /, **changes: Any) -> ErrorSample:
            return self._bad(name, error, message, base, **changes)

        columns = "2 in_features" if self.shapes[first] == "OJ" else "in_features"
        floats = "float16, bfloat16, float32 or float64"
        x = good.x
        # fmt: off
        of_any = [
            bad("last dimension", ValueError, r"x must have last dimension 4 \(in_features\), got shape \(8, 3\)$",
                x=x.new_ones(8, 3)),
            bad("no dimension", ValueError, r"x must have last dimension 4 \(in_features\), got shape \(\)$",
                x=x.new_ones(())),
            bad("number of models", ValueError,
                r"x must have shape \(3, ..., 4\) \(num_models, ..., in_features\) "
                r"or \(batch, 4\) \(shared by all models\), got shape \(2, 8, 4\)$", models, x=x.new_ones(2, 8, 4)),
            bad("one row for models", ValueError, r"x must have shape \(3, ..., 4\) .*, got shape \(4,\)$", models,
                x=x.new_ones(4)),
            bad("weight dimensions", ValueError,
                rf"{first} must have shape \(out_features, {columns}\) or \(num_models, out_features, {columns}\), "
                r"got shape \(4,\)$", **{name: x.new_ones(4) for name in names}),
            bad("integers", TypeError, rf"x must be {floats}, got torch.int64$", x=x.long()),
            bad("booleans", TypeError, rf"x must be {floats}, got torch.bool$", x=x > 0),
            bad("complex", TypeError, rf"x must be {floats}, got torch.complex128$", x=x.to(torch.complex128)),
            bad("two dtypes", TypeError, r"all tensors must have one dtype, got x torch.float32, \w+ torch.float64",
                x=x.float()),
            bad("two devices", ValueError, r"all tensors must have one device, got x meta, \w+ cpu", x=x.to("meta")),
            bad("no tensor", TypeError, r"x must be a torch.Tensor, got list$", x=[1.0, 2.0, 3.0, 4.0]),
            bad("no weight", TypeError, rf"{first} must be a torch.Tensor, got float$", **{first: 1.0}),
        ]
        # fmt: on
        return [*of_any, *self._weight_errors(good, models), *self._option_errors(good)]

    def _bad(self, name: str, error: type[Exception], message: str, base: Sample, /, **changes: Any) -> ErrorSample:
        """A call of `base` with some arguments changed."""
        options = {key: changes.pop(key) for key in list(changes) if key != "x" and key not in base.tensors}
        arguments = {"x": base.x, **base.tensors, **changes}
        return ErrorSample(name, tuple(arguments.values()), options, error, f"^{self.name}: {message}")

    def _weight_errors(self, good: Sample, models: Sample) -> list[ErrorSample]:
        x, found = good.x, []
        first, *others = good.tensors
        if self.shapes[first] == "OJ":
            message = rf"{first} must have an even last dimension \(2 in_features\), got shape \(2, 7\)$"
            found.append(self._bad("odd columns", ValueError, message, good, **{first: x.new_ones(2, 7)}))
        for name in others:
            if self.shapes[name] == "OI":
                message = rf"{name} must have the shape of {first}, \(2, 4\), got shape \(2, 3\)$"
                found.append(self._bad(f"{name} shape", ValueError, message, good, **{name: x.new_ones(2, 3)}))
            else:
                size, meaning = (4, "in_features") if self.shapes[name] == "I" else (2, "out_features")
                message = rf"{name} must have shape \({size},\) \({meaning}\), got shape \(3,\)$"
                found.append(self._bad(f"{name} length", ValueError, message, good, **{name: x.new_ones(3)}))
                message = rf"{name} must have shape \(3, {size}\) \(num_models, {meaning}\), got shape \({size},\)$"
                found.append(self._bad(f"{name} models", ValueError, message, models, **{name: x.new_ones(size)}))
        return found

    def _option_errors(self, good: Sample) -> list[ErrorSample]:
        found = []

        def bad(name: str, message: str, **changes: Any) -> None:
            found.append(self._bad(name, ValueError, message, good, **changes))

        if self.name in ops.LAYERS and "eps" in ops.LAYERS[self.name].options:
            zero = "eps" in ops.LAYERS[self.name].may_be_zero
            rule = "eps must be " + ("0, or finite" if zero else "finite") + " and greater than 0 in "
            for value in (-1e-3, float("nan"), float("inf"), 1e-320, "small", True, *(() if zero else (0.0,))):
                bad(f"eps {value}", rule + "float64, got ", eps=value)
            single = {name: None if t is None else t.float() for name, t in good.tensors.items()}
            bad("eps of float32", rule + "float32, got 1e-50$", x=good.x.float(), **single, eps=1e-50)
        if self.name == "npu":
            message = r"gate_gradient must be 'clip' or 'straight_through', got 'hard'$"
            bad("gate gradient", message, gate_gradient="hard")
        if self.name == "inalu":
            message = r"omega must be finite and greater than 0 in float64, got 0$"
            bad("omega", message, omega=0)
        return found


def _record(name: str, *samples: Any) -> OperatorRecord:
    return OperatorRecord(name, getattr(functional, name), getattr(reference, name), *samples)


RECORDS: dict[str, OperatorRecord] = {
    **{name: _record(name, layer.drawn_within, layer.calls, layer.least_input) for name, layer in ops.LAYERS.items()},
    "nau": _record("nau", (-1.5, 1.5), ({}, {"clip": False})),
    "nac": _record("nac"),
}


def with_layout(tensor: Tensor, layout: str) -> Tensor:
    """The tensor in another memory layout; "expanded" repeats its first entry along the first dimension."""
    if layout == "contiguous":
        return tensor.contiguous()
    if layout == "transposed":
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "expanded":
        return tensor[:1].expand(tensor.shape)
    if layout == "sliced":  # every second element of a larger tensor, whose other elements are nan
        padded = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), float("nan"))
        padded[..., 1::2] = tensor
        return padded[..., 1::2]
    raise ValueError(f"with_layout: layout must be one of {LAYOUTS}, got {layout!r}")


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """The greatest difference in units of the greatest expected magnitude; 0 for empty tensors.

    Entries that are not finite must be the same in both, else the error is inf.
    """
    actual, expected = actual.detach().double(), expected.detach().double()
    if actual.shape != expected.shape:
        raise ValueError(f"relative_error: shapes differ, {tuple(actual.shape)} and {tuple(expected.shape)}")
    finite = expected.isfinite()
    if not torch.equal(finite, actual.isfinite()) or not torch.equal(
        actual[~finite].nan_to_num(nan=0.5), expected[~finite].nan_to_num(nan=0.5)
    ):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = expected[finite].abs().max().item()
    difference = (actual - expected)[finite].abs().max().item()
    return difference / scale if scale else difference


def rms_error(actual: Tensor, exact: Tensor, scale: Tensor | None = None) -> float:
    """The root mean square of ``(actual - exact) / scale``, to compare how two programs round one formula.

    A maximum depends on chance at a single element, and so does a common scale where magnitudes differ much. So the
    default scale is each element's own magnitude, and at least the median one.
    """
    if exact.numel() == 0:
        return 0.0
    exact = exact.detach().double()
    scale = exact.abs().clamp(min=exact.abs().median().item()) if scale is None else scale
    return ((actual.detach().double() - exact) / scale.clamp(min=1e-300)).square().mean().sqrt().item()


def error_bound(eager_error: float, dtype: torch.dtype, ulps: float = 4.0) -> float:
    """The error that a kernel may have: twice the eager layer's, both against float64, plus a few ulp."""
    return 2 * eager_error + ulps * torch.finfo(dtype).eps


@contextlib.contextmanager
def fill_uninitialized_with_nan() -> Iterator[None]:
    """Fill the memory of every new output, so that an element that a kernel does not write cannot pass.

    With nan where torch's operators allocate. torch does not fill what a C++ library allocates through its stable C
    interface; there the C library does it (glibc only), with bytes that read as -1.5 and 3 in float32 and as -0.12 and
    33 in float64.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda option, value: None)
    perturb = -6  # M_PERTURB
    options: Any = torch.utils.deterministic
    # On CUDA torch's products otherwise refuse to run; read at every call.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    deterministic, fill = torch.are_deterministic_algorithms_enabled(), options.fill_uninitialized_memory
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
    """How often each of our operators runs inside the block: ``calls["npu_forward"]``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "npu_kernels":
            self.calls[func.name().partition("::")[2]] += 1
        return func(*args, **(kwargs or {}))
