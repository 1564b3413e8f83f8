"""Neural Power Unit, a layer: the modules, one file per family."""

from npu_kernels.layers.base import Unit
from npu_kernels.layers.nalu import NAC, NALU, iNALU
from npu_kernels.layers.nau import NAU
from npu_kernels.layers.nmu import NMU
from npu_kernels.layers.npu import NPU, NaiveNPU, RealNPU

__all__ = ["NAC", "NALU", "NAU", "NMU", "NPU", "NaiveNPU", "RealNPU", "Unit", "iNALU"]
