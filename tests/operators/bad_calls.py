"""Calls of every layer's function that must raise an error, with their messages."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tests.support.samples import OperatorRecord, Sample


@dataclass(frozen=True)
class ErrorSample:
    """One call that must raise an error."""

    name: str  # what is wrong
    arguments: tuple[Any, ...]  # positional: x and the tensors
    options: dict[str, Any]  # keyword arguments
    error: type[Exception]
    message: str  # a regular expression that the error's message matches


def error_samples(record: OperatorRecord) -> list[ErrorSample]:
    """Return calls that must fail: 4 inputs, 2 outputs, 8 rows."""
    good, models = record.sample(8, 4, 2), record.sample(8, 4, 2, num_models=3)
    bad = functools.partial(_bad, record, ValueError, good)
    bad_models = functools.partial(_bad, record, ValueError, models)
    bad_type = functools.partial(_bad, record, TypeError, good)
    names, x = list(good.tensors), good.x
    first = names[0]
    columns = "2 in_features" if record.shapes[first] == "OJ" else "in_features"
    size = r"x must have last dimension 4 \(in_features\), got shape"
    rows = r"x must have shape \(3, ..., 4\)"
    shared = r"\(batch, 4\) \(shared by all models\), got shape \(2, 8, 4\)$"
    any_rows = rf"{rows} \(num_models, ..., in_features\) or {shared}"
    shapes = rf"\(out_features, {columns}\) or \(num_models, out_features, {columns}\)"
    shapes = rf"{first} must have shape {shapes}"
    floats = "x must be float16, bfloat16, float32 or float64, got torch"
    dtypes = r"all tensors must have one dtype, got x torch.float32, \w+ torch.float64"
    devices = r"all tensors must have one device, got x meta, \w+ cpu"
    vectors = dict.fromkeys(names, x.new_ones(4))
    shape_errors = [
        bad("last dimension", rf"{size} \(8, 3\)$", x=x.new_ones(8, 3)),
        bad("no dimension", rf"{size} \(\)$", x=x.new_ones(())),
        bad_models("number of models", any_rows, x=x.new_ones(2, 8, 4)),
        bad_models("one row for models", rf"{rows} .*, got shape \(4,\)$", x=x.new_ones(4)),
        bad("weight dimensions", rf"{shapes}, got shape \(4,\)$", **vectors),
        bad("two devices", devices, x=x.to("meta")),
    ]
    type_errors = [
        bad_type("integers", rf"{floats}.int64$", x=x.long()),
        bad_type("booleans", rf"{floats}.bool$", x=x > 0),
        bad_type("complex", rf"{floats}.complex128$", x=x.to(torch.complex128)),
        bad_type("two dtypes", dtypes, x=x.float()),
        bad_type("no tensor", r"x must be a torch.Tensor, got list$", x=[1.0, 2.0, 3.0, 4.0]),
        bad_type("no weight", rf"{first} must be a torch.Tensor, got float$", **{first: 1.0}),
    ]
    errors = *_weight_errors(record, good, models), *_option_errors(record, good)
    return [*shape_errors, *type_errors, *errors]


def _bad(
    record: OperatorRecord,
    error: type[Exception],
    base: Sample,
    name: str,
    message: str,
    /,
    **changes: Any,
) -> ErrorSample:
    """Return a call of `base` with some arguments changed."""
    arguments: dict[str, Any] = {"x": base.x, **base.tensors}
    options = {key: changes.pop(key) for key in list(changes) if key not in arguments}
    values = (arguments | changes).values()
    return ErrorSample(name, tuple(values), options, error, f"^{record.name}: {message}")


def _weight_errors(record: OperatorRecord, good: Sample, models: Sample) -> Iterator[ErrorSample]:
    first, *rest = good.tensors
    ones, bad = good.x.new_ones, functools.partial(_bad, record, ValueError, good)
    if record.shapes[first] == "OJ":
        rule = rf"{first} must have an even last dimension \(2 in_features\)"
        message = rf"{rule}, got shape \(2, 7\)$"
        yield bad("odd columns", message, **{first: ones(2, 7)})
    for name in rest:
        if record.shapes[name] == "OI":
            message = rf"{name} must have the shape of {first}, \(2, 4\), got shape \(2, 3\)$"
            yield bad(f"{name} shape", message, **{name: ones(2, 3)})
            continue
        size, meaning = (4, "in_features") if record.shapes[name] == "I" else (2, "out_features")
        message = rf"{name} must have shape \({size},\) \({meaning}\), got shape \(3,\)$"
        yield bad(f"{name} length", message, **{name: ones(3)})
        rule = rf"{name} must have shape \(3, {size}\) \(num_models, {meaning}\)"
        message = rf"{rule}, got shape \({size},\)$"
        yield _bad(record, ValueError, models, f"{name} models", message, **{name: ones(size)})


def _option_errors(record: OperatorRecord, good: Sample) -> Iterator[ErrorSample]:
    bad = functools.partial(_bad, record, ValueError, good)
    if "eps" in inspect.signature(record.function).parameters:
        zero = record.name == "nmru"
        rule = f"eps must be {'0, or finite' if zero else 'finite'} and greater than 0 in "
        values = -1e-3, math.nan, math.inf, 1e-320, "small", True, *(() if zero else (0.0,))
        for value in values:
            yield bad(f"eps {value}", rule + "float64, got ", eps=value)
        single = good.map(lambda tensor: tensor.float())
        message = rule + "float32, got 1e-50$"
        yield bad("eps of float32", message, x=single.x, **single.tensors, eps=1e-50)
    if record.name == "npu":
        message = r"gate_gradient must be one of 'clip', 'straight_through', got 'hard'$"
        yield bad("gate gradient", message, gate_gradient="hard")
    if record.name == "inalu":
        message = r"omega must be finite and greater than 0 in float64, got 0$"
        yield bad("omega", message, omega=0)
