"""Neural Power Unit, a layer: the modules, one file per family; each file names its own in ``__all__``."""

from typing import TYPE_CHECKING

from npu_kernels.layers import nalu, nau, nmu, npu
from npu_kernels.layers.base import Unit as Unit
from npu_kernels.layers.nalu import *  # noqa: F403
from npu_kernels.layers.nau import *  # noqa: F403
from npu_kernels.layers.nmu import *  # noqa: F403
from npu_kernels.layers.npu import *  # noqa: F403

if not TYPE_CHECKING:  # type checkers know the names by the imports
    __all__ = [*nalu.__all__, *nau.__all__, *nmu.__all__, *npu.__all__]
