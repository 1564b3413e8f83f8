"""A call with its tensors, and what every route of computing it must keep."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from npu_kernels import use_backend
from tests.fuzz.memory import bits
from tests.support import machine
from tests.support.samples import fill_uninitialized_with_nan

ISAS: tuple[str | None, ...] = tuple(machine.ISAS) or (None,)
Tensors = dict[str, Tensor]
Change = Callable[[Tensor], Tensor]
# the results, "y0", "y1", and the gradients, by the names of their tensors
Outcome = dict[str, Tensor]


@dataclass
class Problem:
    """A call, its tensors, upstream gradients of its results, and the memory under them all.

    exact, eager: the same in eager torch, of contiguous tensors: what is right in float64; the
        formula whose errors, inf and nan in the call's own dtype a kernel may have.
    dtype: what is computed in.
    needs: the names of the tensors that require a gradient.
    overflows: whether products of parts of a result overflow, in an order that a kernel may choose.
    inexact: `exact`, with intermediate results or gradients changed too, where rounding errors of them remain
        and they cancel.
    trajectories: whether the results are states [..., steps + 1, D], and their derivatives.
    same_bits: whether the number of threads may not change a bit (torch's own matrix products do
        not promise it).
    """

    function: Callable[[Tensors], tuple[Tensor, ...]]
    exact: Callable[[Tensors], tuple[Tensor, ...]]
    eager: Callable[[Tensors], tuple[Tensor, ...]]
    tensors: Tensors
    upstream: list[Tensor]
    storages: list[Tensor]
    needs: tuple[str, ...]
    dtype: torch.dtype
    same_bits: bool = True
    route: str = "fast"
    isa: str | None = None
    threads: int = 1
    overflows: bool = False
    inexact: Callable[[Tensors, Change], tuple[Tensor, ...]] | None = None
    trajectories: bool = False


@contextlib.contextmanager
def computed_by(route: str, isa: str | None = None, threads: int = 1) -> Iterator[None]:
    """route: "fast" (from Python straight to C++), "operators" (the same kernels, registered), or a
    backend's name."""
    before_isa, before_threads = machine.isa_in_use() if isa else None, torch.get_num_threads()
    route_used = contextlib.nullcontext() if route == "fast" else machine.without_fast_path()
    try:
        if isa:
            machine.set_isa(isa)
        torch.set_num_threads(threads)
        with route_used, use_backend("cpu" if route in ("fast", "operators") else route):
            yield
    finally:
        if before_isa:
            machine.set_isa(before_isa)
        torch.set_num_threads(before_threads)


def forward(problem: Problem) -> tuple[Tensors, tuple[Tensor, ...]]:
    """Fresh leaves over the same memory, and the results."""
    leaves = {
        name: t.detach().requires_grad_(name in problem.needs)
        for name, t in problem.tensors.items()
    }
    return leaves, problem.function(leaves)


def gradients(
    problem: Problem, leaves: Tensors, results: tuple[Tensor, ...], upstream: list[Tensor]
) -> Outcome:
    outcome = {f"y{n}": y.detach() for n, y in enumerate(results)}
    inputs = {name: leaves[name] for name in problem.needs}
    if inputs:
        outcome |= zip(
            inputs, torch.autograd.grad(results, list(inputs.values()), upstream), strict=True
        )
    return outcome


def backward(problem: Problem, leaves: Tensors, results: tuple[Tensor, ...]) -> Outcome:
    assert all(y.requires_grad == bool(problem.needs) for y in results)
    grads = gradients(problem, leaves, results, problem.upstream)
    for name, leaf in leaves.items():
        if name in grads:
            assert (grads[name].shape, grads[name].dtype) == (leaf.shape, leaf.dtype)
    return grads


def same_bits(actual: Outcome, expected: Outcome) -> bool:
    return all(torch.equal(bits(t), bits(expected[name])) for name, t in actual.items())


def run(problem: Problem) -> Outcome:
    """The outcome, and what must hold beside its values.

    With more threads (another number forward than backward), in memory filled with nan, and without
    gradients: the same bits. Inputs, upstream gradients, and what lies beside them in memory:
    unchanged.
    """
    route, isa, threads = problem.route, problem.isa, problem.threads
    before = [bits(storage).clone() for storage in problem.storages]
    with computed_by(route, isa, threads), fill_uninitialized_with_nan():
        half = forward(problem)
    with computed_by(route, isa, 1 if threads == 1 else 5 - threads), fill_uninitialized_with_nan():
        actual = backward(problem, *half)
    if route != "triton":  # where the interpreter takes long
        with computed_by(route, isa):
            expected = backward(problem, *forward(problem))
            with torch.no_grad():
                without_grad = {f"y{n}": y for n, y in enumerate(problem.function(problem.tensors))}
        if problem.same_bits:
            assert same_bits(actual, expected), "other bits with other threads or in other memory"
            assert same_bits(without_grad, expected), "other bits without gradients"
    for storage, stored in zip(problem.storages, before, strict=True):
        assert torch.equal(bits(storage), stored), "a tensor of the caller's has changed"
    return actual
