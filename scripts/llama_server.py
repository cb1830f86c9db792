"""llama.cpp's server with its own command line, from the wheel xllamacpp, which brings no program `llama-server`.

    python scripts/llama_server.py -m target.gguf -md draft.gguf --spec-type draft-simple --port 8080

The flags are read by llama.cpp's own parser, so whatever passes here passes there. With --check they are read and
nothing is started: exit code 0 where they hold, 1 with a line on stderr where they do not.
"""

from __future__ import annotations

import ctypes
import signal
import sys

import xllamacpp

PARSER = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
SERVER = 12  # of llama.cpp's enum llama_example: which flags there are
PARAMS_AT = 16  # of Python's object: the C++ struct behind its header


def parse(flags: list[str]) -> xllamacpp.CommonParams | None:
    """Return what llama.cpp reads from the flags of its server; None, with a line on stderr, where they are wrong."""
    params = xllamacpp.CommonParams()
    arguments = [b"llama-server", *(flag.encode() for flag in flags)]
    read = getattr(ctypes.CDLL(xllamacpp.xllamacpp.__file__), PARSER)
    read.restype = ctypes.c_bool
    words = (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None)
    held = read(len(arguments), words, ctypes.c_void_p(id(params) + PARAMS_AT), SERVER, None)
    return params if held else None


def main() -> None:
    flags = [flag for flag in sys.argv[1:] if flag != "--check"]
    params = parse(flags)
    if params is None:
        sys.exit(1)
    if "--check" in sys.argv:
        return
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
