"""Every operator has a record, and every record has all rules."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import flop_counter

from npu_kernels import functional, reference
from npu_kernels._backends import fast_path, triton
from npu_kernels._operators import autograd, ops, transforms
from npu_kernels._testing.samples import RECORDS
from tests.conftest import needs_library

NAMESPACE = "npu_kernels::"


def _registered(names: tuple[str, str], key: str) -> bool:
    return all(
        torch._C._dispatch_has_kernel_for_dispatch_key(NAMESPACE + name, key) for name in names
    )


def _has_sharding(names: tuple[str, str]) -> bool:
    tensor = pytest.importorskip("torch.distributed.tensor")
    import npu_kernels.sharding  # noqa: F401

    rules = tensor.DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
    return all(getattr(ops, name) in rules for name in names)


def _has_flops(layer: str, names: tuple[str, str]) -> bool:
    import npu_kernels.interop.flops  # noqa: F401

    packets = [getattr(torch.ops.npu_kernels, name) for name in names]
    return bool(ops.LAYERS[layer].products) and all(map(flop_counter.flop_registry.get, packets))


def _has_triton(names: tuple[str, str]) -> bool:
    pytest.importorskip("triton")
    return all(hasattr(triton, name) for name in names)


# Rule -> whether the two operators have it.
RULES: dict[str, Callable[[str, tuple[str, str]], bool]] = {
    "shape function": lambda layer, names: _registered(names, "Meta"),
    "formula": lambda layer, names: all(hasattr(reference, name) for name in names),
    "autograd": lambda layer, names: layer in autograd.FUNCTIONS and layer in autograd.GRADIENTS,
    "vmap": lambda layer, names: layer in transforms.FUNCTIONS,
    "sharding": lambda layer, names: _has_sharding(names),
    "flops": _has_flops,
    "cpu": lambda layer, names: _registered(names, "CPU"),
    "triton": lambda layer, names: _has_triton(names),
    "fast path": lambda layer, names: getattr(fast_path, layer, None) is not None,
    "function": lambda layer, names: hasattr(functional, layer),
    "samples": lambda layer, names: layer in RECORDS,
}


def missing(layer: str) -> set[str]:
    """The rules that the layer's operators lack."""
    names = f"{layer}_forward", f"{layer}_backward"
    return {rule for rule, has in RULES.items() if not has(layer, names)}


@needs_library
@pytest.mark.skipif(
    fast_path.npu is None, reason="the fast path is not built for this torch and Python"
)
@pytest.mark.parametrize("layer", ops.LAYERS)
def test_every_rule_is_there(layer: str) -> None:
    assert not missing(layer)


def test_every_operator_has_a_record() -> None:
    registered = {
        name for name in torch._C._dispatch_get_all_op_names() if name.startswith(NAMESPACE)
    }
    assert registered == {
        NAMESPACE + name
        for name in (*ops.NAMES, *ops.TIME_LOOPS, *ops.ADAPTIVE, ops.SECOND, ops.TRAIN)
    }
    assert set(ops.NAMES) == {
        f"{layer}_{direction}" for layer in ops.LAYERS for direction in ("forward", "backward")
    }
    assert set(RECORDS) == set(ops.WEIGHTS)


@contextlib.contextmanager
def _without(rule: str, layer: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The layer without one of its rules."""
    tables: dict[str, tuple[Any, str]] = {
        "autograd": (autograd.FUNCTIONS, layer),
        "vmap": (transforms.FUNCTIONS, layer),
        "samples": (RECORDS, layer),
        "flops": (
            flop_counter.flop_registry,
            getattr(torch.ops.npu_kernels, f"{layer}_backward"),
        ),
    }
    attributes: dict[str, tuple[Any, str]] = {
        "formula": (reference, f"{layer}_backward"),
        "fast path": (fast_path, layer),
        "function": (functional, layer),
    }
    with monkeypatch.context() as patch:
        if rule in tables:
            patch.delitem(*tables[rule])
        elif rule in attributes:
            patch.delattr(*attributes[rule])
        else:
            tensor = pytest.importorskip("torch.distributed.tensor")
            import npu_kernels.sharding  # noqa: F401

            rules = tensor.DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
            patch.delitem(rules, getattr(ops, f"{layer}_backward"))
        yield


@needs_library
@pytest.mark.skipif(
    fast_path.npu is None, reason="the fast path is not built for this torch and Python"
)
@pytest.mark.parametrize(
    "rule", ["autograd", "vmap", "samples", "formula", "fast path", "function", "sharding", "flops"]
)
def test_a_missing_rule_is_found(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with _without(rule, "inalu", monkeypatch):
        assert missing("inalu") == {rule}
    assert missing("inalu") == set()


def test_the_time_loops_say_what_they_lack() -> None:
    names = "ode_forward", "ode_backward"
    lacking = {
        rule for rule in ("shape function", "vmap", "sharding") if not RULES[rule]("ode", names)
    }
    assert lacking == set(ops.TIME_LOOP_WITHOUT)


def test_schemas_of_a_record() -> None:
    """Rules for a layer that is not there yet: a name, a shape and an option each."""
    layer = ops.Layer(
        "sum", {"weight": "OI", "bias": "O"}, optional=("bias",), options={"eps": "float"}
    )
    forward, backward = layer.schemas()
    assert forward == "sum_forward(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor"
    assert backward == (
        "sum_backward(Tensor grad_y, Tensor x, Tensor weight, Tensor? bias, float eps, int needs)"
        " -> (Tensor, Tensor, Tensor)"
    )
    record = dataclasses.replace(
        layer, kept={"h": None}, takes_y=True, backward_options={"hard": "bool"}
    )
    assert record.schemas()[0].endswith("float eps, bool save) -> (Tensor, Tensor)")
    assert (
        "Tensor? bias, Tensor y, Tensor h, float eps, bool hard, int needs)" in record.schemas()[1]
    )
