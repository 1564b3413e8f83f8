"""The C++ kernel of the NPU's second derivatives, and the tangent that it gives to forward mode."""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from npu_kernels import functional, reference
from tests.conftest import needs_fast_path, needs_library
from tests.support.compare import assert_equal, normwise_error
from tests.support.kernels import ops

pytestmark = [
    needs_library,
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]
ADDED_EPS = 1e-3
FLOAT64 = torch.float64
# K (0: no models), B, I, O: one feature, lanes that are not filled, several tiles of inputs and of
# outs, more terms than an accumulator takes, blocks of rows, groups of rows, spans of a group.
SIZES = [
    (0, 1, 1, 1),
    (0, 100, 6, 2),
    (3, 65, 7, 17),
    (0, 130, 70, 40),
    (2, 20, 33, 130),
    (0, 1030, 5, 3),
    (0, 20000, 2, 1),
]


def _case(models: int, rows: int, inputs: int, outs: int, positive: bool) -> list[Tensor]:
    """grad_y, x, weight_re, weight_im and gate, then the direction of all but the first."""
    torch.manual_seed(0)
    lead = (models,) if models else ()
    x = torch.randn(*lead, rows, inputs, dtype=FLOAT64)
    x = (x.abs() + 0.1) * (1 if positive else x.sign())
    scale = 0.5 / inputs
    weights = [torch.randn(*lead, outs, inputs, dtype=FLOAT64) * scale for _ in range(2)]
    gate = torch.rand(*lead, inputs, dtype=FLOAT64)
    operands = [x, *weights, gate]
    along = [torch.randn_like(t) for t in operands]
    return [torch.randn(*lead, rows, outs, dtype=FLOAT64), *operands, *along]


def _second(
    function: Callable[..., Tensor], case: list[Tensor | None], dtype: torch.dtype = FLOAT64
) -> tuple[Tensor, ...]:
    """The derivatives along the directions, by grad_y and each operand that there is."""
    leaves = [None if t is None else t.to(dtype).requires_grad_() for t in case[:5]]
    grad_y, *operands = leaves
    sources = [leaf for leaf in leaves if leaf is not None]
    y = function(*operands, eps=ADDED_EPS)
    first = torch.autograd.grad(y, sources[1:], grad_y, create_graph=True)
    along = [t.to(dtype) for t in case[5:] if t is not None]
    return torch.autograd.grad(first, sources, along, materialize_grads=True)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("complex_weights", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_sizes(
    isa: str, size: tuple[int, int, int, int], complex_weights: bool, positive: bool
) -> None:
    """The kernel in both dtypes beside the formula in float64, differentiated twice by torch."""
    case: list[Tensor | None] = [*_case(*size, positive)]
    if not complex_weights:
        case[3] = case[7] = None
    expected = _second(reference.npu, case)
    for dtype in (torch.float32, FLOAT64):
        for number, pair in enumerate(
            zip(_second(functional.npu, case, dtype), expected, strict=True)
        ):
            error = normwise_error(*pair)
            assert error < 200 * torch.finfo(dtype).eps, (isa, dtype, number, error)


@pytest.mark.parametrize("size", SIZES)
def test_bits_at_any_number_of_threads(size: tuple[int, int, int, int]) -> None:
    case = _case(*size, False)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(_second(functional.npu, [*case]))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert_equal(result, results[0])


def test_no_rows() -> None:
    grad_y, x, re, im, gate, v_x, *along = _case(0, 4, 3, 2, False)
    grads = _second(functional.npu, [grad_y[:0], x[:0], re, im, gate, v_x[:0], *along])
    assert [grad.shape for grad in grads] == [(0, 2), (0, 3), (2, 3), (2, 3), (3,)]
    assert all(not grad.any() for grad in grads)


def test_the_operator_refuses_what_does_not_fit() -> None:
    grad_y, x, re, im, gate, v_x, v_re, v_im, v_gate = _case(0, 4, 3, 2, False)
    saved = ops.npu_forward(x, re, im, gate, ADDED_EPS, True)

    def second(*along: Tensor | None, im: Tensor | None = im, gate: Tensor | None = gate) -> None:
        ops.npu_second(grad_y, x, re, im, gate, *saved, *along, ADDED_EPS, False, 31)

    with pytest.raises(RuntimeError, match="along_re and along_im must be given together"):
        second(v_x, v_re, None, v_gate)
    with pytest.raises(RuntimeError, match="along_im only with weight_im"):
        second(v_x, v_re, v_im, v_gate, im=None)
    with pytest.raises(RuntimeError, match="along_gate must be given only with gate"):
        second(v_x, None, None, v_gate, gate=None)
    with pytest.raises(RuntimeError, match="along_x must have 12 elements"):
        second(v_x[:3], None, None, None)
    with pytest.raises(RuntimeError, match="along_gate must have the dtype of x"):
        second(v_x, None, None, v_gate.float())


# ---- the fast path's node ----


@needs_fast_path
@pytest.mark.parametrize("shape", [(3,), (5, 3), (2, 5, 3), (2, 4, 5, 3)])
@pytest.mark.parametrize("gate_gradient", ["clip", "straight_through"])
def test_rows_of_any_shape(shape: tuple[int, ...], gate_gradient: str) -> None:
    """First to third derivatives, by all operands or by some, of rows with any dimensions."""
    torch.manual_seed(0)
    x, re, im, gate = (torch.randn(n, dtype=FLOAT64) for n in (shape, (4, 3), (4, 3), (3,)))
    operands = x + 0.5 * x.sign(), 0.3 * re, 0.3 * im, gate
    leaves = [operand.requires_grad_() for operand in operands]

    def derivatives(function: object, sources_of: tuple[int, ...]) -> list[Tensor]:
        y = function(*leaves, gate_gradient=gate_gradient)  # type: ignore[operator]
        sources = [leaves[n] for n in sources_of]
        result = [y]
        for order in range(3):
            loss = sum((t.sin() * (1 + n)).sum() for n, t in enumerate(result))
            result = list(torch.autograd.grad(loss, sources, create_graph=order < 2))  # type: ignore[arg-type]
        return result

    for sources_of in [(0,), (1,), (2, 3), (0, 1, 2, 3)]:
        for a, b in zip(
            derivatives(functional.npu, sources_of),
            derivatives(reference.npu, sources_of),
            strict=True,
        ):
            assert a.shape == b.shape
            assert normwise_error(a, b) < 1e-9


@needs_fast_path
def test_a_graph_sees_its_operands() -> None:
    """An operand that changes in place is refused; gradients that do not come are left out."""
    x = torch.rand(5, 3, dtype=FLOAT64).requires_grad_()
    weight = torch.rand(2, 3, dtype=FLOAT64).requires_grad_()
    y = functional.npu(x, weight)
    of_x, of_weight = torch.autograd.grad(y.sum(), (x, weight), create_graph=True)
    (of_unused,) = torch.autograd.grad(of_x.sum(), weight, retain_graph=True)
    assert of_unused.abs().sum() > 0
    assert of_weight.grad_fn is not None
    assert "NpuGradients" in of_weight.grad_fn.name()
    with torch.no_grad():
        weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(of_x.sum(), weight)


# ---- forward mode ----


def _subsets(operands: list[Tensor], along: list[Tensor]) -> Iterator[list[Tensor | None]]:
    for flags in itertools.product((False, True), repeat=len(operands)):
        if any(flags):
            yield [v if flag else None for v, flag in zip(along, flags, strict=True)]


@pytest.mark.parametrize(("complex_weights", "gated"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("size", [(0, 5, 3, 2), (3, 70, 40, 5)])
@pytest.mark.parametrize("interface", ["jvp", "dual level"])
def test_tangents(
    size: tuple[int, int, int, int], complex_weights: bool, gated: bool, interface: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Tangents of any operands by the kernel are those of the formula."""
    _, x, re, im, gate, *along = _case(*size, False)
    present = [True, True, complex_weights, gated]
    operands = [t for t, has in zip((x, re, im, gate), present, strict=True) if has]
    along = [t for t, has in zip(along, present, strict=True) if has]

    def call(function: object, *tensors: Tensor) -> Tensor:
        x, re, *more = tensors
        weight_im = more.pop(0) if complex_weights else None
        return function(x, re, weight_im, more.pop(0) if gated else None, eps=ADDED_EPS)  # type: ignore[operator,no-any-return]

    def tangent(function: object, along: list[Tensor | None]) -> tuple[Tensor, Tensor]:
        if interface == "jvp":
            full = [
                torch.zeros_like(t) if v is None else v
                for t, v in zip(operands, along, strict=True)
            ]
            return torch.func.jvp(lambda *tensors: call(function, *tensors), (*operands,), (*full,))  # type: ignore[return-value]
        with forward_ad.dual_level():
            pairs = zip(operands, along, strict=True)
            duals = [t if v is None else forward_ad.make_dual(t, v) for t, v in pairs]
            y = forward_ad.unpack_dual(call(function, *duals))
        assert y.tangent is not None
        return y.primal, y.tangent

    calls, original = [], reference.npu
    for subset in _subsets(operands, along):
        expected = tangent(reference.npu, subset)
        with monkeypatch.context() as patch:
            patch.setattr(reference, "npu", lambda *a, **k: calls.append(a) or original(*a, **k))  # type: ignore[func-returns-value]
            actual = tangent(functional.npu, subset)
        for a, b in zip(actual, expected, strict=True):
            assert normwise_error(a, b) < 1e-12
    assert not calls  # the formula's


def test_tangents_that_must_be_differentiable() -> None:
    """A graph, or another transform, is beyond the kernel; the formula gives the tangent then."""
    _, x, re, im, gate, v_x, *_ = _case(0, 5, 3, 2, False)

    def of_weight(function: object) -> Tensor:
        weight = re.clone().requires_grad_()
        _, tangent = torch.func.jvp(
            lambda x: function(x, weight, im, gate, eps=ADDED_EPS), (x,), (v_x,)
        )  # type: ignore[operator]
        (grad,) = torch.autograd.grad(tangent.square().sum(), weight)
        return grad

    def of_rows(function: object) -> Tensor:
        return torch.func.jacfwd(lambda x: function(x, re, im, gate, eps=ADDED_EPS))(x)  # type: ignore[operator,no-any-return]

    def of_of_rows(function: object) -> Tensor:
        return torch.func.hessian(lambda x: function(x, re, im, gate, eps=ADDED_EPS).sum())(x)  # type: ignore[operator,no-any-return]

    for derivative in (of_weight, of_rows, of_of_rows):
        assert normwise_error(derivative(functional.npu), derivative(reference.npu)) < 1e-11


def test_tangents_of_a_layer_under_no_grad(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel computes them, although the parameters require gradients."""
    _, x, re, im, gate, v_x, *_ = _case(0, 5, 3, 2, False)

    def tangent(function: object) -> Tensor:
        with torch.no_grad(), forward_ad.dual_level():
            dual = forward_ad.make_dual(x, v_x)
            y = function(dual, re.requires_grad_(), im, gate, eps=ADDED_EPS)  # type: ignore[operator]
            change = forward_ad.unpack_dual(y).tangent
        assert change is not None
        return change

    expected = tangent(reference.npu)
    monkeypatch.setattr(reference, "npu", None)
    assert normwise_error(tangent(functional.npu), expected) < 1e-12
