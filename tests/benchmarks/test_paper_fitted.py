"""The paper's arithmetic tasks with `npu_kernels.fit`."""

import torch

from benchmarks.paper.fitted import task as fitted
from benchmarks.paper.simple import task as simple


def test_rows_come_from_the_training_range() -> None:
    x, y = fitted.data("simple", "all", 3)
    assert x.shape == (1000, 2)
    assert x.min() >= 0.1
    assert 2.0 < x.max() <= 2.1
    torch.testing.assert_close(y, simple.targets(x))
    assert not torch.equal(x, fitted.data("simple", "all", 4)[0])
    x, y = fitted.data("large", "div", 3)
    assert x.shape == (4096, 100)
    assert x.min() >= 0
    assert x.max() < 0.5
    torch.testing.assert_close(y[:, 0], 1 / x[:, :50].sum(1))
