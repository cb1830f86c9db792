"""The one model pair in memory: which one is asked for, downloading and loading it, letting go of it."""

from __future__ import annotations

import logging
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from sequoia_core.files.gguf_header import is_gguf, read_gguf_header
from sequoia_core.files.model_names import DEMO_PAIR, NO_DRAFT, model_folder
from sequoia_core.models import gemma
from sequoia_core.models.chat import has_chat_template
from sequoia_core.models.pair_spec import PairSpec
from ui.session.pair_loading import PairKeeper, Progress

if TYPE_CHECKING:
    from sequoia_core.models.language_model import ModelPair

DEMO_DRAFTS = {  # folders beside the demo target
    "Small, quick": "draft",
    "Large, right more often": "draft-large",
    "Head on the large model (EAGLE-3)": "head",
}
HUB_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "model.safetensors", "model-*-of-*.safetensors")
_LOG = logging.getLogger(__name__)


def demo_drafts() -> list[str]:
    """Return the titles of the demo drafts that are there."""
    return [title for title, folder in DEMO_DRAFTS.items() if (DEMO_PAIR / folder).is_dir()]


def demo_draft(spec: PairSpec) -> str:
    """Return which of `DEMO_DRAFTS` a pair has; the first for a pair of the user's own."""
    folder = spec.names[1].removeprefix("demo ")
    return next((title for title, name in DEMO_DRAFTS.items() if name == folder), next(iter(DEMO_DRAFTS)))


def demo_models(draft: str) -> tuple[str | None, str | None]:
    """Return target and draft of the demo pair with one of `DEMO_DRAFTS`; None twice for the one `load_pair` takes."""
    folder = DEMO_DRAFTS[draft]
    return (None, None) if folder == "draft" else (str(DEMO_PAIR / "target"), str(DEMO_PAIR / folder))


def gemma_pair() -> PairSpec:
    """Return the real model as a target in bfloat16, drafted by its own 4-bit file."""
    return PairSpec(str(gemma.folder()), str(gemma.file()))


def gemma_alone() -> PairSpec:
    """Return the real model's 4-bit file without a draft."""
    return PairSpec(str(gemma.file()), NO_DRAFT)


def _fetch_pair(spec: PairSpec) -> None:
    """Download or make what is not here yet, the part of a load that may hang; refuse folders that would block."""
    if spec in (gemma_pair(), gemma_alone()):
        gemma.make()
    for name in map(str, spec.named):
        folder = Path(name).expanduser()
        if folder.is_dir():
            strange = next((file for file in sorted(folder.iterdir()) if not (file.is_file() or file.is_dir())), None)
            if strange is not None:
                raise ValueError(f"{strange}: found a pipe, device or broken link, expected a model's plain files")
        elif not is_gguf(name) and not folder.is_absolute() and not name.startswith((".", "~")):
            from huggingface_hub import snapshot_download

            try:
                snapshot_download(name, allow_patterns=list(HUB_FILES))
            except Exception as error:  # whatever is wrong, `load_pair` says it better, or finds all of it cached
                _LOG.info("nothing downloaded for %s: %s", name, error)


def _load_pair(spec: PairSpec, progress: Progress | None = None) -> ModelPair:
    from sequoia_core.models.loading import load  # heavy: torch and transformers

    pair = load(spec, progress=progress)
    # when nobody uses the pair any more, its reading threads and open files go at once
    weakref.finalize(pair, pair.target.close).atexit = False
    return pair


_PAIRS: PairKeeper[PairSpec, ModelPair] = PairKeeper(_fetch_pair, _load_pair)


def shared_pair(spec: PairSpec, cancel: threading.Event, progress: Progress | None = None) -> ModelPair:
    """Load a model pair once and keep it until another is asked for; call from the worker only.

    `cancel` ends the wait with Cancelled, not the load, which goes on by itself and is dropped.
    """
    return _PAIRS.get(spec, cancel, progress)


def loaded_pair() -> PairSpec | None:
    """Return which pair is in memory; None when none is."""
    return _PAIRS.held


def has_chat(spec: PairSpec) -> bool:
    """Whether the target has a chat template, as far as its files are on this machine."""
    name = spec.sources[0]
    if is_gguf(name):
        return "tokenizer.chat_template" in read_gguf_header(name).fields
    folder = model_folder(name)
    return folder is not None and has_chat_template(folder)


def remarks(spec: PairSpec) -> tuple[str, ...]:
    """Return what a reader should know of a pair's files; nothing before it is loaded."""
    pair = _PAIRS.pair if _PAIRS.held == spec else None
    return () if pair is None else pair.remarks


def unload_pair() -> None:
    """Let go of the loaded pair; a running job keeps its own hold until it ends, and then what streams is closed."""
    _PAIRS.drop()
