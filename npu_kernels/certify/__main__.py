"""``python -m npu_kernels.certify``."""

import sys

from npu_kernels.certify import main

if __name__ == "__main__":  # children that start anew import this file too
    sys.exit(main())
