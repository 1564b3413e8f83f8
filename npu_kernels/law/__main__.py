"""``python -m npu_kernels.law``."""

import sys

from npu_kernels.law import main

if __name__ == "__main__":
    sys.exit(main())
