"""Adam for small models, in one call.

A model of two layers of this package has a handful of parameters of a dozen numbers each, and
torch's optimizer spends most of a training step on its own bookkeeping.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from npu_kernels._common import checks
from npu_kernels._operators import dispatch, fast_path
from npu_kernels.optim import lbfgs as lbfgs

__all__ = ["Adam"]

_TorchAdam = torch.optim.Adam  # torch's name may be made to mean the class below


class Adam(_TorchAdam):
    """`torch.optim.Adam` with a step that is one C++ call on the CPU.

    Arguments, state and results are torch's, and each class loads the ``state_dict`` of the other.
    torch's own step is used for the first step of a parameter, and for other devices and dtypes,
    amsgrad, capturable, differentiable, tensors as learning rate or beta, closures, hooks, gradient
    scalers and running profilers.

    Source: Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.

        >>> import torch
        >>> from npu_kernels.optim import Adam
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = Adam(model.parameters(), lr=1e-2)
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, without importing torch's compiler."""
        checks.plain_method(super().add_param_group)(param_group)

    def _plain(self) -> bool:
        return (
            not is_compiling()
            and dispatch.forced() in dispatch.FAST_PATH
            and not self._optimizer_step_pre_hooks
            and not self._optimizer_step_post_hooks
            and not _global_optimizer_pre_hooks
            and not _global_optimizer_post_hooks
            and getattr(self, "grad_scale", None) is None
            and getattr(self, "found_inf", None) is None
            and not torch.autograd.profiler._is_profiler_enabled
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change the parameters by their gradients; returns the closure's loss, if there is one."""
        if (
            closure is None
            and fast_path.adam is not None
            and self._plain()
            and fast_path.adam(self.param_groups, self.state) is not NotImplemented
        ):
            return None
        if not getattr(super().step, "hooked", False):
            _TorchAdam([torch.empty(0)])  # a class's first instance gives its step torch's hooks
        return super().step(closure)

    # Hooks would take most of a small step; the fast path needs none, and torch's step has its own.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        if not set_to_none:
            super().zero_grad(set_to_none=False)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
