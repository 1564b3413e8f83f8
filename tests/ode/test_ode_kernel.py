"""The time loop: the fused loop and its adjoint, against the eager ones."""

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from npu_kernels import ode, use_backend
from tests.conftest import needs_library
from tests.ode.test_ode import LAYERS, D, away_from_zero, make, starts
from tests.support.compare import assert_equal, assert_near
from tests.support.kernels import ops
from tests.support.samples import (
    LAYOUTS,
    error_bound,
    fill_uninitialized_with_nan,
    rms_error,
    with_layout,
)


def outputs_and_gradients(
    model: nn.Sequential,
    u0: Tensor,
    grad_layout: Callable[[Tensor], Tensor] = lambda t: t,
    **options: Any,
) -> list[Tensor]:
    """Trajectory, derivatives, and the gradients of everything from random gradients of both."""
    leaf = u0.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    out = ode.rollout(model, leaf, return_derivatives=True, **options)
    generator = torch.Generator().manual_seed(1)
    upstream = [
        grad_layout(torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o))
        for o in out
    ]
    return [
        *(o.detach() for o in out),
        *torch.autograd.grad(out, [leaf, *model.parameters()], upstream),
    ]


def both(model: nn.Sequential, u0: Tensor, **options: Any) -> tuple[list[Tensor], list[Tensor]]:
    results = []
    for backend in ("cpu", "reference"):
        with use_backend(backend):
            results.append(outputs_and_gradients(model, u0, **options))
    return results[0], results[1]


SIZES = [(3, 5), (1, 1), (2, 9), (4, 20), (5, 17), (9, 2), (17, 3)]  # D, h
MODELS, STARTS = [None, 1, 3, 19], [None, 1, 3, 9, 150]


@needs_library
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("method", ode.METHODS)
@pytest.mark.parametrize("models", MODELS)
@pytest.mark.parametrize("batch", STARTS)
def test_fused_is_eager(layer: str, method: str, models: int | None, batch: int | None) -> None:
    """Sizes take turns: each of them comes with every layer, number of models and of starts."""
    turn = (list(LAYERS).index(layer) + MODELS.index(models) + STARTS.index(batch)) % 3
    sizes = SIZES[turn::3] if batch != 150 else SIZES[:1]
    for d, h in sizes if method in ("euler", "rk4") else sizes[:1]:
        model = make(layer, models, h=h, d=d)
        u0 = away_from_zero(
            *(() if models is None else (models,)), *(() if batch is None else (batch,)), d
        )
        fused, eager = both(model, u0, steps=5, dt=0.005, method=method)
        assert_near(fused, eager, 5e-12, (d, h))


@needs_library
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("models", [None, 5])
@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_float32_error(layer: str, models: int | None, method: str) -> None:
    """Against float64 from the same numbers, at most twice the eager loop's."""
    model, u0 = (
        make(layer, models, torch.float32),
        away_from_zero(*(() if models is None else (models,)), D),
    )
    fused, eager = both(model, u0.float(), steps=40, dt=0.002, method=method)
    double = copy.deepcopy(model).double()
    double[0].eps = torch.finfo(torch.float32).eps
    with use_backend("reference"):
        exact = outputs_and_gradients(
            double, u0.float().double(), steps=40, dt=0.002, method=method
        )
    for ours, theirs, true in zip(fused, eager, exact, strict=True):
        assert ours.dtype == torch.float32
        assert rms_error(ours, true) <= error_bound(rms_error(theirs, true), torch.float32)


@needs_library
def test_options_of_the_layers() -> None:
    """clip, eps and gate_gradient mean in the fused loop what they mean in the layers."""
    u0 = away_from_zero(3, D)
    for clip in (True, False):
        for gate_gradient in ("clip", "straight_through"):
            model = make("NPU", 3, clip=clip)
            model[0].gate_gradient, model[0].eps = gate_gradient, 0.25
            with torch.no_grad():
                model[1].weight[0, 0, :3] = torch.tensor([-1.0, 1.0, 1.0 + 1e-15])
                model[0].gate[0] = torch.tensor([0.0, 1.0, 1.0 + 1e-15])
            fused, eager = both(model, u0, steps=5, dt=0.01)
            assert_near(fused, eager, 1e-13, (clip, gate_gradient))
    assert (fused[-1] != 0).all()  # not clipped: every weight has a gradient
    model[1].clip = True
    assert (both(model, u0, steps=5, dt=0.01)[0][-1] == 0).any()


def at_the_bounds(**nau: Any) -> nn.Sequential:
    """Two models with gates and NAU weights inside, on and outside the bounds of their clips."""
    model = make("NPU", 2, **nau)
    with torch.no_grad():
        model[0].gate[0] = torch.tensor([-0.1, 0.5, 1.1])
        model[0].gate[1] = torch.tensor([0.0, 1.0, 0.7])
        model[1].weight[0, 0, :3] = torch.tensor([-1.2, 0.5, 1.2])
        model[1].weight[1, 0, :2] = torch.tensor([-1.0, 1.0])
    return model


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("gate_gradient", ["clip", "straight_through"])
@pytest.mark.parametrize("upstream", ["trajectory", "derivatives", "both"])
@pytest.mark.parametrize("hooked", [False, True])
def test_a_gradient_that_can_be_differentiated_is_the_same(
    clip: bool, gate_gradient: str, upstream: str, hooked: bool, backend: str
) -> None:
    """The formula behind second derivatives is what the adjoint differentiates.

    Under hooks of saved tensors every backend has an adjoint, also the formulas.
    """
    model = at_the_bounds(clip=clip)
    model[0].gate_gradient, model[0].eps = gate_gradient, 0.25
    leaves = [away_from_zero(2, 2, D).requires_grad_(), *model.parameters()]
    options: dict[str, Any] = {"steps": 4, "dt": 0.05, "method": "rk4_38"}
    hooks = saved_tensors_hooks(lambda t: t, lambda t: t) if hooked else contextlib.nullcontext()
    with hooks:
        path, du_dt = ode.rollout(model, leaves[0], return_derivatives=True, **options)
    terms = {"trajectory": path.sin(), "derivatives": du_dt.sin(), "both": path.sin() + du_dt}
    loss = terms[upstream].sum()
    once = torch.autograd.grad(loss, leaves, retain_graph=True)
    differentiable = torch.autograd.grad(loss, leaves, create_graph=True)
    assert all(grad.requires_grad for grad in differentiable)
    assert_near(differentiable, once, 1e-12)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("models", "batch"), [(None, None), (3, None), (2, 3), (2, 40), (None, 5)])
def test_checkpointed_is_the_same_to_the_bit(
    dtype: torch.dtype, models: int | None, batch: int | None
) -> None:
    model = make("NPU", models, dtype)
    u0 = starts(
        *(() if models is None else (models,)), *(() if batch is None else (batch,)), D, dtype=dtype
    )
    for method in ("euler", "rk4"):
        runs = [
            outputs_and_gradients(model, u0, steps=9, dt=0.01, method=method, memory=memory)
            for memory in ("full", "checkpointed")
        ]
        assert_equal(*runs)


def test_checkpointed_keeps_no_stages(backend: str) -> None:
    model, u0 = make("NPU", 3), starts(3, 2, D)
    sizes = {}
    for memory in ("full", "checkpointed"):
        with torch.autograd.profiler.profile(profile_memory=True) as profile:
            path = ode.rollout(model, u0, steps=40, dt=0.01, memory=memory)
        saved = sum(event.self_cpu_memory_usage for event in profile.function_events)
        sizes[memory] = saved - path.nbytes
    assert sizes["checkpointed"] < sizes["full"] / 3


@needs_library
@pytest.mark.parametrize(("models", "batch"), [(300, None), (40, 5), (3, 700)])
def test_same_bits_at_any_number_of_threads(models: int, batch: int | None) -> None:
    model, u0 = make("NPU", models), starts(models, *(() if batch is None else (batch,)), D)
    runs = []
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            runs.append(outputs_and_gradients(model, u0, steps=12, dt=0.01, nonfinite="keep"))
    finally:
        torch.set_num_threads(1)
    for other in runs[1:]:
        for actual, want in zip(other, runs[0], strict=True):
            torch.testing.assert_close(actual, want, rtol=0, atol=0, equal_nan=True)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_instruction_set(isa: str, dtype: torch.dtype) -> None:
    for models, batch in ((None, None), (5, None), (3, 3), (2, 21)):
        model = make("NPU", models, dtype)
        shape = (*(() if models is None else (models,)), *(() if batch is None else (batch,)), D)
        u0 = away_from_zero(*shape, dtype=dtype)
        fused, eager = both(model, u0, steps=6, dt=0.005, method="rk4")
        assert_near(fused, eager, 500 * torch.finfo(dtype).eps)


@needs_library
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strided_operands(layout: str) -> None:
    model, u0 = make("NPU", 4), away_from_zero(4, 3, D)
    options: dict[str, Any] = {"steps": 5, "dt": 0.01, "method": "rk4"}
    expected = outputs_and_gradients(model, with_layout(u0, layout).contiguous(), **options)
    parameters = [
        with_layout(p.detach(), "sliced" if layout == "expanded" else layout)
        for p in model.parameters()
    ]
    for parameter, strided in zip(model.parameters(), parameters, strict=True):
        parameter.data = strided
    originals = [p.clone() for p in parameters]

    def as_laid_out(grad: Tensor) -> Tensor:
        return grad if layout == "expanded" else with_layout(grad, layout)

    actuals = outputs_and_gradients(model, with_layout(u0, layout), as_laid_out, **options)
    assert_equal(actuals, expected)
    assert_equal(parameters, originals)


@needs_library
def test_every_output_is_written() -> None:
    for models, batch in ((None, None), (3, 2), (2, 20)):
        model = make("NPU", models)
        shape = (*(() if models is None else (models,)), *(() if batch is None else (batch,)), D)
        u0 = away_from_zero(*shape)
        expected = outputs_and_gradients(model, u0, steps=3, dt=0.01)
        with fill_uninitialized_with_nan():
            actuals = outputs_and_gradients(model, u0, steps=3, dt=0.01)
        assert_equal(actuals, expected)


def test_some_gradients_alone(backend: str) -> None:
    """A tensor that requires a gradient gets the same one alone."""
    model, u0 = make("NPU", 2), away_from_zero(2, D)
    expected = outputs_and_gradients(model, u0, steps=4, dt=0.01)[3:]
    for index, parameter in enumerate(model.parameters()):
        model.requires_grad_(False)
        parameter.requires_grad_()
        trajectory, du_dt = ode.rollout(model, u0, steps=4, dt=0.01, return_derivatives=True)
        generator = torch.Generator().manual_seed(1)
        upstream = [
            torch.randn(o.shape, generator=generator, dtype=torch.float64)
            for o in (trajectory, du_dt)
        ]
        (grad,) = torch.autograd.grad([trajectory, du_dt], [parameter], upstream)
        assert torch.equal(grad, expected[index])


def test_second_derivatives(backend: str) -> None:
    model = make("NPU", h=2)
    u0 = torch.tensor([1.0, -1.5, 2.0], dtype=torch.float64, requires_grad=True)

    def function(
        u0: Tensor, weight_re: Tensor, weight_im: Tensor, gate: Tensor, weight: Tensor
    ) -> Any:
        return ode.integrate(
            u0, weight_re, weight_im, gate, weight, steps=2, dt=0.05, method="midpoint",
            return_derivatives=True,
        )  # fmt: skip

    torch.autograd.gradgradcheck(
        function, (u0, *(p.detach().clone().requires_grad_() for p in model.parameters()))
    )


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_transforms_and_forward_mode() -> None:
    model, u0 = make("NPU"), away_from_zero(4, D)
    run = functools.partial(ode.rollout, model, steps=4, dt=0.01, nonfinite="keep")
    torch.testing.assert_close(torch.func.vmap(run)(u0), run(u0))
    jacobian = torch.func.jacrev(run)(u0[0])
    torch.testing.assert_close(torch.func.jacfwd(run)(u0[0]), jacobian)
    torch.testing.assert_close(torch.autograd.functional.jacobian(run, u0[0]), jacobian)
    with pytest.raises(
        RuntimeError, match=r"^rollout: nonfinite='raise' has to look at the values, .*'keep'$"
    ):
        torch.func.vmap(functools.partial(ode.rollout, model, steps=4, dt=0.01))(u0)


@needs_library
def test_operators() -> None:
    for models, batch, save, derivatives in (
        (None, 1, True, True),
        (3, 2, True, False),
        (2, 9, False, True),
    ):
        model = make("NPU", models)
        u0 = away_from_zero(*(() if models is None else (models,)), batch, D)
        parameters = [
            p.detach()
            for p in (model[0].weight_re, model[0].weight_im, model[0].gate, model[1].weight)
        ]
        tableau = list(ode.METHODS["midpoint"])
        options = (tableau, 3, 0.1, 1e-16, True)
        out = ops.ode_forward(u0, *parameters, *options, derivatives, save)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = ops.ode_forward(
                *(mode.from_tensor(t) for t in (u0, *parameters)), *options, derivatives, save
            )
        assert [tuple(t.shape) for t in fake] == [tuple(t.shape) for t in out]
        grad = torch.randn_like(out[0])
        of_derivatives = torch.randn_like(out[0]) if derivatives else None
        torch.library.opcheck(
            ops.ode_backward.default,
            (
                grad,
                of_derivatives,
                out[0],
                *parameters,
                out[2],
                tableau,
                0.1,
                1e-16,
                True,
                False,
                31,
            ),
            test_utils=("test_schema", "test_faketensor"),
        )


@needs_library
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own dependencies
def test_compiled() -> None:
    model, u0 = make("NPU", 2), away_from_zero(2, D)
    run = functools.partial(ode.rollout, model, steps=4, dt=0.01, nonfinite="keep")
    trajectory = torch.compile(run, fullgraph=True, backend="aot_eager")(u0)
    assert torch.equal(trajectory, run(u0))
    grads = torch.autograd.grad(trajectory.square().sum(), list(model.parameters()))
    assert_equal(grads, torch.autograd.grad(run(u0).square().sum(), list(model.parameters())))
