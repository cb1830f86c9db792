"""An installation id for measurements, because machines with the same processor name differ in speed."""

import re
import uuid
from functools import cache

from ..files.safe_files import data_folder, write_atomic

ID = re.compile(rb"[0-9a-f]{32}")


@cache
def installation_id() -> str:
    """Return a random id, stored in the data folder on first use; valid only for this process if storing fails."""
    new = uuid.uuid4().hex
    try:
        path = data_folder() / "installation-id"
        if not (path.is_file() and ID.fullmatch(path.read_bytes())):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, new.encode())
        return path.read_bytes().decode()  # read back, because another process may have written it since
    except (OSError, ValueError, RuntimeError):  # RuntimeError: the user has no home folder
        return new
