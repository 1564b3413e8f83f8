"""Neural Power Unit, a layer: the modules, one file per family; each file names its own in ``__all__``."""

from typing import TYPE_CHECKING

from npu_kernels.layers import _nalu as nalu
from npu_kernels.layers import _nau as nau
from npu_kernels.layers import _nmu as nmu
from npu_kernels.layers import _npu as npu
from npu_kernels.layers._base import Unit as Unit
from npu_kernels.layers._nalu import *  # noqa: F403
from npu_kernels.layers._nau import *  # noqa: F403
from npu_kernels.layers._nmu import *  # noqa: F403
from npu_kernels.layers._npu import *  # noqa: F403
from npu_kernels.layers._npu import PowerUnit as PowerUnit

if not TYPE_CHECKING:  # type checkers know the names by the imports
    __all__ = [*nalu.__all__, *nau.__all__, *nmu.__all__, *npu.__all__]
