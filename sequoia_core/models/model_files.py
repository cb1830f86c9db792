"""Where one model's files are, in a folder or on the hub, and the meaning of faults in reading them."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError, StrictDataclassError
from huggingface_hub.utils import validate_repo_id

from ..files.faults import is_panic
from ..files.file_kinds import describe
from ..files.model_names import model_source
from ..files.safe_files import read_bytes, unique_keys

A_MODEL = "a causal language model with safetensors weights"
LONGEST = 300  # characters of a library's message; a longer one ends after a whole sentence


@dataclass(frozen=True, slots=True)
class Source:
    """A model as the user named it, and the folder or hub id that the name means."""

    name: str
    place: str

    def find(self, file: str, *, needed: bool = False) -> Path | None:
        """Return the path of one file of the model, downloaded if it is on the hub; None where the model has none."""
        path: Path | None
        path = Path(self.place, file)
        if os.path.isdir(self.place):
            path = path if path.exists() else None
        else:
            with explained(self.name, A_MODEL):
                try:
                    if needed and not isinstance(try_to_load_from_cache(self.place, file), str):
                        get_hf_file_metadata(hf_hub_url(self.place, file))  # fails at once; a download tries six times
                    path = Path(hf_hub_download(self.place, file))
                except EntryNotFoundError as error:
                    if needed and isinstance(error, LocalEntryNotFoundError):  # the hub could not be reached
                        raise
                    path = None
        if path is None and needed:
            raise ValueError(f"{self.name}: found no {file}, expected {A_MODEL}")
        return path

    def read_object(self, file: str, *, needed: bool = False) -> dict[str, Any] | None:
        """Return the content of a JSON file, an object; None as for `find`."""
        path = self.find(file, needed=needed)
        if path is None:
            return None
        content = read_bytes(path)
        try:
            fields = json.loads(content, object_pairs_hook=unique_keys)  # some have infinities
        except (ValueError, RecursionError) as error:
            kind = describe(content)
            found = f"no readable JSON ({one_line(error)})" if kind in ("JSON", "text") else kind
            raise ValueError(f"{self.name}/{file}: found {found}, expected a JSON object") from error
        if not isinstance(fields, dict):
            raise ValueError(f"{self.name}/{file}: found a JSON {type(fields).__name__}, expected a JSON object")
        return fields


def locate(model: str | os.PathLike) -> Source:
    """Return the folder that a name means, or else the hub id."""
    name, found = os.fspath(model), "no such folder"
    shown = name[:200] or "''"
    place = model_source(name)
    if name and os.path.isdir(place):
        return Source(name, place)
    if os.path.isfile(place):
        found = "a file"
    elif not name.startswith((".", "~", "/")):
        with suppress(HFValidationError):
            validate_repo_id(name)
            return Source(name, name)
    raise ValueError(f"{shown}: found {found}, expected a model's folder or a hub id such as owner/name")


class Explained(ValueError):
    """A fault whose message is complete, so that `explained` does not change it."""


@contextmanager
def explained(name: str, expected: str, found: str = "what does not load") -> Iterator[None]:
    """Turn errors that a damaged folder causes inside a library into one line that names the model or file."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Explained) or (not isinstance(error, Exception) and not is_panic(error)):
            raise
        text = str(error)
        if (
            isinstance(error, ValueError) and ", expected " in text
        ):  # one of our own, which is complete but for the name
            text = text.removeprefix(f"{Path(name).name}: ")
            raise ValueError(text if text.startswith(name) else f"{name}: {text}") from error
        cause = _hub_cause(name, error) or f"{found} ({one_line(error)})"
        raise ValueError(f"{name}: found {cause}, expected {expected}") from error


def _hub_cause(name: str, error: BaseException | None) -> str:
    """Return what an error of the hub means and what to do about it, or nothing for other errors."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    kinds = {kind.__name__ for link in chain for kind in type(link).__mro__}
    if "GatedRepoError" in kinds:
        return (
            f"a gated hub model: accept its terms on https://huggingface.co/{name}, then log in with `hf auth login` "
            "(or set HF_TOKEN)"
        )
    if "RepositoryNotFoundError" in kinds:
        return "no such folder and no such public hub model (check the name; for a private one log in: `hf auth login`)"
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "TransportError", "ConnectionError"}:
        return (
            "no such folder and no copy in the cache, and the hub cannot be reached (connect to the network and unset "
            "HF_HUB_OFFLINE, or give a local folder)"
        )
    return ""


def one_line(error: BaseException) -> str:
    """Return an error's message in one line, with its type where the message alone may be unclear."""
    if isinstance(error, StrictDataclassError) and error.__cause__ is not None:  # the cause alone names the field
        error = error.__cause__
    text = " ".join(str(error).split())
    if len(text) > LONGEST:
        text = text[: text.rfind(". ", 0, LONGEST) + 1] or f"{text[:LONGEST]}…"
    plain = isinstance(error, OSError | ValueError | StrictDataclassError) or text.startswith("Field ")
    return text if plain and text else f"{type(error).__name__}: {text}" if text else type(error).__name__
