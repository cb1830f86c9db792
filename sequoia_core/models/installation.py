"""Which installation this is: measurements record it, because machines with the same processor name differ in speed."""

import re
import uuid
from functools import cache

from ..files.safe_files import write_atomic
from ..native.compile_c import cache_folder

ID = re.compile(rb"[0-9a-f]{32}")


@cache
def installation_id() -> str:
    """Return a random id, made at first use and kept in the cache folder; for this process only if that is unusable."""
    new = uuid.uuid4().hex
    try:
        path = cache_folder() / "installation-id"
        if not (path.is_file() and ID.fullmatch(path.read_bytes())):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, new.encode())
        return path.read_bytes().decode()  # read again: of two processes that begin at once, the last one's stays
    except (OSError, ValueError, RuntimeError):  # RuntimeError: a user without a home folder
        return new
