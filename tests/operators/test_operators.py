"""The registered operators, called as they are."""

import ctypes
import dataclasses
import itertools
import platform
from pathlib import Path

import pytest
import torch
from packaging.version import Version

from tests.conftest import needs_library
from tests.support.compare import assert_equal
from tests.support.kernels import ALL, backward, errors, forward, ops, outputs
from tests.support.kernels import options as options_of
from tests.support.samples import (
    LAYOUTS,
    RECORDS,
    error_bound,
    fill_uninitialized_with_nan,
    with_layout,
)

FUSED = ("npu", "nmu", "nmru", "nalu", "inalu")  # by the C++ library


@needs_library
@pytest.mark.parametrize("name", FUSED)
def test_float32_error(name: str) -> None:
    """Forward and backward of every sample. An output that is not written would be nan.

    Over all samples at most twice the eager error and an ulp. A sample alone has some outputs of
    one or two elements, in which the sum of a few terms cancels now and then: there, a few ulp
    more. The eager error of such an output depends on the processor, whose matrix library adds up
    in an order of its own.
    """
    pooled = []
    for samples in zip(
        *(RECORDS[name].samples(torch.float32, seed=seed) for seed in range(4)), strict=True
    ):
        layer_errors = torch.tensor([errors(sample) for sample in samples]).square().mean(0)
        pooled.append(layer_errors)
        for which, (error, eager) in enumerate(layer_errors.sqrt().tolist()):
            assert error <= error_bound(eager, torch.float32, ulps=24), (
                f"{samples[0].name}, output {which}"
            )
    for which, (error, eager) in enumerate(torch.stack(pooled).mean(0).sqrt().tolist()):
        assert error <= error_bound(eager, torch.float32, ulps=1), f"output {which}"


@needs_library
@pytest.mark.parametrize(
    "size", [*((200, inputs, 10) for inputs in (31, 64, 100, 256, 1000)), (4096, 64, 32)]
)
def test_float32_error_of_long_sums(size: tuple[int, int, int]) -> None:
    """Twice the eager error where rounding adds up: a straight running sum would exceed it."""
    pooled = torch.zeros(6, 2)
    for seed in range(3):
        sample = RECORDS["npu"].sample(*size, dtype=torch.float32, seed=seed)
        if size[0] > 1000:  # sums over rows: those of the gate grow where all have one sign
            sample = dataclasses.replace(sample, x=sample.x.abs())
        pooled += torch.tensor(errors(sample)).square()
    error, eager = pooled.sqrt().T
    ulp = torch.finfo(torch.float32).eps
    assert (error <= 2 * eager + ulp / 2).all(), f"kernel / eager: {(error / eager).tolist()}"


@needs_library
@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_upstream_layouts(name: str, layout: str) -> None:
    """An upstream gradient of any strides gives the bits of a contiguous one."""
    for shared in (False, True):
        for num_models in (None, 3):
            sample = RECORDS[name].sample(
                17, 6, 5, num_models=num_models, shared=shared and num_models is not None
            )
            grad_y = with_layout(torch.randn_like(forward(sample, ops)[0]), layout)
            expected = backward(sample, ops, grad_y.contiguous(), ALL)
            assert_equal(backward(sample, ops, grad_y, ALL), expected)


@needs_library
@pytest.mark.parametrize("name", FUSED)
def test_needs(name: str) -> None:
    """Every subset gives the bits of the full set, and empty tensors for the rest."""
    sample = RECORDS[name].sample(17, 6, 5, num_models=2)
    grad_y = torch.randn_like(forward(sample, ops)[0])
    full = backward(sample, ops, grad_y, ALL)
    for needs in range(1 << len(full)):
        with fill_uninitialized_with_nan():
            some = backward(sample, ops, grad_y, needs)
        for bit, (grad, want) in enumerate(zip(some, full, strict=True)):
            assert torch.equal(grad, want) if needs >> bit & 1 else grad.shape == (0,)


@needs_library
@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(7, 5, 3), (50, 6, 1), (70, 33, 7), (70, 100, 20)])
def test_other_models_change_no_bit(
    name: str, dtype: torch.dtype, sizes: tuple[int, int, int]
) -> None:
    sample = RECORDS[name].sample(*sizes, num_models=5, dtype=dtype)
    one = sample.map(lambda tensor: tensor[3:4])
    grad_y = torch.randn_like(forward(sample, ops)[0])
    of_all, of_one = outputs(sample, ops, grad_y), outputs(one, ops, grad_y[3:4])
    assert_equal([tensor[3:4] for tensor in of_all], of_one)


@needs_library
@pytest.mark.parametrize("name", FUSED)
def test_inputs_are_unchanged(name: str) -> None:
    for layout in LAYOUTS:
        sample = RECORDS[name].sample(9, 5, 3, num_models=2, layout=layout)
        copies = [t.clone() for t in sample.leaves()]
        y = forward(sample, ops)[0]
        grad_y = torch.randn_like(y)
        before, grad_copy = y.clone(), grad_y.clone()
        backward(sample, ops, grad_y, ALL)
        assert_equal(sample.leaves(), copies)
        assert torch.equal(y, before)
        assert torch.equal(grad_y, grad_copy)


@pytest.mark.parametrize("name", FUSED)
def test_opcheck(name: str) -> None:
    """Schema, fake kernel and tracing; the operators have no autograd of their own.

    Layouts, and which gradients are needed, take turns over models and operands left out.
    """
    record, check = RECORDS[name], torch.library.opcheck
    forward_op, backward_op = getattr(ops, f"{name}_forward"), getattr(ops, f"{name}_backward")
    layouts = itertools.cycle(("contiguous", "transposed", "transposed"))
    needs = itertools.cycle({"nmu": (3, 1, 2), "nmru": (3, 1, 2)}.get(name, (ALL, 2, 9)))
    kinds = itertools.product(((None, False), (2, False), (2, True)), record.variants())
    for turn, ((num_models, shared), without) in enumerate(kinds):
        sample = record.sample(
            4, 3, 2, num_models=num_models, shared=shared, without=without, layout=next(layouts)
        )
        operands = sample.x, *sample.tensors.values()
        if name == "npu":
            check(forward_op, (*operands, 1e-3, bool(turn % 3)))
            y, s = forward_op(*operands, 1e-3, True)
            check(backward_op, (y, *operands, y, s, 1e-3, False, next(needs)))
        elif name in ("nalu", "inalu"):
            options = (1e-3, 20.0) if name == "inalu" else (1e-3,)
            check(forward_op, (*operands, *options, False))
            y, *saved = forward_op(*operands, *options, True)
            check(backward_op, (y, *operands, *saved, *options, next(needs)))
        else:
            check(forward_op, (*operands, *options_of(sample)))
            y = forward(sample, ops)[0]
            check(backward_op, (y, *operands, *options_of(sample), next(needs)))


# glibc 2.43 keeps small aligned blocks for each thread and does not fill them; 2.36 fills all. None
# between was tried.
KEEPS_SMALL_BLOCKS = Version(platform.libc_ver()[1] or "0") > Version("2.36")
SIZES_THAT_GLIBC_FILLS = (1000, 100_000) if KEEPS_SMALL_BLOCKS else (1, 5, 64, 1000, 100_000)


def test_uninitialized_memory_is_filled() -> None:
    with fill_uninitialized_with_nan():
        assert torch.ops.aten.new_empty(torch.zeros(1), [64]).isnan().all()
        assert torch.ops.aten.empty.memory_format([64]).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc fills what it allocates")
@pytest.mark.parametrize("size", SIZES_THAT_GLIBC_FILLS)
def test_uninitialized_memory_of_the_library_is_filled(size: int) -> None:
    """The allocation that the C++ code makes, here from Python."""
    torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    handle, pointer = ctypes.c_void_p(), ctypes.c_void_p()
    with fill_uninitialized_with_nan():
        error = torch_cpu.aoti_torch_empty_strided(
            ctypes.c_int64(1), (ctypes.c_int64 * 1)(size), (ctypes.c_int64 * 1)(1),
            torch_cpu.aoti_torch_dtype_float32(), torch_cpu.aoti_torch_device_type_cpu(), -1,
            ctypes.byref(handle),
        )  # fmt: skip
        assert error == 0
        torch_cpu.aoti_torch_get_data_ptr(handle, ctypes.byref(pointer))
        values = torch.tensor((ctypes.c_float * size).from_address(pointer.value or 0)[:])
    torch_cpu.aoti_torch_delete_tensor_object(handle)
    filled = ((values + 1.498).abs() < 1e-3) | ((values - 3.0039).abs() < 1e-3)
    # the allocator keeps its books in the first words of a free block
    assert filled.float().mean() > 0.9 or size == 1
