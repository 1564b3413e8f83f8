"""``python -m tools.certify``."""

import sys

from tools.certify.command import main

if __name__ == "__main__":  # child processes import this file too
    sys.exit(main())
