"""What several modules share: checks of arguments, errors, warnings, seeds and optimizers.

Warnings point to the user's line. Random numbers depend on their purpose and a seed alone. Torch's
optimizers are made without torch's compiler, whose import takes longer than a short training.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from decimal import Decimal
from numbers import Integral, Real
from types import FrameType, MethodType
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor

MAX_INT64 = 2**63 - 1  # torch and C++ have no integers beyond
# Two numbers with a separator of dates or times, or a number and a month's name.
DATE = r"\d[-/:]\d|\d\.\d+\.\d|\d.*[A-Za-z]{3}|[A-Za-z]{3}.*\d"
FINEST_FRACTION = 1000  # the largest denominator: each one up to it is tried


def check_tensor(function: str, name: str, value: Any) -> None:
    """Raise TypeError unless it is a dense tensor: not sparse, nested or of mkldnn's layout."""
    if not isinstance(value, Tensor):
        kind = type(value).__name__
        kind += "; torch.as_tensor makes one" if hasattr(value, "__array__") else ""
        raise TypeError(f"{function}: {name} must be a torch.Tensor, got {kind}")
    if value.is_nested or value.layout is not torch.strided:
        kind = "a nested tensor" if value.is_nested else f"layout {value.layout}"
        raise TypeError(f"{function}: {name} must be a dense tensor, got {kind}")


def check_floating(function: str, name: str, value: Any) -> None:
    """Raise TypeError unless it is a dense tensor of a floating-point dtype."""
    check_tensor(function, name, value)
    if not value.is_floating_point():
        raise TypeError(f"{function}: {name} must have a floating-point dtype, got {value.dtype}")


def check_choice(function: str, name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise ValueError unless it is one of these texts."""
    if not isinstance(value, str) or value not in choices:
        names = ", ".join(map(repr, choices))
        raise ValueError(f"{function}: {name} must be one of {names}, got {value!r}")


def check_flag(function: str, name: str, value: Any) -> bool:
    """Return the value; TypeError unless it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{function}: {name} must be True or False, got {value!r}")
    return value


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether it is an integer, Python's or another library's such as NumPy's, and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def as_number(value: Any) -> float:
    """Return a real number, of any library, as a float; nan for what is none or too large."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an integer
        return math.nan


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a real number, and neither nan nor a bool."""
    return not math.isnan(as_number(value))


def check_whole(
    function: str, name: str, value: Any, minimum: int = 1, *, other: str = "",
    bounded: bool = True, maximum: int = MAX_INT64,
) -> int:  # fmt: skip
    """Return the integer as an int; ValueError unless it is at least `minimum`.

    other: what the argument may also be. bounded: it must also be at most `maximum`.
    """
    too_large = bounded and is_whole(value) and value > maximum
    if not is_whole(value) or value < minimum or too_large:
        limit = " and below 2**63" if maximum == MAX_INT64 else f" and at most {maximum}"
        rule = f"{other}, or " if other else ""
        rule += f"an integer of at least {minimum}" + limit * too_large
        raise ValueError(f"{function}: {name} must be {rule}, got {value!r}")
    return int(value)


def check_denominator(function: str, name: str, value: Any) -> int:
    """Return the largest denominator of a fraction; ValueError unless it is 1 to 1000."""
    return check_whole(function, name, value, maximum=FINEST_FRACTION)


def check_number(
    function: str,
    name: str,
    value: Any,
    *,
    minimum: float = -math.inf,
    above: float = -math.inf,
    finite: bool = True,
    other: str = "",
) -> float:
    """Return the real number as a float; ValueError unless it fits the bounds.

    It must be at least `minimum`, greater than `above` and, with `finite`, no infinity. other: what
    the argument may also be.
    """
    number = as_number(value)
    if not (number >= minimum and number > above and (not finite or number < math.inf)):
        rules = ["finite"] if finite else []
        rules += [f"at least {minimum}"] if minimum > -math.inf else []
        rules += [f"greater than {above}"] if above > -math.inf else []
        rule = (f"{other}, or " if other else "") + " and ".join(rules)
        raise ValueError(f"{function}: {name} must be {rule}, got {value!r}")
    return number


def check_numbers(function: str, name: str, value: Any) -> None:
    """Raise TypeError for a bool, text, bytes, a Decimal or a complex number in lists or arrays.

    What else is no number, their conversion says.
    """
    if isinstance(value, (list, tuple)):
        for entry in value:
            check_numbers(function, name, entry)
        return
    dtype: Any = getattr(value, "dtype", None)
    check_real(function, name, value)
    wrong = dtype is torch.bool or getattr(dtype, "kind", "") in tuple("bSU")
    if wrong or isinstance(value, (bool, str, bytes, Decimal)):
        raise TypeError(f"{function}: {name} must be numbers, got {value!r}")


def check_index(function: str, **tables: Any) -> None:
    """Raise ValueError for tables of pandas whose rows have other labels, or another order.

    Rows are taken in their order, whatever their labels are.
    """
    indices: list[tuple[str, Any]]
    indices = [(name, getattr(table, "index", None)) for name, table in tables.items()]
    pairs = [(name, index) for name, index in indices if hasattr(index, "equals")]
    for name, index in pairs[1:]:
        first, labels = pairs[0]
        if len(index) != len(labels) or index.equals(labels):
            continue
        if index.isin(labels).all() and index.is_unique:
            order, remedy = "in another order", f"{name}.loc[{first}.index] has that order"
        else:
            order = "that differ"
            remedy = f"{first}.reset_index(drop=True) and {name}.reset_index(drop=True) have none"
        raise ValueError(
            f"{function}: {name} must have the row labels (index) of {first}, got labels {order}; "
            f"{remedy}"
        )


def check_real(function: str, name: str, value: Any) -> None:
    """Raise TypeError for a complex number, or a tensor, array or table of such."""
    dtypes: Any = getattr(value, "dtypes", None)  # a DataFrame's, one for each column
    types = list(dtypes) if hasattr(dtypes, "__iter__") else [getattr(value, "dtype", None)]
    for dtype in types:
        if getattr(dtype, "is_complex", False) or getattr(dtype, "kind", "") == "c":
            raise TypeError(f"{function}: {name} must be real, got {dtype}")
    if isinstance(value, complex):
        raise TypeError(f"{function}: {name} must be real, got {value!r}")


def refuse_dates(function: str, name: str, value: Any) -> None:
    """Raise TypeError for dates and durations: as numbers they depend on a unit, such as ns."""
    import datetime

    import numpy

    for column in getattr(value, "columns", ()):
        if not hasattr(value[column], "columns"):  # equal names, which are refused elsewhere
            refuse_dates(function, f"{name}[{column!r}]", value[column])
    try:
        array = numpy.asarray(value)
    except ValueError:  # rows of different lengths, which are refused elsewhere
        return
    first = array.flat[0] if array.dtype.kind in "OU" and array.size else None
    first_name = f"{name}.iloc[0]" if hasattr(value, "iloc") else f"{name}[0]"
    if isinstance(first, str) and _is_date(first):
        dates, first_date = (f"pandas.to_datetime({part})" for part in (name, first_name))
        raise TypeError(
            f"{function}: {name} must be numbers, got dates as text, such as {str(first)!r}; "
            f"in days they are ({dates} - {first_date}) / pandas.Timedelta(days=1)"
        )
    is_date = array.dtype.kind == "M" or isinstance(first, datetime.date)
    if not is_date and array.dtype.kind != "m" and not isinstance(first, datetime.timedelta):
        return
    if array.dtype == object:
        day = "datetime.timedelta(days=1)"
        numbers = f"[(x - {first_name}) / {day} for x in {name}]" if is_date else ""
        numbers = numbers or f"[x / {day} for x in {name}]"
    else:
        day = 'numpy.timedelta64(1, "D")'
        numbers = f"({name} - {first_name}) / {day}" if is_date else f"{name} / {day}"
    raise TypeError(
        f"{function}: {name} must be numbers, got {'dates' if is_date else 'distances in time'}; "
        f"in days they are {numbers}"
    )


def _is_date(text: str) -> bool:
    """Return whether pandas reads a text as a date, which is no number."""
    try:
        float(text)
        return False
    except ValueError:
        if not re.search(DATE, text):  # pandas accepts "1.6a" too
            return False
    try:
        import pandas

        return not pandas.isna(pandas.to_datetime(text))
    except (ImportError, ValueError, OverflowError):
        return False


def check_level(function: str, value: Any) -> float:
    """Return the level of confidence; ValueError unless it is between 0 and 1."""
    level = as_number(value)
    if not 0 < level < 1:
        raise ValueError(f"{function}: level must be between 0 and 1, got {value!r}")
    return level


def check_module(function: str, name: str, value: Any) -> None:
    """Raise TypeError unless it is a module."""
    if not isinstance(value, torch.nn.Module):
        raise TypeError(f"{function}: {name} must be a torch.nn.Module, got {type(value).__name__}")


# ---- errors ----


class NonFiniteError(FloatingPointError):
    """A value is inf or nan.

    `npu_kernels.ode` and `npu_kernels.training.debug` raise it under their own names.

    message: names the model and the step, or the module, the output and the row.
    first: in `ode`, the first such step of each trajectory (`ode.first_nonfinite`), else None.
    found: in `debug`, the `NonFinite` record, else None.
    """

    def __init__(self, message: str, first: Any = None, *, found: Any = None) -> None:
        super().__init__(message)
        self.first = first
        self.found = found


# ---- warnings ----

# What lies between a user's line and a warning: this package, and the code of others that calls it
# for the user.
BETWEEN = ("npu_kernels", "torch", "contextlib", "joblib", "sklearn")


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warn as `warnings.warn` at the line of the user's code that led here."""
    frame = _users_frame()
    variables = frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=variables.get("__name__", "<string>"),
        registry=variables.setdefault("__warningregistry__", {}),
    )


def _users_frame() -> FrameType:
    """Return the innermost frame of the user's code; the outermost one in a thread of torch."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_between(frame):
        frame = frame.f_back
    return frame


def _is_between(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__")  # absent in code that torch.fx wrote
    return name is None or name.partition(".")[0] in BETWEEN


# ---- seeds ----


def stream(purpose: str, seed: int, block: int = 0) -> torch.Generator:
    """Return a generator on the CPU that depends on these three alone."""
    digest = hashlib.blake2b(f"fit:{purpose}:{seed}:{block}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


# ---- optimizers ----

_Optimizer = TypeVar("_Optimizer", bound=torch.optim.Optimizer)


def plain_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a bound method of an optimizer that does not import torch's compiler.

    torch wraps what must not be compiled in a function that imports `torch._dynamo` when it is
    called. Before that import nothing is compiled, so the wrapped function does the same. A method
    that somebody has replaced or wrapped is returned as it is.
    """
    wrapper = getattr(method, "__func__", None)
    inner = getattr(wrapper, "__wrapped__", None)
    by_torch = getattr(wrapper, "__globals__", None) is vars(torch._compile)
    if inner is None or not by_torch or "torch._dynamo" in sys.modules:
        return method
    return MethodType(inner, method.__self__)  # type: ignore[attr-defined]


def make_optimizer(
    kind: type[_Optimizer], parameters: Iterable[Tensor], **settings: Any
) -> _Optimizer:
    """Return an optimizer of this class; making it does not import torch's compiler."""
    optimizer = kind.__new__(kind)
    optimizer.add_param_group = plain_method(optimizer.add_param_group)  # type: ignore[method-assign]
    optimizer.__init__(parameters, **settings)  # type: ignore[misc]
    del optimizer.add_param_group
    return optimizer
