"""Every kind of vmap over a layer's function, and how often it reaches the operators; many
gradients at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from tests.support.compare import assert_near
from tests.support.samples import RECORDS, CountCalls, normwise_error

ROUNDING = 1e-11

Dims = tuple[int | None, ...]


def _cases(name: str) -> Iterator[tuple[Dims, Dims | None, tuple[Tensor, ...]]]:
    """The dimensions of a vmap, those of a vmap inside it, and operands: 3 inputs, 2 outputs."""
    generator = torch.Generator().manual_seed(0)
    shapes = [
        tuple({"O": 2, "I": 3, "J": 6}[letter] for letter in letters)
        for letters in RECORDS[name].shapes.values()
    ]
    n = len(shapes)
    none, all_first = (None,) * n, (0,) * n

    def draw(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1

    def weights(*lead: int, calls: int = 5, dims: Dims = none) -> tuple[Tensor, ...]:
        """All weights with these leading dimensions, and with the vmap's where it has one."""
        tensors = []
        for shape, dim in zip(shapes, dims, strict=True):
            full_shape = [*lead, *shape]
            if dim is not None:
                full_shape.insert(dim, calls)
            tensors.append(draw(*full_shape))
        return tuple(tensors)

    # rows alone, first and not first, and single rows
    yield (0, *none), None, (draw(5, 6, 3), *weights())
    yield (1, *none), None, (draw(6, 5, 3), *weights())
    yield (0, *none), None, (draw(5, 3), *weights())
    # some weights, whatever their dimension
    for dims in ((None, 2, *none[2:]), (1, *none[2:], 1), (*none[1:], 0)):
        yield (None, *dims), None, (draw(6, 3), *weights(dims=dims))
    # modules that have 4 models, with their own rows or one x for all
    yield (0, *none), None, (draw(5, 4, 6, 3), *weights(4))
    yield (0, *none), None, (draw(5, 6, 3), *weights(4))
    yield (None, *all_first), None, (draw(6, 3), *weights(4, dims=all_first))
    yield (0, *all_first), None, (draw(5, 6, 3), *weights(4, dims=all_first))
    yield (None, *all_first), None, (draw(4, 6, 3), *weights(4, dims=all_first))
    # two levels
    yield (0, *none), (None, *all_first), (draw(7, 6, 3), *weights(dims=all_first))
    dims = (0, *none[2:], 0)
    first, *_, last = weights(dims=dims)
    between = weights(calls=7, dims=all_first)[1 : n - 1]
    outer, inner = (None, 0, *none[2:], 0), (0, None, *all_first[2:], None)
    yield outer, inner, (draw(7, 6, 3), first, *between, last)


def check_one_call(name: str) -> None:
    """Every vmap is one call of the operators, forward and with the gradient inside, and right."""
    record = RECORDS[name]
    for outer, inner, tensors in _cases(name):

        def mapped(
            function: Callable[..., Any],
            outer: Dims = outer,
            inner: Dims | None = inner,
            tensors: tuple[Tensor, ...] = tensors,
        ) -> Any:
            return vmap(function if inner is None else vmap(function, inner), outer)(*tensors)

        def gradients(
            function: Callable[..., Tensor], count: int = len(tensors)
        ) -> Callable[..., Any]:
            return grad(
                lambda *operands: function(*operands).square().sum(), argnums=tuple(range(count))
            )

        transformations: tuple[Any, ...] = (lambda f: f, gradients)
        for transform in transformations:
            with CountCalls() as count:
                actual = mapped(transform(record.function))
            expected = mapped(transform(record.reference))
            gradient = isinstance(actual, tuple)
            over_weights = any(dim is not None for dim in (*outer[1:], *(inner or ())[1:]))
            assert count.calls[f"{name}_forward"] == (over_weights or not gradient)
            assert count.calls[f"{name}_backward"] == (over_weights and gradient)
            pair = (v if isinstance(v, tuple) else (v,) for v in (actual, expected))
            assert_near(*pair, bound=ROUNDING, case=(outer, inner))


def check_batched_gradients(call: Callable[..., Tensor], leaves: Sequence[Tensor]) -> None:
    """Check that batched upstream gradients (`is_grads_batched`) give what each gives alone."""
    y = call(*leaves)
    upstream = torch.randn(
        3, *y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(y)
    single = [torch.autograd.grad(y, leaves, grad_y, retain_graph=True) for grad_y in upstream]
    for create_graph in (False, True):
        batched = torch.autograd.grad(
            y, leaves, upstream, is_grads_batched=True, retain_graph=True, create_graph=create_graph
        )
        for grads, want in zip(batched, zip(*single, strict=True), strict=True):
            assert normwise_error(grads, torch.stack(want)) < ROUNDING
