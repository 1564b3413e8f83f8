"""Adaptive steps: the fused ones and their adjoint, against the eager ones."""

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NAU, ode, use_backend
from npu_kernels.ode._methods import PAIRS
from tests.conftest import needs_library
from tests.ode.test_ode import LAYERS, away_from_zero
from tests.ode.test_ode_adaptive import PREDATOR, gradients
from tests.support.compare import assert_equal, assert_near
from tests.support.kernels import ops
from tests.support.samples import fill_uninitialized_with_nan
from tests.support.time_series import equations_of

pytestmark = needs_library
TIMES = torch.tensor([1.0, 1.02, 1.05, 1.3, 1.31, 1.4], dtype=torch.float64)


def smooth(
    layer: str, models: int | None, h: int, d: int, dtype: torch.dtype = torch.float64
) -> nn.Sequential:
    """A model whose trajectories from `away_from_zero` keep their signs until t = 1.4."""
    options: dict[str, Any] = {"num_models": models, "dtype": dtype}
    model = nn.Sequential(LAYERS[layer](d, h, **options), NAU(h, d, **options))
    generator = torch.Generator().manual_seed(d)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) * 2 - 1
            scale = 0.6 / h if name == "1.weight" else 0.5 / d
            parameter.copy_((drawn + 1) / 2 if name.endswith("gate") else scale * drawn)
    return model


def both(model: nn.Sequential, u0: Tensor, **options: Any) -> tuple[list[Tensor], list[Tensor]]:
    results = []
    for backend in ("cpu", "reference"):
        with use_backend(backend):
            results.append(gradients(model, u0, TIMES, **options))
    return results[0], results[1]


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("models", "batch", "d", "h"), [
    (None, None, 3, 5), (None, 9, 1, 1), (3, None, 2, 9), (3, 2, 4, 3), (2, 19, 2, 3),
    (19, 1, 9, 2), (1, 140, 1, 2),
])  # fmt: skip
def test_fused_is_eager(layer: str, models: int | None, batch: int | None, d: int, h: int) -> None:
    """Another pair for every third size."""
    model = smooth(layer, models, h, d)
    torch.manual_seed(1)
    u0 = away_from_zero(
        *(() if models is None else (models,)), *(() if batch is None else (batch,)), d
    )
    options = {"method": tuple(PAIRS)[d % 3], "rtol": 1e-8, "atol": 1e-10}
    fused, eager = both(model, u0, **options)
    for actual, want in zip(fused, eager, strict=True):
        torch.testing.assert_close(
            actual, want, rtol=1e-9, atol=1e-11 * (1 + float(want.abs().max()))
        )


@pytest.mark.parametrize("method", PAIRS)
def test_in_float32(method: str) -> None:
    model, u0 = smooth("NPU", 3, 5, 3), away_from_zero(3, 4, 3)
    exact = gradients(model, u0, TIMES, method=method, rtol=1e-9)
    results = gradients(model.float(), u0.float(), TIMES, method=method, rtol=1e-6)
    assert results[0].dtype == results[1].dtype == torch.float32
    assert results[2].dtype == torch.float64
    assert_near(results, exact, 2e-5)


def test_straight_through_gates_and_free_weights() -> None:
    model, u0 = smooth("NPU", 2, 3, 2), away_from_zero(2, 3, 2)
    with torch.no_grad():
        model[0].gate.copy_(torch.tensor([[1.2, 0.4], [-0.1, 0.9]]))
        model[1].weight[0, 0, 0] = 1.3
    for straight in ("clip", "straight_through"):
        for clip in (True, False):
            model[0].gate_gradient, model[1].clip = straight, clip
            fused, eager = both(model, u0, method="dopri5", rtol=1e-8)
            for actual, want in zip(fused, eager, strict=True):
                torch.testing.assert_close(actual, want, rtol=1e-8, atol=1e-10)
            grad_gate, grad_weight = fused[-2:]
            assert (grad_gate[0, 0] == 0) == (straight == "clip")
            assert (grad_weight[0, 0, 0] == 0) == clip


@pytest.mark.parametrize("method", ["tsit5", "kvaerno5"])
@pytest.mark.parametrize(("models", "batch"), [(None, None), (20, 1), (2, 300)])
def test_bits(models: int | None, batch: int | None, method: str) -> None:
    """The same bits from threads, checkpoints, memory full of nan, and one start alone."""
    model = smooth("NPU", models, 9, 3)
    u0 = away_from_zero(
        *(() if models is None else (models,)), *(() if batch is None else (batch,)), 3
    )
    options: dict[str, Any] = {"method": method, "rtol": 1e-9, "atol": 1e-12}
    expected = gradients(model, u0, TIMES, **options)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        runs = [gradients(model, u0, TIMES, **options)]
    finally:
        torch.set_num_threads(threads)
    runs.append(gradients(model, u0, TIMES, memory="checkpointed", **options))
    with fill_uninitialized_with_nan():
        runs.append(gradients(model, u0, TIMES, **options))
    for other in runs:
        assert_equal(other, expected)
    if batch == 300:
        single = ode.rollout(model, u0[:, 123:124], t=TIMES, **options)
        assert torch.equal(single, expected[0][:, 123:124])


@pytest.mark.parametrize(
    ("method", "atol", "end_times"),
    [
        ("dopri5", 1e-9, (0.05, 1.7, 1.75, 1.8, 1.85, 1.9, 1.95, 2.0)),
        ("kvaerno5", 1e-11, (0.05, *(0.6 + 0.02 * n for n in range(16)))),
    ],
)
def test_every_number_of_steps_between_checkpoints(
    method: str, atol: float, end_times: tuple[float, ...]
) -> None:
    """Around 32: the last state may begin a segment."""
    model = equations_of([[1.0]], [[-1.0]])
    counts = set()
    for end in end_times:
        t = torch.tensor([0, end / 3, end], dtype=torch.float64)
        u0, options = (
            torch.tensor([[1.0], [3.0]]).double(),
            {"method": method, "rtol": 1e-13, "atol": atol},
        )
        _, statistics = ode.rollout(model, u0, t=t, return_statistics=True, **options)  # type: ignore[arg-type]
        counts |= set(statistics.n_accepted.tolist())
        full, less = (
            gradients(model, u0, t, memory=memory, **options) for memory in ("full", "checkpointed")
        )
        assert_equal(full, less)
        exact = u0[:, None] * torch.exp(-t)[:, None]
        torch.testing.assert_close(full[0], exact, rtol=1e-7, atol=1e-9)
    assert any(count % 32 == 0 for count in counts), sorted(counts)


@pytest.mark.parametrize("method", ["dopri5", "kvaerno5"])
def test_every_instruction_set(method: str, isa: str) -> None:
    fused, eager = both(smooth("NPU", 3, 5, 3), away_from_zero(3, 2, 3), method=method, rtol=1e-8)
    for actual, want in zip(fused, eager, strict=True):
        torch.testing.assert_close(actual, want, rtol=1e-9, atol=1e-10)


def test_some_gradients_alone() -> None:
    """A tensor that requires a gradient gets the same one alone, with any strides."""
    model, u0 = smooth("NPU", 2, 5, 3), away_from_zero(2, 3)
    _, of_u0, of_times, *expected = gradients(model, u0, TIMES, method="dopri5")
    generator = torch.Generator().manual_seed(1)
    upstream = torch.randn(2, len(TIMES), 3, generator=generator, dtype=torch.float64)
    model.requires_grad_(False)
    strided, times = u0.mT.contiguous().mT, torch.stack([TIMES, TIMES], 1)[:, 0]
    for leaf, want in zip(
        (strided, times, *model.parameters()), (of_u0, of_times, *expected), strict=True
    ):
        leaf.requires_grad_()
        trajectory = ode.rollout(model, strided, t=times, method="dopri5")
        (grad,) = torch.autograd.grad(trajectory, [leaf], upstream.mT.contiguous().mT)
        assert torch.equal(grad, want)
        leaf.requires_grad_(False)


def test_what_is_saved_is_bounded() -> None:
    """Each accepted step saves its time, and its state or one of 32; none without a gradient."""
    model, u0 = equations_of(*PREDATOR), torch.tensor([10.0, 5.0]).double().requires_grad_()
    for memory, stride in (("full", 1), ("checkpointed", 32)):
        path, statistics = ode.rollout(
            model, u0, t=[0, 20], method="dopri5", memory=memory, return_statistics=True
        )
        *_, times, states, _ = path.grad_fn.saved_tensors
        steps = int(statistics.n_accepted)
        assert len(times) == steps
        assert states.shape == (steps // stride + 1, 2)


OPERANDS = "u0", "weight_re", "weight_im", "gate", "weight", "t"
SHAPES = r"must have shapes \(K, B, D\) and \(K, h, D\)"


def operands_and_numbers(method: str = "dopri5") -> tuple[dict[str, Any], list[Any]]:
    """Operands of the forward operator by name, and the numbers that follow them."""
    model = equations_of(*PREDATOR)
    weight_re, gate, weight = (
        p.detach()[None] for p in (model[0].weight_re, model[0].gate, model[1].weight)
    )
    u0, t = torch.ones(1, 2, 2).double(), torch.tensor([0.0, 1.0]).double()
    numbers = [PAIRS[method].numbers, 1e-6, 1e-9, 100, 100, 1e-16, False, 1]
    return dict(zip(OPERANDS, (u0, weight_re, None, gate, weight, t), strict=True)), numbers


@pytest.mark.parametrize("method", ["dopri5", "kvaerno5"])
def test_wrong_operands_of_the_operator(method: str) -> None:
    """No access outside of a tensor."""
    operands, rest = operands_and_numbers(method)
    u0, weight_re, _, gate, weight, t = operands.values()
    path, last, *_ = ops.ode_adaptive_forward(*operands.values(), *rest)
    assert torch.equal(path[:, :, -1], last)
    tiny = torch.finfo(torch.float64).tiny
    changes: list[tuple[dict[str, Any], str]] = [
        ({"u0": u0.float()}, "weight_re must be contiguous, on the CPU, of the operator's dtype"),
        ({"u0": u0.mT.contiguous().mT}, "u0 must be contiguous"),
        ({"u0": u0[..., :1]}, SHAPES),
        ({"u0": u0[0]}, SHAPES),
        ({"u0": u0.repeat(2, 1, 1)}, SHAPES),
        ({"weight_re": weight_re[0]}, SHAPES),
        ({"weight_re": weight_re[..., None]}, SHAPES),
        ({"t": t[:1]}, r"t must have two times or more, got shape \(1,\)"),
        ({"t": t.float()}, "t must be contiguous"),
        ({"gate": gate[..., :1].contiguous()}, "gate must be .* 2 elements"),
        ({"weight_im": weight_re[:, :1].contiguous()}, "weight_im must be .* 6 elements"),
        ({"weight": weight[..., :1].contiguous()}, "weight must be .* 6 elements"),
        ({"rest": [[1.0], *rest[1:]]}, "pair must have 58 numbers, got 1"),
        ({"rest": [[*rest[0], 1.0], *rest[1:]]}, "pair must have 58 numbers, got 59"),
        ({"rest": [*rest[:5], tiny / 2, *rest[6:]]}, "eps must be finite and at least"),
        ({"rest": [*rest[:5], math.inf, *rest[6:]]}, "eps must be finite and at least"),
    ]
    for change, message in changes:
        numbers = change.pop("rest", rest)
        with pytest.raises(RuntimeError, match="ode_adaptive: .*" + message):
            ops.ode_adaptive_forward(*{**operands, **change}.values(), *numbers)
    with pytest.raises(RuntimeError, match="u0 must be contiguous, on the CPU"):
        ops.ode_adaptive_forward.default.redispatch(
            torch._C.DispatchKeySet(torch._C.DispatchKey.CPU),
            *{**operands, "u0": u0.to("meta")}.values(),
            *rest,
        )


@pytest.mark.parametrize("method", ["dopri5", "kvaerno5"])
def test_wrong_operands_of_the_backward_operator(method: str) -> None:
    """No access outside of a tensor, whatever the forward is said to have saved."""
    named, rest = operands_and_numbers(method)
    u0, *rest_of_operands = operands = list(named.values())
    path, _, counts, _, times, states = ops.ode_adaptive_forward(*operands, *rest)
    end: list[Any] = [rest[0], 1e-6, 1e-9, 1e-16, False, 1, False, 63]
    for stored, message in (
        ((counts, times[1:], states), "times must be"),
        ((counts, times, states[1:]), "states must be"),
        ((counts[..., :3].contiguous(), times, states), "counts must be"),
        ((-counts, times, states), "counts must not be negative"),
    ):
        with pytest.raises(RuntimeError, match="ode_adaptive: .*" + message):
            ops.ode_adaptive_backward(path, path, *operands, *stored, *end)
    if PAIRS[method].diagonal:
        with pytest.raises(RuntimeError, match="ode_adaptive: path must be contiguous"):
            ops.ode_adaptive_backward(path[..., 1:], path, *operands, counts, times, states, *end)
    for stride in (0, -1):
        with pytest.raises(RuntimeError, match="ode_adaptive: every must be positive"):
            ops.ode_adaptive_backward(
                path, path, *operands, counts, times, states, *end[:5], stride, *end[6:]
            )
    for wrong, message in (
        ((path[:, :, :1].contiguous(), u0), "grad_path must be"),
        ((path, u0[:, :, None].repeat(1, 1, 2, 1)), SHAPES),
    ):
        with pytest.raises(RuntimeError, match="ode_adaptive: .*" + message):
            ops.ode_adaptive_backward(path, *wrong, *rest_of_operands, counts, times, states, *end)


def test_gradients_that_are_not_needed_are_empty() -> None:
    """Each gradient alone; one of an absent weight is empty too."""
    named, rest = operands_and_numbers()
    operands = list(named.values())
    path, _, counts, _, times, states = ops.ode_adaptive_forward(*operands, *rest)
    numbers = [rest[0], 1e-6, 1e-9, 1e-16, False, 1, False]
    for bit, size in enumerate((4, 6, 0, 2, 6, 4)):
        grads = ops.ode_adaptive_backward(
            path, path, *operands, counts, times, states, *numbers, 1 << bit
        )
        assert [grad.numel() for grad in grads] == [size if n == bit else 0 for n in range(6)]


def test_counts_whose_sum_overflows() -> None:
    """Four times 2^62 steps are none modulo 2^64; they must not be looked for."""
    model = equations_of(*PREDATOR)
    weights = [p.detach()[None] for p in (model[0].weight_re, model[0].gate, model[1].weight)]
    u0, t = torch.ones(1, 4, 2).double(), torch.tensor([0.0, 1.0]).double()
    counts, times, states = (
        torch.full((1, 4, 5), 2**62),
        torch.zeros(0).double(),
        torch.ones(4, 2).double(),
    )
    operands: list[Any] = [u0, weights[0], None, weights[1], weights[2], t, counts, times, states]
    end: list[Any] = [PAIRS["dopri5"].numbers, 1e-6, 1e-9, 1e-16, False, 1, False, 63]
    path = torch.ones(1, 4, 2, 2).double()
    with pytest.raises(
        RuntimeError,
        match="counts must not be negative, nor above 0, the number of times, got 46116860",
    ):
        ops.ode_adaptive_backward(path, path, *operands, *end)


def _saved(stride: int) -> tuple[list[Tensor | None], list[Tensor], list[Any]]:
    """The operands of the operators, what a forward keeps for a `stride`, and the pair."""
    pair = PAIRS["dopri5"]
    generator = torch.Generator().manual_seed(0)
    u0, weight_re, weight = (
        torch.rand(shape, generator=generator, dtype=torch.float64)
        for shape in ((1, 8, 3), (1, 4, 3), (1, 3, 4))
    )
    operands = [u0 + 0.5, weight_re, None, None, 0.1 * weight, TIMES]
    out = ops.ode_adaptive_forward(*operands, pair.numbers, 1e-3, 1e-6, 50, 50, 1e-7, True, stride)
    return operands, list(out), pair.numbers


def test_more_steps_between_checkpoints_than_there_are() -> None:
    """The memory for states is that of the longest trajectory, however large the stride is."""
    results = []
    for stride in (50, 2**62, 2**63 - 1):
        operands, (path, _, counts, _, times, states), pair = _saved(stride)
        grads = ops.ode_adaptive_backward(
            path,
            torch.ones_like(path),
            *operands,
            counts,
            times,
            states,
            pair,
            1e-3,
            1e-6,
            1e-7,
            True,
            stride,
            False,
            63,
        )
        results.append(grads)
    assert results[0][0].abs().min() > 0
    for other in results[1:]:
        assert_equal(other, results[0])


def test_sizes_without_memory_of_their_own() -> None:
    """Where a dimension is 0 the others may be any; their products stay integers all the same."""
    _, _, pair = _saved(0)
    empty = functools.partial(torch.empty, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"ode_adaptive: the sizes are too large"):
        ops.ode_adaptive_forward(
            empty(1, 0, 2**60), empty(1, 0, 2**60), None, None, empty(1, 2**60, 0),
            TIMES, pair, 1e-3, 1e-6, 50, 50, 1e-7, True, 0,
        )  # fmt: skip
    for steps, starts in ((2**62, 0), (2**63 - 1, 0), (2**58, 1)):
        with pytest.raises(RuntimeError, match=r"ode_forward: the sizes are too large"):
            ops.ode_forward(
                empty(starts, 2), empty(3, 2), None, None, empty(2, 3),
                [1.0], steps, 0.1, 1e-7, True, False, False,
            )  # fmt: skip


@pytest.mark.parametrize("operand", [0, 1, 4, 5])
def test_memory_smaller_than_an_operand(operand: int) -> None:
    operands, _, pair = _saved(0)
    tensor = operands[operand]
    assert tensor is not None
    operands[operand] = tensor = tensor.clone()
    tensor.untyped_storage().resize_(tensor.nbytes - 1)
    with pytest.raises(RuntimeError, match=r"ode_adaptive: .* must have memory for its shape"):
        ops.ode_adaptive_forward(*operands, pair, 1e-3, 1e-6, 50, 50, 1e-7, True, 0)
