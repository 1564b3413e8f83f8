"""Check of this installation: ``python -m npu_kernels.certify``.

It checks the function of every layer on every backend that runs here, on the CPU once for each
instruction set. It compares

- values and gradients in float64 and float32 against ``npu_kernels.reference`` in float64, with
  0, 1, odd and larger numbers of rows, 1, odd and larger numbers of features, one model and
  ``num_models=3``, with and without the optional arguments of each layer, such as the imaginary
  weights of `npu`;
- first and second derivatives against finite differences: gradcheck and gradgradcheck.

It prints a line for each layer on each backend with the largest relative error, then the backends
that cannot run here, with the reason. The exit status is 1 if a check fails, else 0.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from npu_kernels import functional, reference, use_backend
from npu_kernels._operators import cpu, dispatch, ops

__all__ = ["Place", "check_derivatives", "check_values", "main", "places"]

SIZES = (0, 3, 2), (1, 1, 1), (3, 5, 7), (17, 17, 15), (33, 16, 31), (5, 48, 49)  # rows, in, out
# The largest relative error in float64; in float32 so many times the eager error, and some
# units of rounding. A maximum depends on chance: the tests of the package allow less.
ROUNDING64, TIMES32, ULPS32 = 5e-13, 4, 16
# torch's own defaults let an error of one part in a thousand pass.
TIGHT: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-7}
# The products with NAU and NAC are torch's own, without operators of ours.
RECORDS = ops.LAYERS | {
    "nau": ops.Layer("nau", ops.WEIGHTS["nau"], calls=({}, {"clip": False})),
    "nac": ops.Layer("nac", ops.WEIGHTS["nac"]),
}


@dataclass(frozen=True)
class Place:
    """Where a layer runs.

    Attributes:
        backend: as in ``use_backend``.
        device: torch's name of the device.
        isa: the instruction set of the backend "cpu".
    """

    backend: str
    device: str = "cpu"
    isa: str | None = None

    def __str__(self) -> str:
        return f"{self.backend} {self.isa or 'on ' + self.device}"

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Force the backend and the instruction set in the block."""
        before = cpu.isa() if self.isa else None
        try:
            if self.isa:
                cpu.set_isa(self.isa)
            with use_backend(self.backend):
                yield
        finally:
            if before:
                cpu.set_isa(before)


def places() -> tuple[list[Place], dict[str, str]]:
    """Return the backends that can be checked here, and why each of the others cannot.

    Returns one `Place` for each device, backend and instruction set, and a dictionary from the name
    of an unavailable backend to the reason.
    """
    runs: list[Place] = []
    absent = {}
    for device in ("cpu", "cuda"):
        if device == "cuda" and not torch.cuda.is_available():
            absent["cuda"] = "torch finds no CUDA device"
            continue
        for backend, (available, reason) in dispatch.reasons(device).items():
            if not available:
                absent[f"{backend} on {device}"] = reason
            elif backend == "cpu":
                runs += [Place("cpu", isa=isa) for isa in cpu.supported_isas()]
            else:
                runs.append(Place(backend, device))
    return runs, absent


@dataclass(frozen=True)
class _Call:
    """A call of a layer's function; absent weights are None."""

    tensors: tuple[Tensor | None, ...]  # x first
    options: dict[str, Any]

    @property
    def leaves(self) -> list[Tensor]:
        return [tensor for tensor in self.tensors if tensor is not None]

    def with_leaves(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return the function of the tensors that are present."""

        def call(*leaves: Tensor) -> Tensor:
            present = iter(leaves)
            tensors = [None if tensor is None else next(present) for tensor in self.tensors]
            return function(*tensors, **self.options)

        return call


def _draw(layer: str, place: Place, sizes: tuple[int, int, int], **changes: Any) -> _Call:
    """A call in float64; changes: models, absent (names of weights), options."""
    record = RECORDS[layer]
    generator = torch.Generator().manual_seed(0)
    rows, in_features, out_features = sizes
    models = (changes["models"],) if changes.get("models") else ()

    def uniform(low: float, high: float, shape: tuple[int, ...]) -> Tensor:
        values = torch.rand((*models, *shape), generator=generator, dtype=torch.float64)
        return (values * (high - low) + low).to(place.device)

    x = uniform(-2, 2, (rows, in_features))
    tensors: list[Tensor | None] = [x.sign() * x.abs().clamp(min=record.min_input)]
    lengths = {"O": out_features, "I": in_features, "J": 2 * in_features}
    for name, letters in record.weights.items():
        low, high = (-0.25, 1.25) if name == "gate" else record.sampled_within
        # Exponents shrink with the number of inputs, as by Glorot's rule: results stay finite.
        scale = min(1.0, 3 / in_features**0.5) if low <= -1 else 1.0
        weight = scale * uniform(low, high, tuple(lengths[letter] for letter in letters))
        tensors.append(None if name in changes.get("absent", ()) else weight)
    return _Call(tuple(tensors), dict(changes.get("options", record.calls[0])))


def _calls(layer: str, place: Place) -> Iterator[_Call]:
    """Calls of every size, and of all models, options and absent weights on one of them."""
    draw, record = functools.partial(_draw, layer, place), RECORDS[layer]
    for sizes in SIZES:
        yield draw(sizes)
    for models, options in itertools.product((None, 1, 3), record.calls):
        for count in range(len(record.optional) + 1):
            for absent in itertools.combinations(record.optional, count):
                yield draw((17, 5, 3), models=models, options=options, absent=absent)


def _results(call: _Call, function: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The value and the gradients, in float64."""
    leaves = [leaf.to(dtype).requires_grad_() for leaf in call.leaves]
    y = call.with_leaves(function)(*leaves)
    upstream = torch.linspace(-1, 1, y.numel(), dtype=dtype, device=y.device).reshape(y.shape)
    return [t.detach().double() for t in (y, *torch.autograd.grad(y, leaves, upstream))]


def _error(actual: Tensor, exact: Tensor) -> float:
    """The largest difference over the largest magnitude; inf where one of them is not finite."""
    if exact.numel() == 0:
        return 0.0 if actual.shape == exact.shape else float("inf")
    error = float((actual - exact).abs().max() / exact.abs().max().clamp(min=1e-300))
    return error if error < float("inf") else float("inf")


def check_values(layer: str, place: Place) -> str:
    """Compare values and gradients; return the largest errors as text.

    Raises:
        AssertionError: an error is larger than allowed.
    """
    fused, eager = getattr(functional, layer), getattr(reference, layer)
    worst = {torch.float64: 0.0, torch.float32: 0.0}
    for call in _calls(layer, place):
        for dtype in worst:
            rounded = _Call(
                tuple(t if t is None else t.to(dtype).double() for t in call.tensors), call.options
            )
            exact = _results(rounded, eager, torch.float64)
            plain = _results(rounded, eager, dtype)
            with place.use():
                actual = _results(rounded, fused, dtype)
            for ours, theirs, right in zip(actual, plain, exact, strict=True):
                error, bound = _error(ours, right), ROUNDING64
                if dtype is torch.float32:
                    bound = TIMES32 * _error(theirs, right) + ULPS32 * torch.finfo(dtype).eps
                if not error <= bound:
                    shapes = [tuple(t.shape) for t in call.leaves]
                    called = f"shapes {shapes}, options {call.options}, {dtype}"
                    raise AssertionError(
                        f"{called}: error {error:.2g}, at most {bound:.2g} allowed"
                    )
                worst[dtype] = max(worst[dtype], error)
    return ", ".join(f"{str(dtype)[6:]} {error:.0e}" for dtype, error in worst.items())


def check_derivatives(layer: str, place: Place) -> None:
    """Compare the first and second derivatives with finite differences.

    Raises:
        torch.autograd.gradcheck.GradcheckError: they differ.
    """
    call = _draw(layer, place, (3, 3, 2))
    for number, leaf in enumerate(call.leaves):  # away from where there is no derivative
        for kink in (0,) if number == 0 else (0, 1):
            near = (leaf - kink).abs() < 0.1
            leaf.add_(0.2 * near * (leaf - kink).sign())
        leaf.requires_grad_()
    function = call.with_leaves(getattr(functional, layer))
    quick = place.backend == "triton" and place.device == "cpu"  # interpreted, which is slow
    with place.use():
        torch.autograd.gradcheck(function, call.leaves, fast_mode=quick, **TIGHT)
        torch.autograd.gradgradcheck(function, call.leaves, fast_mode=quick, **TIGHT)


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m npu_kernels.certify",
        description="Check every layer on every backend of this machine: values and gradients"
        " against the eager implementation, derivatives against finite differences.",
    )
    parser.parse_args(arguments)
    runs, absent = places()
    print("values and gradients against npu_kernels.reference; gradcheck, gradgradcheck")
    failed = 0
    for place, layer in itertools.product(runs, RECORDS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                errors = check_values(layer, place)
                check_derivatives(layer, place)
            print(f"ok    {layer} by {place}: largest errors {errors}", flush=True)
        except Exception as error:  # of any kind: the other layers are checked all the same
            failed += 1
            text = (str(error).strip().splitlines() or [""])[-1]
            print(f"FAIL  {layer} by {place}: {type(error).__name__}: {text}", flush=True)
    for name, reason in absent.items():
        print(f"not run: {name}: {reason}")
    print(f"{len(runs) * len(RECORDS)} checked, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
