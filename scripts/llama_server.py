"""llama.cpp's server with its own command line, from the wheel xllamacpp, which brings no program `llama-server`.

    python scripts/llama_server.py -m target.gguf -md draft.gguf --spec-type draft-simple --port 8080

The flags are read by llama.cpp's own parser, so whatever passes here passes there. With --check nothing is started:
what they say of speculation is printed as JSON, or exit code 1 with a line on stderr where they are refused.
"""

import ctypes
import json
import os
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
        draft, ngram = params.speculative.draft, params.speculative.ngram_mod
        types = [each.name.removeprefix("COMMON_SPECULATIVE_TYPE_") for each in params.speculative.types]
        found = {"draft_n_max": draft.n_max, "draft_p_min": draft.p_min, "ngram_n_max": ngram.n_max}
        return print(json.dumps({"types": types, **found}))
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)  # there is nothing to save, and a request under way would be waited for


if __name__ == "__main__":
    main()
