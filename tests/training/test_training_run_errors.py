"""`training.run`: what it does not take, and what it says."""

from typing import Any

import pytest
import torch

from npu_kernels import RealNPU
from npu_kernels.training import run
from tests.conftest import needs_library
from tests.training.test_training_run import MODELS

VALUE_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"x": torch.rand(5, 3)}, r"x must have last dimension 2 \(in_features of model\), got shape"),
    ({"y": torch.rand(5, 2)}, r"y must have last dimension 3 \(out_features of model\), got shape"),
    ({"x": torch.rand(4, 2)}, "x and y must have the same number of rows, at least 1"),
    ({"x": torch.rand(2, 5, 2)}, r"x must have two dimensions, got shape \(2, 5, 2\)"),
    ({"x": torch.rand(5, 2, requires_grad=True)}, "x must not require a gradient"),
    ({"steps": 0}, "steps must be an integer of at least 1, got 0"),
    ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
    ({"every": 0}, "every must be an integer of at least 1, got 0"),
    ({"stretch": 1.5}, "stretch must be an integer of at least 1, got 1.5"),
    ({"loss": "mae"}, "loss must be 'mse', got 'mae'"),
    ({"optimizer": "sgd"},
     "optimizer must be 'adam', 'rmsprop' or a torch.optim.Optimizer, got 'sgd'"),
    ({"optimizer": torch.optim.Adam(RealNPU(2, 1).parameters())},
     "optimizer must have at least one parameter of model, got Adam of 2 other parameters"),
    ({"lr": -1.0}, "lr must be a function of the step, or finite and at least 0, got -1.0"),
    ({"penalties": {"l2": 1.0}},
     "penalties must be of 'l1', 'frobenius', 'madsen', 'paper', 'whole', got 'l2'"),
    ({"penalties": {"l1": float("nan")}}, "the weight of penalty 'l1' must be a number, .*, got nan"),
    ({"project": 0.0}, "project must be True, False, or greater than 0, got 0.0"),
    ({"nonfinite": "skip"}, "nonfinite must be one of 'keep', 'zero', got 'skip'"),
    ({"sample_weight": torch.rand(5, 1)},
     r"sample_weight must have shape, dtype and device of y, \(5, 3\), torch.float32, cpu, and no"),
    ({"sample_weight": torch.full((5, 3), -2.0)}, "sample_weight must be finite and at least 0, got -2"),
    ({"sample_weight": torch.full((5, 3), torch.nan)}, ".* must be finite and at least 0, got nan"),
    ({"sample_weight": torch.full((5, 3), torch.inf)}, ".* must be finite and at least 0, got inf"),
    ({"rows": torch.zeros(1, 2)}, r"rows must be int64 of shape \(steps, batch\), steps 1, got"),
    ({"rows": torch.tensor([[5]])}, r"rows must lie within \[0, 5\), got 5 to 5"),
    ({"rows": torch.tensor([[0]]), "batch_size": 2},
     "batch_size must be None where rows are given"),
]  # fmt: skip
TYPE_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"model": 1}, "model must be a torch.nn.Module, got int"),
    ({"x": torch.rand(5, 2, dtype=torch.float64)}, "x must have the dtype of model, torch.float32"),
    ({"penalties": ["l1"]}, "penalties must be a dict of names and weights, got list"),
    ({"generator": 3}, "generator must be a torch.Generator or None, got int"),
    ({"callbacks": 3}, "callbacks must be a function, or several in a list, got 3"),
    ({"callbacks": [print, 3]}, "callbacks must be a function, or several in a list, got 3"),
    ({"penalties": {"l1": "1"}}, "the weight of penalty 'l1' must be a number, .*, got str"),
    ({"sample_weight": 1.0}, "sample_weight must be a torch.Tensor, got float"),
    ({"checkpoint": 3}, "checkpoint must be a path, got int"),
]  # fmt: skip
ERRORS = [
    *((*case, ValueError) for case in VALUE_ERRORS),
    *((*case, TypeError) for case in TYPE_ERRORS),
]


@pytest.mark.parametrize(("arguments", "message", "error"), ERRORS)
def test_errors(arguments: dict[str, Any], message: str, error: type[Exception]) -> None:
    settings = {
        "model": MODELS["npu nau"](None, torch.float32), "x": torch.rand(5, 2),
        "y": torch.rand(5, 3), "steps": 1, "lr": 0.1,
    }  # fmt: skip
    settings |= arguments
    with pytest.raises(error, match=f"run: {message}"):
        run(settings.pop("model"), settings.pop("x"), settings.pop("y"), **settings)


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


def test_madsen_needs_whole_weights() -> None:
    said = "^run: penalties must be none of 'madsen' and 'paper' for a model without NAU, NMU and"
    with pytest.raises(ValueError, match=said):
        run(
            RealNPU(2, 1),
            torch.rand(3, 2),
            torch.rand(3, 1),
            steps=1,
            lr=0.1,
            penalties={"madsen": 1.0},
        )


def test_an_optimizer_whose_step_needs_a_closure() -> None:
    model = MODELS["npu nau"](None, torch.float32)
    with pytest.raises(
        ValueError, match=r"^run: optimizer must make its steps without a closure, got LBFGS$"
    ):
        run(
            model, torch.rand(5, 2), torch.rand(5, 3), steps=1,
            optimizer=torch.optim.LBFGS(model.parameters()),
        )  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*makes its steps one by one:UserWarning")
def test_an_optimizer_of_some_parameters_and_of_others() -> None:
    """It needs one of the model's."""
    model, other = MODELS["npu nau"](None, torch.float32), torch.nn.Linear(2, 2)
    before = model[0].weight_re.clone()  # type: ignore[index]
    parameters = [model[1].weight, *other.parameters()]  # type: ignore[index]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    run(model, torch.rand(5, 2), torch.rand(5, 3), steps=2, optimizer=optimizer, project=False)
    assert torch.equal(model[0].weight_re, before)  # type: ignore[index]


@pytest.mark.parametrize("name", ["x", "y", "sample_weight", "rows", "a parameter of model"])
@pytest.mark.parametrize("fused", [pytest.param(True, marks=needs_library), False])
def test_a_storage_that_was_freed(name: str, fused: bool) -> None:
    model = MODELS["npu nau"](None, torch.float32)
    if not fused:
        model.append(torch.nn.Identity())  # type: ignore[operator]
    tensors = {"x": torch.rand(5, 2), "y": torch.rand(5, 3), "sample_weight": torch.rand(5, 3)}
    tensors["rows"] = torch.zeros(3, 2, dtype=torch.int64)
    tensors["a parameter of model"] = model[0].gate.detach()  # type: ignore[index]
    message = rf"run: {name} must have memory for its shape \(.*\), \d+ bytes, got a storage of {{}} bytes"
    for size in (tensors[name].nbytes - 1, 0):
        tensors[name].untyped_storage().resize_(size)
        with pytest.raises(ValueError, match=message.format(size)):
            run(
                model, tensors["x"], tensors["y"], steps=3, lr=0.1,
                sample_weight=tensors["sample_weight"], rows=tensors["rows"],
            )  # fmt: skip


def test_parts_of_storages_have_memory() -> None:
    """Views with offsets, strides and sizes 0 strided are no freed storages."""
    x, y = torch.rand(7, 3)[2:, ::2], torch.rand(3).expand(5, 3)
    model = MODELS["npu nau"](None, torch.float32)
    assert run(model, x, y, steps=1, lr=0.1, sample_weight=torch.rand(4, 5).t()[:, :3]).complete
