"""`python -m sequoia_core COMMAND`, the same as the installed command `sequoia`: see `command_line`."""

from .command_line.main import run

if __name__ == "__main__":
    run()
