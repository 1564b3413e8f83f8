"""The samples and errors of every layer's function, which certification and benchmarks share."""

from npu_kernels._testing import samples

LAYOUTS = samples.LAYOUTS
RECORDS = samples.RECORDS
CountCalls = samples.CountCalls
OperatorRecord = samples.OperatorRecord
Sample = samples.Sample
error_bound = samples.error_bound
fill_uninitialized_with_nan = samples.fill_uninitialized_with_nan
normwise_error = samples.normwise_error
rms_error = samples.rms_error
with_layout = samples.with_layout
