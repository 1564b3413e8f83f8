"""Bad input and the exact messages that it gets."""

import pytest
import torch

from npu_kernels import functional
from npu_kernels.layers import NMU, NPU
from tests.conftest import needs_library
from tests.operators.bad_calls import ErrorSample, error_samples
from tests.support.kernels import ops
from tests.support.samples import RECORDS, OperatorRecord

CASES = [(record, sample) for record in RECORDS.values() for sample in error_samples(record)]


@pytest.mark.parametrize(("record", "sample"), CASES, ids=lambda case: getattr(case, "name", None))
@pytest.mark.parametrize("autocast", [False, True])
def test_operators(record: OperatorRecord, sample: ErrorSample, autocast: bool) -> None:
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        pytest.raises(sample.error, match=sample.message),
    ):
        record.function(*sample.arguments, **sample.options)


@needs_library
def test_raw_operators() -> None:
    """The C++ part checks what reaches it without the functional layer."""
    x, w = torch.rand(3, 4), torch.rand(2, 4)
    y = torch.rand(3, 2)
    for call, message in (
        (lambda: ops.npu_forward(x, w[:, :3], None, None, 1e-7, True),
         r"x must have last dimension 3 \(in_features\)"),
        (lambda: ops.npu_forward(x, w, w[:, :3], None, 1e-7, True),
         "weight_im must have 8 elements"),
        (lambda: ops.npu_forward(x, w, None, torch.rand(3), 1e-7, True),
         "gate must have 4 elements"),
        (lambda: ops.npu_forward(x, w.double(), None, None, 1e-7, True),
         "weight_re must have the dtype of x"),
        (lambda: ops.npu_forward(x.half(), w.half(), None, None, 1e-7, True),
         "float32 and float64 only"),
        (lambda: ops.npu_forward(x, w, None, None, 0.0, True),
         "eps must be finite and at least the least normal"),
        (lambda: ops.npu_forward(x[0], w, None, None, 1e-7, True),
         "as many dimensions as the weights"),
        (lambda: ops.npu_backward(y[:2], x, w, None, None, y, y, 1e-7, False, 3),
         "grad_y must have 6 elements"),
        (lambda: ops.nmu_forward(x, w[0]), "weight must have 2 dimensions"),
        (lambda: ops.nmu_backward(y.double(), x, w, 3), "grad_y must have the dtype of x"),
        (lambda: ops.nmru_forward(x, torch.rand(1, 5), 0.0, True, False),
         "weight must have an even last dimension"),
        (lambda: ops.nmru_forward(x, torch.rand(1, 8), -1.0, True, False),
         "eps must be finite and at least the least normal"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=message):
            call()


@needs_library
@pytest.mark.parametrize("size", [0, 4, 31])
def test_memory_smaller_than_a_tensor(size: int) -> None:
    """Freed or smaller memory is an error of operators and layers, of any strides."""

    def shrunk(tensor: torch.Tensor) -> torch.Tensor:
        tensor.untyped_storage().resize_(size)
        return tensor

    x, w, y = torch.rand(2, 4), torch.rand(2, 4), torch.rand(2, 2)
    small, gate, strided = (
        shrunk(t) for t in (torch.rand(2, 4), torch.rand(8)[4:], torch.rand(4, 2).t())
    )
    layer = NPU(4, 2)
    layer.weight_im.data = small
    calls = {
        "npu_forward: x": lambda: ops.npu_forward(small, w, None, None, 1e-7, True),
        "npu_forward: gate": lambda: ops.npu_forward(x, w, None, gate, 1e-7, True),
        "nmu_backward: weight": lambda: ops.nmu_backward(y, x, small, 3),
        "npu_forward: weight_re": lambda: functional.npu(x, strided),
        "npu_forward: weight_im": lambda: layer(x),
        "nmu_forward: x": lambda: NMU(4, 2)(small),
    }
    for name, call in calls.items():
        with torch.no_grad(), pytest.raises(RuntimeError, match=f"^{name} must have memory"):
            call()


@needs_library
def test_memory_freed_before_a_backward() -> None:
    """What the forward saved, the upstream gradient, and the flags of an iNALU."""
    x, y = torch.rand(3, 4), torch.rand(3, 2)
    sizes = {"O": 2, "I": 4}
    weights = [
        torch.rand([sizes[s] for s in letters]) for letters in RECORDS["inalu"].shapes.values()
    ]
    out = ops.inalu_forward(x, *weights, 1e-7, 20.0, True)
    for number in range(1, len(out)):
        saved = [t.clone() for t in out[1:]]
        saved[number - 1].untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match=r"^inalu_backward: \w+ must have memory"):
            ops.inalu_backward(y, x, *weights, *saved, 1e-7, 20.0, 63)
    x.requires_grad_()
    for wrong in (0, 1):
        x.grad, layer = None, NPU(4, 2)
        result, upstream = layer(x), torch.rand(3, 2)
        (layer.weight_re.data, upstream)[wrong].untyped_storage().resize_(4)
        with pytest.raises(RuntimeError, match=r"^npu_backward: \w+ must have memory"):
            result.backward(upstream)
