"""The Triton kernels against the formulas, interpreted on the CPU or on a GPU."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from npu_kernels import reference, use_backend
from tests.support.compare import assert_equal, assert_near
from tests.support.kernels import (
    ALL,
    EPS,
    assert_parity,
    backward,
    errors,
    forward,
    outputs,
    with_zero_factors,
)
from tests.support.samples import (
    LAYOUTS,
    RECORDS,
    Sample,
    error_bound,
    fill_uninitialized_with_nan,
    normwise_error,
    with_layout,
)
from tests.support.vmapped import check_batched_gradients

FUSED = ("npu", "nmu", "nmru", "nalu", "inalu")
# All but the NPU have one set of kernels for all sizes.
both_routes = pytest.mark.parametrize(
    ("name", "route"),
    [("npu", "small"), ("npu", "tiles"), ("nmu", "small"), ("nmru", "small"), ("nalu", "small"),
     ("inalu", "small")],
    indirect=["route"],
)  # fmt: skip


def _cheap_samples(name: str, dtype: torch.dtype, device: str) -> Iterator[Sample]:
    """The samples without long loops in the interpreter; every second one of some layers."""
    for sample in itertools.islice(
        RECORDS[name].samples(dtype, device), 0, None, 2 if "alu" in name or name == "nmru" else 1
    ):
        limit = 48 if name == "npu" else 20
        if max(sample.x.shape[-1], next(iter(sample.tensors.values())).shape[-2]) <= limit:
            yield sample


@pytest.mark.parametrize("name", FUSED)
def test_float64_parity(name: str, device: str, kernels: Any) -> None:
    """Every size, layout, number of models and optional tensor; nan where nothing is written."""
    for sample in _cheap_samples(name, torch.float64, device):
        grad_y = torch.randn_like(forward(sample, reference)[0])
        for actual, expected in zip(
            outputs(sample, kernels, grad_y), outputs(sample, reference, grad_y), strict=True
        ):
            assert actual.is_contiguous()
            assert normwise_error(actual, expected) < 5e-14, sample.name


@pytest.mark.parametrize("name", ["nalu", "inalu"])
@pytest.mark.parametrize(("num_models", "shared"), [(None, False), (2, True)])
def test_zero_inputs_and_factors(
    name: str, num_models: int | None, shared: bool, device: str, kernels: Any
) -> None:
    """Gradients where x, or factors of the sign product, are 0 are products of the others."""
    sample = RECORDS[name].sample(19, 5, 18, num_models=num_models, shared=shared, device=device)
    sample = with_zero_factors(sample)
    assert_parity(sample, kernels)


def test_omega_bounds_the_exponent_and_its_gradient(device: str, kernels: Any) -> None:
    sample, omega = RECORDS["inalu"].sample(19, 5, 18, device=device), 0.1
    tensors, runs = list(sample.tensors.values()), []
    for of in (kernels, reference):
        y, *saved = of.inalu_forward(sample.x, *tensors, EPS, omega, True)
        grads = of.inalu_backward(torch.ones_like(y), sample.x, *tensors, *saved, EPS, omega, ALL)
        runs.append([y, *saved, *grads])
    bounded = runs[1][4] & 1
    assert 0.1 < bounded.double().mean() < 0.9
    assert_near(*runs, bound=5e-14)


@both_routes
def test_float32_error(name: str, route: str, device: str, kernels: Any) -> None:
    """Errors are at most twice the eager layer's, both against float64."""
    record = RECORDS[name]
    for sizes in ((33, 5, 3), (100, 6, 2), (33, 15, 15))[: 2 if name in ("nmu", "nmru") else 3]:
        samples = [
            record.sample(*sizes, num_models=2, dtype=torch.float32, device=device, seed=s)
            for s in range(2)
        ]
        pooled = (
            torch.tensor([errors(sample, kernels) for sample in samples]).square().mean(0).sqrt()
        )
        for which, (error, eager) in enumerate(pooled.tolist()):
            assert error <= error_bound(eager, torch.float32), f"{samples[0].name}, output {which}"


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_upstream_layouts(name: str, layout: str, device: str, kernels: Any) -> None:
    """An upstream gradient of any strides, 0 among them, gives the bits of a contiguous one."""
    for sizes in ((9, 4, 3), (9, 17, 16)) if name == "npu" else ((9, 4, 3),):
        sample = RECORDS[name].sample(*sizes, num_models=2, device=device)
        grad_y = with_layout(torch.randn_like(forward(sample, reference)[0]), layout)
        expected = backward(sample, kernels, grad_y.contiguous(), ALL)
        assert_equal(backward(sample, kernels, grad_y, ALL), expected)


@pytest.mark.parametrize(
    ("name", "route", "shared"),
    [("npu", "small", False), ("npu", "tiles", True), ("nmu", "small", True),
     ("nmru", "small", True), ("nalu", "small", False), ("inalu", "small", True)],
    indirect=["route"],
)  # fmt: skip
def test_needs(name: str, shared: bool, route: str, device: str, kernels: Any) -> None:
    """Every subset gives the bits of the full set, and empty tensors for the rest.

    On a GPU the compiler fuses other multiply-adds where fewer gradients are computed.
    """
    sample = RECORDS[name].sample(17, 5, 3, num_models=2, shared=shared, device=device)
    grad_y = torch.randn_like(forward(sample, reference)[0])
    full = backward(sample, kernels, grad_y, ALL)
    for needs in (
        range(1 << len(full)) if len(full) < 5 else (0, *(1 << bit for bit in range(len(full))), 22)
    ):
        with fill_uninitialized_with_nan():
            some = backward(sample, kernels, grad_y, needs)
        for bit, (grad, want) in enumerate(zip(some, full, strict=True)):
            if needs >> bit & 1:
                within = 0 if device == "cpu" else 1e-13
                torch.testing.assert_close(grad, want, rtol=within, atol=within)
            else:
                assert grad.shape == (0,)


@pytest.mark.parametrize("name", ["nalu", "inalu"])
def test_gradients_of_a_shared_x_that_nobody_needs(
    name: str, device: str, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No memory is taken for those of the models, which would be summed."""
    sample = RECORDS[name].sample(17, 5, 3, num_models=2, shared=True, device=device)
    grad_y = torch.randn_like(forward(sample, reference)[0])
    empty, shapes = Tensor.new_empty, list[tuple[int, ...]]()

    def noted(like: Tensor, shape: tuple[int, ...], **options: Any) -> Tensor:
        shapes.append(shape)
        return empty(like, shape, **options)

    monkeypatch.setattr(Tensor, "new_empty", noted)
    of_each_model = 2, 17, 5
    backward(sample, kernels, grad_y, ALL)
    assert of_each_model in shapes
    shapes.clear()
    backward(sample, kernels, grad_y, ALL & ~1)
    assert shapes
    assert of_each_model not in shapes


@both_routes
def test_runs_are_bitwise_equal(name: str, route: str, device: str, kernels: Any) -> None:
    """Rows split among programs and added up again: the same bits every time."""
    from npu_kernels._triton import tuning

    # Two programs for each model, the first with three tiles of rows, one after the other.
    splits = {"npu_small_backward": {"BLOCK_B": 16, "num_warps": 4, "programs": 4}}
    splits["npu_backward_w"] = {
        "BLOCK_B": 16, "BLOCK_O": 16, "BLOCK_I": 16, "PASSES": 0, "num_warps": 4,
    }  # fmt: skip
    splits["npu_backward_w"] |= {"num_stages": 1, "programs": 10}
    splits["nmu_backward"] = {"BLOCK_B": 16, "BLOCK_O": 4, "num_warps": 4}
    splits["nalu_backward_w"] = splits["npu_backward_w"]
    sample = RECORDS[name].sample(70, 5, 6, num_models=2, dtype=torch.float32, device=device)
    exact = sample.map(Tensor.double)
    grad_y = torch.randn_like(forward(sample, reference)[0])
    with contextlib.ExitStack() as stack:
        for kernel, config in splits.items():
            stack.enter_context(tuning.use_config(kernel, config))
        first, second = (outputs(sample, kernels, grad_y) for _ in range(2))
    for one_run, other_run, want in zip(
        first, second, outputs(exact, reference, grad_y.double()), strict=True
    ):
        assert torch.equal(one_run, other_run)
        assert normwise_error(one_run, want) < 1e-5


@both_routes
def test_inputs_are_unchanged(name: str, route: str, device: str, kernels: Any) -> None:
    for layout in ("contiguous", "expanded"):
        sample = RECORDS[name].sample(9, 5, 3, num_models=2, layout=layout, device=device)
        copies = [t.clone() for t in sample.leaves()]
        grad_y = torch.randn_like(forward(sample, reference)[0])
        grad_copy = grad_y.clone()
        backward(sample, kernels, grad_y, ALL)
        assert_equal(sample.leaves(), copies)
        assert torch.equal(grad_y, grad_copy)


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize(("num_models", "shared"), [(None, False), (2, False), (2, True)])
def test_batched_upstream_gradients(
    name: str, num_models: int | None, shared: bool, device: str
) -> None:
    """torch.autograd.grad(is_grads_batched=True) runs the backward under vmap."""
    record = RECORDS[name]
    leaves = (
        record.sample(3, 2, 2, num_models=num_models, shared=shared, device=device)
        .requires_grad()
        .leaves()
    )
    with use_backend("triton"):
        check_batched_gradients(record.function, leaves)


def test_straight_through_gate(route: str, device: str, kernels: Any) -> None:
    sample = RECORDS["npu"].sample(9, 5, 3, device=device)
    gate = torch.tensor([-0.5, 0.0, 0.5, 1.0, 1.5], dtype=torch.float64, device=device)
    sample = Sample(sample.name, sample.x, {**sample.tensors, "gate": gate})
    grad_y = torch.randn_like(forward(sample, reference)[0])
    for straight_through in (False, True):
        grad_gate = backward(sample, kernels, grad_y, 8, straight_through)[3]
        assert (
            normwise_error(grad_gate, backward(sample, reference, grad_y, 8, straight_through)[3])
            < 1e-13
        )
        assert (grad_gate == 0).tolist() == (
            [False] * 5 if straight_through else [True, False, False, False, True]
        )


@pytest.mark.parametrize("sizes", [(0, 3, 2), (4, 0, 2), (4, 3, 0), (0, 20, 17), (4, 20, 0)])
@pytest.mark.parametrize("name", FUSED)
def test_empty_tensors(name: str, sizes: tuple[int, int, int], device: str, kernels: Any) -> None:
    record, (b, i, o) = RECORDS[name], sizes
    sample = record.sample(b, max(i, 1), o, num_models=2, device=device)
    if i == 0:
        columns = {1, 2} if name == "nmru" else {1}  # the NMRU's weights have two for each input
        sample = sample.map(lambda t: t[..., :0] if t.shape[-1] in columns else t)
    grad_y = torch.ones_like(forward(sample, reference)[0])
    assert_equal(outputs(sample, kernels, grad_y), outputs(sample, reference, grad_y))


def test_negative_inputs_in_a_few_tiles(device: str, kernels: Any) -> None:
    """Tiles without a negative input skip the products with the mask; those with one must not."""
    sample = RECORDS["npu"].sample(70, 40, 17, device=device)
    sample.x.abs_()
    sample.x[66, 3] *= -1
    sample.x[5, 39] = -0.0
    assert_parity(sample, kernels)


# ---- errors ---------------------------------------------------------------------------------


def test_bad_operands(device: str, kernels: Any) -> None:
    """Kernels compute addresses from sizes: what does not fit must not reach them."""
    x, w = torch.ones(4, 3, device=device), torch.ones(2, 3, device=device)
    with pytest.raises(
        ValueError, match=r"^npu_forward: x must have shape .+, got x \(4, 3\) and weight \(2, 5\)$"
    ):
        kernels.npu_forward(x, torch.ones(2, 5, device=device), None, None, 1e-7, True)
    with pytest.raises(
        ValueError, match=r"^npu_forward: gate must have shape \(3,\), got shape \(2,\)$"
    ):
        kernels.npu_forward(x, w, None, torch.ones(2, device=device), 1e-7, True)
    with pytest.raises(
        TypeError, match=r"^npu_forward: weight_re must have the dtype of x, .+, got torch.float64$"
    ):
        kernels.npu_forward(x, w.double(), None, None, 1e-7, True)
    with pytest.raises(
        ValueError,
        match=r"^nmu_forward: at most 8388607 inputs and outputs, got weight \(1, 8388608\)$",
    ):
        kernels.nmu_forward(x, x[:1, :1].expand(1, 2**23))
    with pytest.raises(
        TypeError, match=r"x must be float16, bfloat16, float32 or float64, got torch.int64"
    ):
        kernels.nmu_forward(x.long(), w.long())
    y = torch.ones(4, 2, device=device)
    with pytest.raises(
        ValueError, match=r"^npu_backward: s must have shape \(4, 2\), got shape \(0,\)$"
    ):
        kernels.npu_backward(y, x, w, None, None, y, y.new_empty(0), 1e-7, False, 15)
    with pytest.raises(
        ValueError, match=r"^nmu_backward: grad_y must have shape \(4, 2\), got shape \(2, 4\)$"
    ):
        kernels.nmu_backward(y.T, x, w, 3)
