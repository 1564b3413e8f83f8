"""`training.run`: what it does not take, and what it says."""

import pytest
import torch

from npu_kernels.training import run
from tests.conftest import needs_library
from tests.training.test_training_run import MODELS


def test_inference_mode() -> None:
    """A run leaves it, but parameters that were made in it never have gradients."""
    x, y, model = torch.rand(5, 2), torch.rand(5, 3), MODELS["npu nau"](None, torch.float32)
    before = [p.clone() for p in model.parameters()]
    with torch.inference_mode():
        run(model, x, y, steps=1, lr=0.1)
        other = MODELS["npu nau"](None, torch.float32)
        with pytest.raises(ValueError, match=r"^run: model must be made outside of torch\.infer"):
            run(other, x, y, steps=1, lr=0.1)
    assert not any(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore:.*makes its steps one by one:UserWarning")
def test_an_optimizer_of_some_parameters_and_of_others() -> None:
    """It needs one of the model's."""
    model, other = MODELS["npu nau"](None, torch.float32), torch.nn.Linear(2, 2)
    before = model[0].weight_re.clone()  # type: ignore[index]
    parameters = [model[1].weight, *other.parameters()]  # type: ignore[index]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    run(model, torch.rand(5, 2), torch.rand(5, 3), steps=2, optimizer=optimizer, project=False)
    assert torch.equal(model[0].weight_re, before)  # type: ignore[index]


@pytest.mark.parametrize(
    "name", ["x", "y", "sample_weight", "batch_indices", "a parameter of model"]
)
@pytest.mark.parametrize("fused", [pytest.param(True, marks=needs_library), False])
def test_a_storage_that_was_freed(name: str, fused: bool) -> None:
    model = MODELS["npu nau"](None, torch.float32)
    if not fused:
        model.append(torch.nn.Identity())  # type: ignore[operator]
    tensors = {"x": torch.rand(5, 2), "y": torch.rand(5, 3), "sample_weight": torch.rand(5, 3)}
    tensors["batch_indices"] = torch.zeros(3, 2, dtype=torch.int64)
    tensors["a parameter of model"] = model[0].gate.detach()  # type: ignore[index]
    message = rf"run: {name} must have memory for its shape \(.*\), \d+ bytes, got a storage of {{}} bytes"
    for size in (tensors[name].nbytes - 1, 0):
        tensors[name].untyped_storage().resize_(size)
        with pytest.raises(ValueError, match=message.format(size)):
            run(
                model, tensors["x"], tensors["y"], steps=3, lr=0.1,
                sample_weight=tensors["sample_weight"], batch_indices=tensors["batch_indices"],
            )  # fmt: skip


def test_parts_of_storages_have_memory() -> None:
    """Views with offsets, strides and sizes 0 strided are no freed storages."""
    x, y = torch.rand(7, 3)[2:, ::2], torch.rand(3).expand(5, 3)
    model = MODELS["npu nau"](None, torch.float32)
    assert run(model, x, y, steps=1, lr=0.1, sample_weight=torch.rand(4, 5).t()[:, :3]).complete
