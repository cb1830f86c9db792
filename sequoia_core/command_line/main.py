"""Run commands; invalid input results in one line on stderr and exit code 2."""

import contextlib
import os
import sys
import warnings
from io import TextIOWrapper
from typing import NoReturn, cast

import typer
from typer.exceptions import TyperException

from ..files import notices
from ..files.extras import provided
from ..files.faults import OUT_OF_MEMORY, is_out_of_memory, is_panic
from ..files.libraries import missing_module_message
from ..files.safe_files import visible
from ..models import short_spins  # noqa: F401  must precede the import of torch
from . import decode_commands, design_commands, measure_commands
from .options import app

BROKEN_PIPE = 141  # 128 + SIGPIPE; Windows does not define SIGPIPE
MAX_ERROR_CHARS = 800
# Importing these modules adds their commands to the app.
COMMANDS = (design_commands, measure_commands, decode_commands, *provided("commands"))


def run() -> NoReturn:
    """Run the command given by this process's arguments, and exit; the entry point of the command `sequoia`."""
    if isinstance(sys.stdout, TextIOWrapper):
        # Escape characters that the terminal cannot encode, so that the result is not lost to an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    sys.exit(main())


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return its exit code: 0 success, 2 invalid input, 130 interrupted, 141 broken pipe."""
    before = notices.notices_so_far()
    warnings.simplefilter("ignore", notices.Notice)  # Notices are printed at the end instead.
    try:
        return _run(arguments)
    finally:
        for sentence in notices.notices_so_far():
            if sentence not in before:
                with contextlib.suppress(OSError, ValueError):
                    print(f"note: {sentence}", file=sys.stderr)


def _run(arguments: list[str] | None) -> int:
    try:
        result = typer.main.get_command(app)(args=arguments, prog_name="sequoia", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except TyperException as error:
        return _fail(error.format_message())
    except ModuleNotFoundError as error:
        return _fail(missing_module_message(error, (arguments or sys.argv[1:])[0]))
    except (ValueError, FloatingPointError) as error:
        return _fail(OUT_OF_MEMORY if is_out_of_memory(error) else str(error))
    except OSError as error:  # Writing to stdout failed; errors with other files are raised as ValueError.
        if is_out_of_memory(error):
            return _fail(OUT_OF_MEMORY)
        # Discard further output, including the flush when Python exits.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail(f"output: cannot be written ({error.strerror})")
    except SystemExit as error:  # Typer and Rich exit when a pipe is closed; shells expect the SIGPIPE exit code.
        return BROKEN_PIPE if isinstance(error.__context__, BrokenPipeError) else cast(int, error.code)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BaseException as error:  # A Rust panic does not derive from Exception.
        if is_panic(error):
            return _fail(f"a library crashed ({error}), probably because it cannot read a file")
        if is_out_of_memory(error):
            return _fail(OUT_OF_MEMORY)
        raise


def _fail(message: str) -> int:
    line = visible(" ".join(message.split()))  # The message may quote a file or a server.
    if len(line) > MAX_ERROR_CHARS:
        line = f"{line[: MAX_ERROR_CHARS // 2]} … {line[-MAX_ERROR_CHARS // 2 :]}"
    print("error: " + line, file=sys.stderr)
    return 2
