"""`python -m sequoia_core COMMAND`: see `command_line`."""

import sys

from .command_line.main import main

if __name__ == "__main__":
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")  # a letter that the terminal lacks must not cost the result
    sys.exit(main())
