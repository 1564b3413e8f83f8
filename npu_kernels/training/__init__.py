"""Training of models with these layers, step by step or many steps in one call.

`run` makes all steps of a training. On the CPU a Sequential of NPU, RealNPU, NaiveNPU, NAU, NMU and
NMRU layers makes them in a few calls of C++, on a GPU by replays of a CUDA graph:

    >>> import torch
    >>> from npu_kernels import NAU, NPU
    >>> from npu_kernels.training import SteppedSchedule, run
    >>> model, x = torch.nn.Sequential(NPU(2, 6), NAU(6, 1)), torch.rand(100, 2) + 0.1
    >>> sparse = {"l1": SteppedSchedule(1e-5, 1e-3, step=100)}
    >>> result = run(model, x, x.prod(1, keepdim=True), steps=200, lr=1e-2, penalties=sparse)
    >>> result.losses.shape
    torch.Size([200])

`make_step` returns a function that makes one step per call, for a loop of your own. The parts of a
step are also available as functions:

    >>> from npu_kernels.optim import Adam
    >>> from npu_kernels.training import l1, mse_loss, project_
    >>> optimizer = Adam(model.parameters(), 1e-2)
    >>> schedule = SteppedSchedule(1e-5, 1e-3, step=10_000)
    >>> for _ in range(10):
    ...     optimizer.zero_grad()
    ...     loss = mse_loss(model(x), x.prod(1, keepdim=True)) + l1(model, schedule.step())
    ...     loss.backward()
    ...     optimizer.step()
    ...     project_(model)  # keeps the gates in [0, 1]

The penalties give one number, or one per model (``[K]``) where the layers have `num_models`: a
model's loss then is its own data term plus its own penalty, and the sum over the models trains each
as if it were alone.
"""

from npu_kernels.training._penalties import SteppedSchedule, l1, mse_loss, project_, regularizer
from npu_kernels.training._run import TrainingResult, run
from npu_kernels.training._step import Step, make_step

__all__ = [
    "Step", "SteppedSchedule", "TrainingResult", "l1", "make_step", "mse_loss", "project_",
    "regularizer", "run",
]  # fmt: skip
