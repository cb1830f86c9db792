"""Run llama.cpp's server with its usual command line; the xllamacpp wheel does not include `llama-server`.

    python scripts/llama_server.py -m target.gguf -md draft.gguf --spec-type draft-simple --port 8080

llama.cpp's own parser reads the flags, so flags accepted here are accepted by `llama-server`. With --check, the server
is not started; the speculation settings are printed as JSON, or the exit code is 1, after an error line on stderr, if
the flags are invalid.
"""

import ctypes
import json
import os
import signal
import sys

import xllamacpp

PARSER = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
SERVER = 12  # value of llama.cpp's enum llama_example, which selects the flags
PARAMS_AT = 16  # offset of the C++ struct in the Python object


def parse(flags: list[str]) -> xllamacpp.CommonParams | None:
    """Parse the server's flags with llama.cpp; return None, after an error line on stderr, if they are invalid."""
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
    os._exit(0)  # A normal exit would wait for running requests.


if __name__ == "__main__":
    main()
