"""`is_gguf`, which is False for every name without the optional package `gguf`."""

import os

from sequoia_core.files.extras import has

if has("gguf"):
    from sequoia_extras.gguf.header import is_gguf
else:

    def is_gguf(name: str | os.PathLike) -> bool:
        return False


__all__ = ["is_gguf"]
