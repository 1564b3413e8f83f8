"""The samples and errors of every layer's function, which certification and benchmarks share."""

from npu_kernels._testing.samples import LAYOUTS as LAYOUTS
from npu_kernels._testing.samples import RECORDS as RECORDS
from npu_kernels._testing.samples import CountCalls as CountCalls
from npu_kernels._testing.samples import OperatorRecord as OperatorRecord
from npu_kernels._testing.samples import Sample as Sample
from npu_kernels._testing.samples import error_bound as error_bound
from npu_kernels._testing.samples import fill_uninitialized_with_nan as fill_uninitialized_with_nan
from npu_kernels._testing.samples import normwise_error as normwise_error
from npu_kernels._testing.samples import rms_error as rms_error
from npu_kernels._testing.samples import with_layout as with_layout
