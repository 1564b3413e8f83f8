"""The formula that a model computes: `extract` and its result."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from npu_kernels._common import display
from npu_kernels._common.checks import check_denominator, check_whole
from npu_kernels.formula._code import TorchFunction, torch_function, with_comment
from npu_kernels.formula._models import POWER_UNITS, Layer, check_model, epsilon, layers_of
from npu_kernels.layers import NALU, NMRU, iNALU

if TYPE_CHECKING:
    from types import ModuleType

INSTALL = (
    "npu_kernels.formula needs sympy to write formulas: "
    "pip install 'npu_kernels[formula]' (or: pip install sympy)"
)


def require_sympy() -> ModuleType:
    try:
        import sympy
    except ImportError as error:
        raise ImportError(INSTALL) from error
    return sympy  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Formula:
    """The formula of a model, from `extract`.

    ``str()`` returns one line per output, with Python's operators, ``|x|``, and ``[x < 0]`` for 1
    if x is negative, else 0. Decimals are rounded to 4 digits. Names that are not Python
    identifiers, such as ``T-T0``, are in backquotes. A call with ``x [..., I]`` returns
    ``[..., O]``, computed by `torch_function` with all digits.

    Attributes:
        symbols: sympy symbols of the inputs.
        names: names of the outputs.
        expressions: sympy expressions, one for each output.
        note: what the formula leaves out of the model, as text.
    """

    symbols: tuple[Any, ...]
    names: tuple[str, ...]
    expressions: tuple[Any, ...]
    note: str

    def text(self, digits: int | None = 4) -> str:
        """Return one line per output. digits: significant digits of decimals, None for all."""
        from npu_kernels.formula import _sympy as printing

        digits = _check_digits("text", digits)
        rows = zip(self.names, self.expressions, strict=True)
        return "\n".join(f"{name} = {printing.written(e, digits)}" for name, e in rows)

    def latex(self, digits: int | None = 4) -> list[str]:
        """Return one LaTeX equation per output, without dollars. digits: same as for `text`."""
        from npu_kernels.formula import _sympy as printing

        digits = _check_digits("latex", digits)
        require_sympy()
        rows = zip(self.names, self.expressions, strict=True)
        return [f"{display.latex_name(name)} = {printing.latex(e, digits)}" for name, e in rows]

    @functools.cached_property
    def torch_function(self) -> TorchFunction:
        """The formula as plain torch code, which does not need sympy; ``str()`` is the source."""
        return with_comment(self._code, self.text())

    @functools.cached_property
    def _code(self) -> TorchFunction:
        """`torch_function` without its comment: writing that takes sympy as long as the rest."""
        return torch_function(self.symbols, self.expressions)

    def __call__(self, x: Tensor) -> Tensor:
        return self._code(x)

    def __str__(self) -> str:
        return self.text()

    def _repr_latex_(self) -> str | None:
        return display.latex(self.latex)


def _check_digits(function: str, digits: int | None) -> int | None:
    return None if digits is None else check_whole(function, "digits", digits)


def _note(layers: dict[str, Layer], eps: bool) -> str:
    """Return what the formula leaves out, in words."""
    parts = []
    for name, layer in layers.items():
        if eps or not isinstance(layer, (*POWER_UNITS, NALU, iNALU, NMRU)):
            continue
        if isinstance(layer, NMRU) and not (layer.training and layer.eps):
            continue
        value = epsilon(layer)
        unit = f"{type(layer).__name__} {name!r}" if name else type(layer).__name__
        if isinstance(layer, iNALU):
            effect = f"max(|x|, {value:.3g}), which differs below {value:.3g} only"
        elif isinstance(layer, NMRU):
            effect = f"1/(x + {value:.3g}) in training mode"
        else:
            factor = f"(1 + {value:.3g}/|x|)**w"
            effect = f"|x| + {value:.3g}, which makes a power |x|**w greater by the factor {factor}"
        parts.append(f"{unit} computes with {effect}")
    if not parts:
        return ""
    parts.append("at 0 the formula may be 0, infinite or undefined where the model is finite")
    return "eps is left out of the formula: " + "; ".join(parts) + "."


def _nonnegative_names(nonnegative: Any, names: Sequence[str]) -> Collection[str]:
    """Return the names of the inputs that are never negative, from `nonnegative` of `extract`."""
    if isinstance(nonnegative, bool):
        return names if nonnegative else ()
    if hasattr(nonnegative, "shape"):  # data [N, I]
        rule, shape = f"must be data of shape (N, {len(names)})", tuple(nonnegative.shape)
        if len(shape) != 2 or shape[1] != len(names) or not shape[0]:
            raise ValueError(f"extract: nonnegative {rule} if it is data, got shape {shape}")
        columns = nonnegative.to_numpy().T if hasattr(nonnegative, "columns") else nonnegative.T
        return {name for name, column in zip(names, columns, strict=True) if (column >= 0).all()}
    unknown = sorted(set(nonnegative) - set(names))
    if unknown:
        raise ValueError(f"extract: nonnegative must name inputs, got {unknown}")
    return nonnegative  # type: ignore[no-any-return]


def _symbols(
    sympy: ModuleType, inputs: Sequence[Any] | None, count: int, nonnegative: Any
) -> tuple[Any, ...]:
    if inputs is None:
        inputs = [f"x{i}" for i in range(count)] if count > 1 else ["x"]
    names = [str(name) for name in inputs]
    if isinstance(inputs, str) or len(inputs) != count or len(set(names)) != count:
        rule = f"{count} different names (in_features)"
        raise ValueError(f"extract: inputs must be {rule}, got {inputs!r}")
    nonnegative = _nonnegative_names(nonnegative, names)
    symbols = []
    for name in inputs:
        if isinstance(name, sympy.Symbol):
            symbols.append(name)
        elif isinstance(name, str) and name.isprintable() and name.strip():
            assumption = "positive" if name in nonnegative else "real"
            symbols.append(sympy.Symbol(name, **{assumption: True}))
        else:
            raise TypeError(f"extract: inputs must be names or sympy symbols, got {name!r}")
    return tuple(symbols)


@torch.no_grad()
def extract(
    module: nn.Module,
    inputs: Sequence[Any] | None = None,
    *,
    outputs: Sequence[str] | None = None,
    model_index: int | None = None,
    eps: bool = False,
    nonnegative: bool | Collection[str] | Any = False,
    max_denominator: int = 12,
) -> Formula:
    """Return the formula that a model computes.

    Args:
        module: NPU, RealNPU, NaiveNPU, NAU, NMU, NMRU, NAC, NALU, iNALU, Linear, or a Sequential of
            these, nested or not. Expressions grow with the width of every layer, so use models with
            at most some tens of hidden units. If parameters are sharded (FSDP2, DTensor), every
            rank must call it.
        inputs: I names, or sympy symbols with their own assumptions; default x0, x1, ..., or x if
            there is one input.
        outputs: O names; default y0, y1, ..., or y if there is one output.
        model_index: index of the model if the layers have `num_models`.
        eps: True keeps the eps of the layers: the expressions equal the model up to rounding at
            every input, also at 0. Exception: if the sign factor of a power layer (NPU, RealNPU or
            NaiveNPU) is ``cos(pi / 2)`` and a second power layer follows, the formula has an exact
            0, and the model passes on the rounding error of the cosine. False leaves eps out of
            ``|x| + eps``, so that powers are written as powers. `Formula.note` describes the
            difference, which matters for inputs not much larger than eps.
        nonnegative: inputs that are never negative, by name, or True for all. Their ``|x|`` is
            written as x, without ``[x < 0]`` (1 if x < 0, else 0). Or data ``[N, I]``, a tensor,
            array or DataFrame: inputs without negative values in it are nonnegative.
        max_denominator: a weight that equals a fraction with at most this denominator, up to
            rounding in its dtype, is written as a fraction, unless its absolute value is 2^45 or
            more. A weight that is only near a fraction is written as a decimal; `simplify` rounds
            it.

    Products of powers are correct for inputs of both signs. With a gate of 1, an integer weight w
    is written as ``x**w``, any other weight as ``|x|**w``. A gate g strictly between 0 and 1 is
    written as ``(g |x| + 1 - g)**w``. For the inputs that are not written as ``x**w`` the sign is
    one common factor, ``cos(pi (w0 g0 [x0 < 0] + w1 g1 [x1 < 0] + ...))``. A cosine that is only 0
    or 1 is written as a condition, such as ``[x >= 0]``.

    The eps of an NMRU is written in training mode only, as the layer has none in evaluation mode. A
    reciprocal whose weight is 0 is left out of the formula; if its input is 0, the layer returns
    nan, and the formula does not.

    Raises ImportError without sympy, TypeError for other modules, ValueError for wrong names, for a
    wrong model_index, and for weights that are not finite.

        >>> import torch
        >>> from npu_kernels import RealNPU
        >>> from npu_kernels.formula import extract
        >>> layer = RealNPU(3, 1)
        >>> layer.weight_re.data = torch.tensor([[1.0, 0.5, -2.0]])
        >>> layer.gate.data = torch.ones(3)
        >>> print(extract(layer, ["a", "b", "c"]))
        y = a*sqrt(|b|)*[b >= 0]/c**2
        >>> print(extract(layer, ["a", "b", "c"], nonnegative=True))
        y = a*sqrt(b)/c**2
    """
    sympy = require_sympy()
    layers = layers_of("extract", module)
    index = check_model("extract", layers, model_index)
    max_denominator = check_denominator("extract", "max_denominator", max_denominator)
    chain = list(layers.values())
    symbols = _symbols(sympy, inputs, chain[0].in_features, nonnegative)
    count = chain[-1].out_features
    if outputs is None:
        outputs = [f"y{o}" for o in range(count)] if count > 1 else ["y"]
    valid = not isinstance(outputs, str) and len(outputs) == count
    if not valid or not all(name.isprintable() for name in outputs):
        raise ValueError(f"extract: outputs must be {count} names (out_features), got {outputs!r}")

    from npu_kernels.formula._sympy import Builder

    builder = Builder(index, eps=eps, max_denominator=max_denominator)
    values: Sequence[Any] = symbols
    for layer in chain:
        values = builder.layer(layer, values)
    for name, expression in zip(outputs, values, strict=True):
        if expression.has(sympy.zoo, sympy.oo, -sympy.oo, sympy.nan):
            hint = "" if eps else "; extract with eps=True, which is finite wherever the model is"
            raise ValueError(f"extract: output {name} is infinite or undefined at all inputs{hint}")
    return Formula(symbols, tuple(outputs), tuple(values), _note(layers, eps))
