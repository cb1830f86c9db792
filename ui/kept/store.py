"""The files of kept results, named by their ids, and an index with their names and times. No Streamlit.

Several processes may use the folder at the same time. Each file is written atomically, and files that the index lacks
are added to it, so a process may be killed at any time.
"""

import hashlib
import json
import logging
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sequoia_core.files.safe_files import data_folder, write_atomic

ENDINGS = {"runs": "jsonl", "vectors": "json", "profiles": "json", "plans": "json", "variants": "json"}  # by kind
DEFAULT_LIMIT = 50  # results of a kind
MAX_BYTES = 64 * 2**20  # size limit of one result
ID = re.compile(r"[0-9a-f]{12}")
BUSY_SEC = 10.0  # wait for another process that is writing to the index
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """A kept result: its kind (a key of `ENDINGS`), name, source, time in seconds since 1970, and size in bytes."""

    kind: str
    id: str
    name: str
    source: str
    time: float
    size: int

    @property
    def path(self) -> Path:
        """The result's file."""
        return path_of(self.kind, self.id)


def path_of(kind: str, id: str) -> Path:
    """Return the path of a result's file; raise ValueError if `id` is not an id, such as one in a link."""
    if not ID.fullmatch(id):
        raise ValueError(f"id: found {id[:40]!r}, expected 12 hexadecimal digits")
    return data_folder() / kind / f"{id}.{ENDINGS[kind]}"


def limit() -> int:
    """Return how many results of a kind are kept; 0 if nothing is kept."""
    try:
        return max(int(json.loads(_settings().read_bytes())["limit"]), 0)
    except (OSError, ValueError, KeyError, TypeError):
        return DEFAULT_LIMIT


def set_limit(results: int) -> None:
    """Set how many results of a kind are kept, and delete older ones; 0 only stops keeping new ones."""
    data_folder().mkdir(parents=True, exist_ok=True)
    write_atomic(_settings(), json.dumps({"limit": results}).encode())
    for kind in ENDINGS:
        _prune(kind)


def _settings() -> Path:
    return data_folder() / "settings.json"


def keep(kind: str, data: bytes, *, name: str, source: str = "", id: str | None = None) -> str:
    """Write a result, delete the oldest ones beyond the limit, and return its id.

    Args:
        id: the result's own id; None for an id derived from the content.
    """
    id = id or content_id(data)
    if limit() == 0 or len(data) > MAX_BYTES:
        return id
    try:
        path = path_of(kind, id)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
        with _index() as index:
            index.execute("REPLACE INTO results VALUES (?, ?, ?, ?, ?)", (kind, id, name, source, time.time()))
        _prune(kind)
    except (OSError, ValueError, sqlite3.Error) as error:  # such as a full disk; the session goes on without the file
        _LOG.warning("%s %s was not kept: %s", kind, id, error)
    return id


def content_id(data: bytes) -> str:
    """Return the id of a result without an id of its own."""
    return hashlib.sha256(data).hexdigest()[:12]


def entries(*kinds: str) -> list[Result]:
    """Return the kept results of some kinds, or of all, newest first."""
    try:
        with _index() as index:
            found = [entry for kind in kinds or ENDINGS for entry in _entries(index, kind)]
    except (OSError, sqlite3.Error) as error:
        _LOG.warning("kept results cannot be listed: %s", error)
        return []
    return sorted(found, key=lambda entry: entry.time, reverse=True)


def rename(kind: str, id: str, name: str) -> None:
    """Give a kept result another name."""
    with _index() as index:
        index.execute("UPDATE results SET name = ? WHERE kind = ? AND id = ?", (name, kind, id))


def delete(kind: str, id: str) -> None:
    """Delete a kept result."""
    path_of(kind, id).unlink(missing_ok=True)


def _prune(kind: str) -> None:
    """Delete the oldest results of a kind beyond the limit."""
    for old in entries(kind)[limit() :] if limit() else []:
        delete(kind, old.id)


def _entries(index: sqlite3.Connection, kind: str) -> Iterator[Result]:
    """Yield the results whose files exist, after adding files to the index that it lacks."""
    # Rows are read before files, so that a row that another process adds in between is not deleted.
    rows = {
        row[0]: row[1:] for row in index.execute("SELECT id, name, source, time FROM results WHERE kind = ?", [kind])
    }
    folder = data_folder() / kind
    sizes = {}
    for path in folder.glob(f"*.{ENDINGS[kind]}") if folder.is_dir() else ():
        try:
            status = path.stat()
        except FileNotFoundError:  # another process deleted it
            continue
        sizes[path.stem] = status.st_size
        if path.stem not in rows and ID.fullmatch(path.stem):
            rows[path.stem] = (path.name, "", status.st_mtime)
            index.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?, ?)", (kind, path.stem, *rows[path.stem]))
    for id, (name, source, when) in rows.items():
        if id in sizes:
            yield Result(kind, id, name, source, when, sizes[id])
        else:
            index.execute("DELETE FROM results WHERE kind = ? AND id = ? AND time = ?", (kind, id, when))


@contextmanager
def _index() -> Iterator[sqlite3.Connection]:
    """Open the index in one transaction; a damaged index is made again from the files."""
    data_folder().mkdir(parents=True, exist_ok=True)
    path = data_folder() / "index.sqlite"
    try:
        index = _connect(path)
    except sqlite3.OperationalError:  # it is locked for too long, or the folder is read-only
        raise
    except sqlite3.DatabaseError:
        path.unlink(missing_ok=True)
        index = _connect(path)
    with closing(index), index:
        yield index


def _connect(path: Path) -> sqlite3.Connection:
    index = sqlite3.connect(path, timeout=BUSY_SEC)
    try:
        index.execute("CREATE TABLE IF NOT EXISTS results (kind, id, name, source, time REAL, PRIMARY KEY (kind, id))")
    except sqlite3.Error:
        index.close()
        raise
    return index
