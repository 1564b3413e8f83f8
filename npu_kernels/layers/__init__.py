"""Modules of the layers, a file for each family; ``__all__`` of a file has its own."""

from typing import TYPE_CHECKING

from npu_kernels.layers import _nalu, _nau, _nmu, _npu
from npu_kernels.layers._base import BaseLayer as BaseLayer
from npu_kernels.layers._nalu import *  # noqa: F403
from npu_kernels.layers._nau import *  # noqa: F403
from npu_kernels.layers._nmu import *  # noqa: F403
from npu_kernels.layers._npu import *  # noqa: F403
from npu_kernels.layers._npu import PowerLayer as PowerLayer

if not TYPE_CHECKING:  # type checkers know the names by the imports
    __all__ = [*_nalu.__all__, *_nau.__all__, *_nmu.__all__, *_npu.__all__]
