"""The shared model pair: the available pairs, and downloading, loading and unloading."""

from __future__ import annotations

import logging
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from sequoia_core.files.extras import has
from sequoia_core.files.model_names import DEMO_PAIR, NO_DRAFT
from sequoia_core.models import gemma
from sequoia_core.models.pair_spec import PairSpec
from ui.session.gguf_files import is_gguf
from ui.session.pair_loading import PairLoader, Progress

if TYPE_CHECKING:
    from sequoia_core.models.language_model import ModelPair

DEMO_DRAFTS = {  # title -> folder next to the demo target
    "Small, quick": "draft",
    "Large, right more often": "draft-large",
    "Head on the large model (EAGLE-3)": "head",
    "Head that drafts all depths at once (DFlash)": "block-head",
}
HUB_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "model.safetensors", "model-*-of-*.safetensors")
_IMPORTING = threading.Lock()
_LOG = logging.getLogger(__name__)


def demo_pairs() -> dict[str, PairSpec]:
    """Return the available demo pairs by their drafts' titles, the default pair first."""
    return {
        title: PairSpec() if folder == "draft" else PairSpec(str(DEMO_PAIR / "target"), str(DEMO_PAIR / folder))
        for title, folder in DEMO_DRAFTS.items()
        if (DEMO_PAIR / folder).is_dir() and (not folder.endswith("head") or has("draft_heads"))
    }


def gemma_pair() -> PairSpec:
    """Return Gemma in bfloat16 as the target, with its 4-bit file as the draft."""
    return PairSpec(str(gemma.folder()), str(gemma.file()))


def gemma_alone() -> PairSpec:
    """Return Gemma's 4-bit file without a draft."""
    return PairSpec(str(gemma.file()), NO_DRAFT)


def import_transformers() -> None:
    """Import transformers, which takes seconds; call this first wherever two threads may need it at the same time.

    It replaces its own module while it is imported, so that a second thread may find the incomplete one.
    """
    with _IMPORTING:
        import transformers  # noqa: F401


def is_made(spec: PairSpec) -> bool:
    """Return whether a pair's files do not have to be made at its first use."""
    offered = has("gguf") and spec in (gemma_pair(), gemma_alone())
    return not offered or (gemma.file().exists() and gemma.folder().exists())


def _fetch_pair(spec: PairSpec, progress: Progress) -> None:
    """Download or convert missing files, and reject folders with pipes, devices or broken links."""
    import_transformers()
    if spec in (gemma_pair(), gemma_alone()):
        gemma.make(progress)
    for name in map(str, spec.named):
        folder = Path(name).expanduser()
        if folder.is_dir():
            special = next((file for file in sorted(folder.iterdir()) if not (file.is_file() or file.is_dir())), None)
            if special is not None:
                raise ValueError(f"{special}: found a pipe, device or broken link, expected a model's plain files")
        elif not is_gguf(name) and not folder.is_absolute() and not name.startswith((".", "~")):
            from huggingface_hub import snapshot_download

            progress(0.0, f"Downloading {name}")
            try:
                snapshot_download(name, allow_patterns=list(HUB_FILES))
            except Exception as error:  # `load_pair` reports the cause, or finds all files in the cache
                _LOG.info("nothing downloaded for %s: %s", name, error)


def _load_pair(spec: PairSpec, progress: Progress | None = None) -> ModelPair:
    from sequoia_core.models.loading import load  # imports torch and transformers, which takes seconds

    pair = load(spec, progress=progress)
    # Close reading threads and files as soon as the pair is no longer used.
    weakref.finalize(pair, pair.target.close).atexit = False
    return pair


_LOADER: PairLoader[PairSpec, ModelPair] = PairLoader(_fetch_pair, _load_pair)


def shared_pair(spec: PairSpec, cancel: threading.Event, progress: Progress | None = None) -> ModelPair:
    """Return a model pair, loading it unless it is in memory; call from the worker thread only.

    `cancel` ends the wait with Cancelled. The load itself continues in the background and is discarded.
    """
    return _LOADER.get(spec, cancel, progress)


def loaded_pair() -> PairSpec | None:
    """Return the spec of the pair in memory; None if there is none."""
    return _LOADER.spec


def remarks(spec: PairSpec) -> tuple[str, ...]:
    """Return the remarks on a pair's files; none before it is loaded."""
    loaded = _LOADER.loaded
    return loaded[1].remarks if loaded is not None and loaded[0] == spec else ()


def unload_pair() -> None:
    """Unload the pair; a running job keeps its reference until it ends."""
    _LOADER.unload()
