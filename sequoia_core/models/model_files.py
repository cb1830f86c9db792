"""Locate one model's files in a folder or on the hub, and explain errors that occur when reading them."""

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
from ..files.file_types import describe
from ..files.model_names import model_source
from ..files.safe_files import read_bytes, unique_keys

A_MODEL = "a causal language model with safetensors weights"
MAX_MESSAGE_CHARS = 300  # longer messages from libraries are truncated after a sentence


@dataclass(frozen=True, slots=True)
class Source:
    """A model's name as given by the user, and the folder or hub id that it refers to."""

    name: str
    location: str

    def find(self, file: str, *, needed: bool = False) -> Path | None:
        """Return the path of one of the model's files, downloaded if necessary; None if there is no such file."""
        path: Path | None
        path = Path(self.location, file)
        if os.path.isdir(self.location):
            path = path if path.exists() else None
        else:
            with explain_load_errors(self.name, A_MODEL):
                try:
                    if needed and not isinstance(try_to_load_from_cache(self.location, file), str):
                        # This fails at once, whereas a download retries six times.
                        get_hf_file_metadata(hf_hub_url(self.location, file))
                    path = Path(hf_hub_download(self.location, file))
                except EntryNotFoundError as error:
                    if needed and isinstance(error, LocalEntryNotFoundError):  # the hub could not be reached
                        raise
                    path = None
        if path is None and needed:
            raise ValueError(f"{self.name}: found no {file}, expected {A_MODEL}")
        return path

    def read_object(self, file: str, *, needed: bool = False) -> dict[str, Any] | None:
        """Return the object in one of the model's JSON files; None if there is no such file."""
        path = self.find(file, needed=needed)
        if path is None:
            return None
        content = read_bytes(path)
        try:
            fields = json.loads(content, object_pairs_hook=unique_keys)  # also accepts infinities
        except (ValueError, RecursionError) as error:
            file_type = describe(content)
            found = f"unreadable JSON ({one_line(error)})" if file_type in ("JSON", "text") else file_type
            raise ValueError(f"{self.name}/{file}: found {found}, expected a JSON object") from error
        if not isinstance(fields, dict):
            raise ValueError(f"{self.name}/{file}: found a JSON {type(fields).__name__}, expected a JSON object")
        return fields


def locate(model: str | os.PathLike) -> Source:
    """Return the folder or else the hub id that a name refers to."""
    name = os.fspath(model)
    found = "no such folder"
    shown = name[:200] or "''"
    location = model_source(name)
    if name and os.path.isdir(location):
        return Source(name, location)
    if os.path.isfile(location):
        found = "a file"
    elif not name.startswith((".", "~", "/")):
        with suppress(HFValidationError):
            validate_repo_id(name)
            return Source(name, name)
    raise ValueError(f"{shown}: found {found}, expected a model's folder or a hub id such as owner/name")


@contextmanager
def explain_load_errors(name: str, expected: str, found: str = "files that cannot be loaded") -> Iterator[None]:
    """Convert library errors to a one-line ValueError that names the model or file."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        text = str(error)
        if isinstance(error, ValueError) and ", expected " in text:  # our own message, which lacks only the name
            text = text.removeprefix(f"{Path(name).name}: ")
            raise ValueError(text if text.startswith(name) else f"{name}: {text}") from error
        cause = _hub_cause(name, error) or f"{found} ({one_line(error)})"
        raise ValueError(f"{name}: found {cause}, expected {expected}") from error


def _hub_cause(name: str, error: BaseException | None) -> str:
    """Explain a hub error and what to do about it; return an empty string for other errors."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    names = {cls.__name__ for link in chain for cls in type(link).__mro__}
    if "GatedRepoError" in names:
        return (
            f"a gated hub model: accept its terms on https://huggingface.co/{name}, then log in with `hf auth login` "
            "(or set HF_TOKEN)"
        )
    if "RepositoryNotFoundError" in names:
        return (
            "neither a folder nor a public hub model of this name (check it; for a private model, log in with "
            "`hf auth login`)"
        )
    if names & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "TransportError", "ConnectionError"}:
        return (
            "neither a folder nor a cached copy, and the hub cannot be reached (connect to the network and unset "
            "HF_HUB_OFFLINE, or give a local folder)"
        )
    return ""


def one_line(error: BaseException) -> str:
    """Return an error's message as one line, with its type if the message alone may be unclear."""
    if isinstance(error, StrictDataclassError) and error.__cause__ is not None:  # the cause alone names the field
        error = error.__cause__
    text = " ".join(str(error).split())
    if len(text) > MAX_MESSAGE_CHARS:
        text = text[: text.rfind(". ", 0, MAX_MESSAGE_CHARS) + 1] or f"{text[:MAX_MESSAGE_CHARS]}…"
    plain = isinstance(error, OSError | ValueError | StrictDataclassError) or text.startswith("Field ")
    return text if plain and text else f"{type(error).__name__}: {text}" if text else type(error).__name__
