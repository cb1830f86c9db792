"""The command line; bad input ends with exit code 2 and one line on stderr."""

import contextlib
import os
import sys
import warnings
from io import TextIOWrapper
from typing import NoReturn, cast

import typer
from typer.exceptions import TyperException

from ..files.faults import OUT_OF_MEMORY, is_out_of_memory, is_panic
from ..files.safe_files import visible
from ..native import notices, short_spins  # noqa: F401  before a command imports torch
from . import decode_commands, design_commands, measure_commands, server_check, server_commands, sweep_command
from .options import app

CLOSED_PIPE = 141  # 128 + SIGPIPE, which Windows does not have
MAX_FAULT = 800  # characters of a fault: what was found may be long
# importing them joins their commands to the app
COMMANDS = (design_commands, server_commands, measure_commands, decode_commands, server_check, sweep_command)


def run() -> NoReturn:
    """Run the command of this process and end it: the installed command `sequoia`."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a letter that the terminal lacks must not cost the result
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)  # one line, no source
    sys.exit(main())


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit code (0 done, 2 bad input, 130 interrupted, 141 nobody reads the output)."""
    before = notices.said()
    warnings.simplefilter("ignore", notices.Notice)  # they are printed below, in one line each
    try:
        return _run(arguments)
    finally:
        for sentence in notices.said():
            if sentence not in before:
                with contextlib.suppress(OSError, ValueError):
                    print(f"note: {sentence}", file=sys.stderr)


def _run(arguments: list[str] | None) -> int:
    try:
        result = typer.main.get_command(app)(args=arguments, prog_name="sequoia", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except TyperException as error:
        return _fail(error.format_message())
    except (ValueError, FloatingPointError) as error:
        return _fail(OUT_OF_MEMORY if is_out_of_memory(error) else str(error))
    except OSError as error:  # only stdout: faults of other files arrive as ValueError
        if is_out_of_memory(error):
            return _fail(OUT_OF_MEMORY)
        with contextlib.suppress(OSError, ValueError):  # discard further output, also the flush when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail(f"output: cannot be written ({error.strerror})")
    except SystemExit as error:  # how typer and rich answer a closed pipe; shells expect what ends other programs then
        return CLOSED_PIPE if isinstance(error.__context__, BrokenPipeError) else cast(int, error.code)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BaseException as error:  # a panic of Rust code is no Exception
        if is_panic(error):
            return _fail(f"a library broke down ({error}), expected files that it can read")
        if is_out_of_memory(error):
            return _fail(OUT_OF_MEMORY)
        raise


def _fail(message: str) -> int:
    line = visible(" ".join(message.split()))  # a file or a server may have written part of it
    if len(line) > MAX_FAULT:
        line = f"{line[: MAX_FAULT // 2]} … {line[-MAX_FAULT // 2 :]}"
    print("error: " + line, file=sys.stderr)
    return 2
