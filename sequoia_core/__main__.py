"""`python -m sequoia_core COMMAND`: see `cli`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
