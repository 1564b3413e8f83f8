"""The time loop: the Triton kernels against the eager loop and its adjoint."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import ode, use_backend
from tests.ode.test_ode import LAYERS, D, away_from_zero, make, powers_of_three
from tests.ode.test_ode_kernel import outputs_and_gradients
from tests.support.compare import assert_near
from tests.support.samples import (
    error_bound,
    normwise_error,
    rms_error,
)
from tests.support.vmapped import check_batched_gradients
from tests.triton.conftest import Launches

pytest.importorskip("triton")

LOOP = {"steps": 3, "dt": 0.01}


def case(
    device: str,
    layer: str = "NPU",
    models: int | None = 2,
    batch: int | None = None,
    dtype: torch.dtype = torch.float64,
    **sizes: int,
) -> tuple[nn.Sequential, Tensor]:
    shape = (
        *(() if models is None else (models,)),
        *(() if batch is None else (batch,)),
        sizes.get("d", D),
    )
    return make(layer, models, dtype, **sizes).to(device), away_from_zero(*shape, dtype=dtype).to(
        device
    )


def on(backend: str, *args: Any, **options: Any) -> list[Tensor]:
    with use_backend(backend):
        return outputs_and_gradients(*args, **{**LOOP, **options})


@pytest.mark.parametrize("method", ode.METHODS)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("models", "batch"), [(None, None), (3, None), (2, 5)])
def test_parity(
    layer: str, method: str, models: int | None, batch: int | None, device: str
) -> None:
    model, u0 = case(device, layer, models, batch)
    assert_near(
        *(on(name, model, u0, method=method) for name in ("triton", "reference")), bound=5e-13
    )


@pytest.mark.parametrize(("d", "h"), [(1, 1), (2, 9), (4, 20), (5, 17), (9, 2), (16, 32)])
@pytest.mark.parametrize("batch", [None, 9])
def test_sizes(d: int, h: int, batch: int | None, device: str) -> None:
    model, u0 = case(device, batch=batch, d=d, h=h)
    assert_near(*(on(name, model, u0) for name in ("triton", "reference")), bound=5e-13)


@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_float32_error(method: str, device: str) -> None:
    """Against float64 from the same numbers, at most twice the eager loop's, in the geometric mean
    of some models.

    A single gate's gradient is a few sums that cancel: there one rounding more or less is a
    multiple of the error.
    """
    errors = []
    for _ in range(6 if method == "euler" else 3):
        model, u0 = case(device, batch=3, dtype=torch.float32)
        double = copy.deepcopy(model).double()
        double[0].eps = torch.finfo(torch.float32).eps
        ours, theirs = (
            on(name, model, u0, method=method, steps=8) for name in ("triton", "reference")
        )
        exact = on("reference", double, u0.double(), method=method, steps=8)
        assert all(results.dtype == torch.float32 for results in ours)
        errors.append(
            [
                [float(rms_error(*pair)) for pair in zip(results, exact, strict=True)]
                for results in (ours, theirs)
            ]
        )
    for of_own, of_their in zip(
        *torch.tensor(errors, dtype=torch.float64).log().mean(0).exp(), strict=True
    ):
        assert of_own <= error_bound(float(of_their), torch.float32)


@pytest.mark.parametrize(
    "options",
    [{"steps": 1, "dt": 0.01}, {"t": (0.0, 0.01), "method": "tsit5", "rtol": 1e-2}],
    ids=["one launch", "step by step"],
)
def test_batched_upstream_gradients(options: dict[str, Any], device: str) -> None:
    model, u0 = case(device, d=2, h=2)
    with use_backend("triton"):
        check_batched_gradients(
            lambda *tensors: ode.integrate(*tensors, **options),
            [u0.requires_grad_(), *model.parameters()],
        )


@pytest.mark.parametrize("method", ["euler", "rk4_38"])
def test_checkpointed(method: str, device: str, kernels: Any) -> None:
    """Results are the same without stages: bitwise where the interpreter computes."""
    model, u0 = case(device, batch=3)
    for keep in (True, False):
        call = *operands(model, u0), [1.0], 3, 0.1, 1e-16, True, False, keep
        assert (kernels.ode_forward(*call)[2].numel() > 0) is keep
    full, checkpointed = (
        on("triton", model, u0, method=method, memory=memory) for memory in ("full", "checkpointed")
    )
    for actual, want in zip(checkpointed, full, strict=True):
        assert (
            torch.equal(actual, want) if device == "cpu" else normwise_error(actual, want) < 1e-13
        )


def test_options_of_the_layers(device: str) -> None:
    for clip in (True, False):
        model, u0 = case(device, models=3)
        model[1].clip, model[0].eps = clip, 0.25
        model[0].gate_gradient = "clip" if clip else "straight_through"
        with torch.no_grad():
            model[1].weight[0, 0, :3] = torch.tensor([-1.0, 1.0, 1.0 + 1e-15])
            model[0].gate[0] = torch.tensor([0.0, 1.0, 1.0 + 1e-15])
        actuals, want = (on(name, model, u0) for name in ("triton", "reference"))
        for actual, expected in zip(actuals, want, strict=True):
            assert normwise_error(actual, expected) < 1e-13
            assert torch.equal(actual == 0, expected == 0)


def test_some_programs_for_many_starts(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the starts are divided, all are counted, and each once."""
    from npu_kernels._triton import ode as kernels_of_loops

    model, u0 = case(device, batch=11, d=2, h=3)  # 4 starts a program
    want = on("reference", model, u0)
    for programs in (1, 4, 4096):
        monkeypatch.setattr(kernels_of_loops, "PROGRAMS", programs)
        for memory in ("full", "checkpointed"):
            assert_near(on("triton", model, u0, memory=memory), want, 5e-13)


def test_a_large_model_is_stepped_through(device: str, launched: Launches) -> None:
    for h, is_one_launch in ((128, True), (129, False)):
        model, u0 = case(device, models=None, h=h)
        launched.clear()
        actuals, want = (on(name, model, u0, steps=1) for name in ("triton", "reference"))
        assert ("ode_forward_kernel" in launched.names()) is is_one_launch
        assert_near(actuals, want, 1e-12)
    options = ([1.0], 2, 0.1, 1e-16, True, False, False)
    paths = []
    for backend in ("triton", "reference"):
        with use_backend(backend):
            path, *_ = torch.ops.npu_kernels.ode_forward(*operands(model, u0[None]), *options)
            paths.append(path)
    assert_near(paths[:1], paths[1:], 1e-12)


def test_divergence_stays_where_it_is(device: str) -> None:
    """Another model, another start and padded features do not see what became infinite."""
    # the four starts of a model share a program
    model, u0 = case(device, models=2, batch=4, d=2, h=3)
    want = on("triton", model, u0)
    spoiled = u0.clone()
    spoiled[1, 2] = torch.tensor([1e300, -1e300])
    with torch.no_grad():
        model[0].weight_re[1] = 1.5
    undisturbed = on("triton", model, u0, nonfinite="keep")
    actuals = on("triton", model, spoiled, nonfinite="keep")
    assert not actuals[0][1, 2].isfinite().all()
    other_rows = [0, 1, 3]
    for index in (0, 1, 2):  # trajectory, derivatives, gradient of u0
        assert torch.equal(actuals[index][0], want[index][0])
        assert torch.equal(actuals[index][1, other_rows], undisturbed[index][1, other_rows])
    for actual, before in zip(actuals[3:], want[3:], strict=True):
        assert torch.equal(actual[0], before[0])


@pytest.mark.parametrize("layer", LAYERS)
def test_special_values(layer: str, device: str) -> None:
    """Zero, inf and nan are what they are in the eager loop."""
    values = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-320, 1e308, -2.0]
    u0 = torch.tensor(values, dtype=torch.float64, device=device)[:, None].repeat(1, D)
    u0[:, 1:] = 0.5
    model = make(layer, None).to(device)
    runs = []
    for backend in ("triton", "reference"):
        with use_backend(backend), torch.no_grad():
            runs.append(ode.rollout(model, u0, return_derivatives=True, nonfinite="keep", **LOOP))
    for actual, expected in zip(*runs, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14, equal_nan=True)


def test_gradients_at_states_of_0(device: str) -> None:
    """The derivative from the right, as in the eager loop."""
    u0 = torch.tensor([[1.0, 0, -0.0], [0, 2, 0]], dtype=torch.float64, device=device)
    model, grads = powers_of_three().to(device), []
    for backend in ("triton", "reference"):
        with use_backend(backend):
            path = ode.rollout(model, u0.requires_grad_(), steps=2, dt=0.25, method="rk4")
            grads += torch.autograd.grad(path.square().sum(), u0)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-12, atol=1e-14)
    assert (grads[0] != 0).all()


def test_some_gradients_alone(device: str) -> None:
    model, u0 = case(device, batch=2)
    expected = on("triton", model, u0)[3:]
    generator = torch.Generator().manual_seed(1)
    with use_backend("triton"):
        for index, parameter in enumerate(model.parameters()):
            model.requires_grad_(False)
            parameter.requires_grad_()
            out = ode.rollout(model, u0, return_derivatives=True, **LOOP)
            generator.manual_seed(1)
            upstream = [
                torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o) for o in out
            ]
            (grad,) = torch.autograd.grad(out, [parameter], upstream)
            assert torch.equal(grad, expected[index])


def test_no_starts_at_all(device: str) -> None:
    nowhere = torch.empty(2, 0, D, dtype=torch.float64, device=device)
    out, _, grad_u0, *grads = on("triton", make("NPU", 2).to(device), nowhere)
    assert out.shape == (2, 0, 4, D)
    assert grad_u0.shape == (2, 0, D)
    assert all(grad.count_nonzero() == 0 for grad in grads)


def operands(model: nn.Sequential, u0: Tensor) -> tuple[Tensor, ...]:
    """Return the operands of the operator of time loops."""
    power, sums = model
    weights = power.weight_re, power.weight_im, power.gate, sums.weight
    return u0, *(weight.detach() for weight in weights)  # type: ignore[union-attr]


def test_wrong_operands_reach_no_kernel(device: str, kernels: Any) -> None:
    model, u0 = case(device, batch=2)
    _, *parameters = operands(model, u0)
    options = (3, 0.1, 1e-16, True, False, True)
    with pytest.raises(
        ValueError,
        match=r"^ode_forward: weight must have shape \(2, 3, 5\), got shape \(2, 5, 3\)$",
    ):
        kernels.ode_forward(u0, *parameters[:3], parameters[3].mT, [1.0], *options)
    with pytest.raises(
        ValueError, match=r"^ode_forward: tableau must be a lower triangle by rows, got 2 numbers$"
    ):
        kernels.ode_forward(u0, *parameters, [1.0, 0.5], *options)
    with pytest.raises(ValueError, match=r"^ode_forward: steps must be positive, got 0$"):
        kernels.ode_forward(u0, *parameters, [1.0], 0, *options[1:])
    path, _, stages = kernels.ode_forward(u0, *parameters, [1.0], *options)
    with pytest.raises(
        ValueError, match=r"^ode_backward: stages must be what .*, got shape \(1, 3, 16, 1\)$"
    ):
        kernels.ode_backward(
            path, None, path, *parameters, stages[..., :1], [1.0], 0.1, 1e-16, True, False, 31
        )
