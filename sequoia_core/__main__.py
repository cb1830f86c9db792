"""`python -m sequoia_core COMMAND`, equivalent to the installed command `sequoia`."""

from .command_line.main import run

if __name__ == "__main__":
    run()
