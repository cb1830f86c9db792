"""Checks of a pair before its weights are read: files, vocabulary, memory, and whether speculation can pay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import streamlit as st

from sequoia_core.files.extras import has
from sequoia_core.files.model_names import model_folder, model_name
from sequoia_core.models import gemma
from sequoia_core.models.pair_spec import PairSpec
from ui.markdown import escaped
from ui.phrases import times
from ui.session import machine, model_pairs
from ui.session.gguf_files import is_gguf
from ui.session.state import state

if TYPE_CHECKING:
    from sequoia_core.models.loading import PairFiles

OK, LATER, WARNING, ERROR = "ok", "later", "warning", "error"
ICONS = {
    OK: ":green[:material/check:]",
    LATER: ":gray[:material/schedule:]",
    WARNING: ":orange[:material/warning:]",
    ERROR: ":red[:material/error:]",
}
LARGE_DRAFT = 0.5  # share of the target's size from which a draft is unlikely to pay
SPARE_SHARE = 0.9  # share of the free memory that models may take without a warning


class Check(NamedTuple):
    """The outcome of one check: a key of `ICONS`, and one sentence that says what to do if it is not `OK`."""

    outcome: str
    words: str


SAME_FILE = Check(OK, "Same vocabulary: both are made from one file.")


class PairChecks(NamedTuple):
    """The outcomes for one pair.

    Attributes:
        target_bytes: size of the target's weights; 0 if unknown.
        too_large: whether the models may not fit into memory.
    """

    checks: tuple[Check, ...]
    target_bytes: int = 0
    too_large: bool = False

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.outcome != ERROR for check in self.checks)


def check_pair(spec: PairSpec) -> PairChecks:
    """Return the checks of a pair, which take a few seconds the first time."""
    if not model_pairs.is_made(spec):
        made = Check(LATER, f"{gemma.TITLE}'s files will be made at the first use, in about a minute.")
        return PairChecks((made,) if spec.is_alone else (made, SAME_FILE))
    missing = [str(name) for name in spec.named if not is_gguf(name) and model_folder(name) is None]
    missing = [name for name in missing if not Path(name).expanduser().is_absolute() and not name.startswith(".")]
    if missing:
        return PairChecks((Check(LATER, f"{', '.join(missing)}: downloaded and checked at the first use."),))
    files, sizes = _check_files(spec, tuple(map(_changed, spec.sources)))
    if not sizes:
        return PairChecks(files)
    memory, too_large = _check_memory(spec, sum(sizes))
    pays = () if spec.is_alone or spec.offload is not None else _check_sizes(*sizes)
    return PairChecks((*files, memory, *pays), sizes[0], too_large)


def draw_checks(checked: PairChecks, spec: PairSpec) -> None:
    """Draw one line per check, and a way out if the models may not fit into memory."""
    st.markdown("  \n".join(f"{ICONS[check.outcome]} {escaped(check.words)}" for check in checked.checks))
    streamable = has("offloading") and spec.offload is None and not is_gguf(spec.sources[0])
    if (
        checked.too_large
        and streamable
        and st.button("Stream the target from disk", key="check_offload", icon=":material/hard_drive:")
    ):
        state().pair = replace(spec, offload="disk")
        st.rerun()


def _changed(name: object) -> float:
    """Return when a model's files last changed; 0 if they are not in a folder of this name."""
    path = Path(str(name)).expanduser()
    files = [path, *path.iterdir()] if path.is_dir() else [path]  # the folder changes when a file is deleted
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


@st.cache_resource(show_spinner="Checking the models' files…", max_entries=8)
def _check_files(spec: PairSpec, changed_at: tuple[float, ...]) -> tuple[tuple[Check, ...], tuple[int, ...]]:
    """Return the checks of the files and the vocabulary, and the models' sizes in bytes; no sizes after an error.

    `changed_at` is part of the cache key so that edited files are checked again.
    """
    model_pairs.import_transformers()
    from sequoia_core.models.folders import Folder
    from sequoia_core.models.loading import inspect_pair

    try:
        pair = inspect_pair(spec)
    except (ValueError, OSError) as error:
        return (Check(ERROR, f"{error}."),), ()
    empty = next((files.name for files in pair.models if isinstance(files, Folder) and not files.plan.stored), None)
    if empty is not None:
        return (Check(ERROR, f"{empty}: found no weights, expected .safetensors files."),), ()
    names = " and ".join(f"{Path(model_name(files.name)).name} ({files.size})" for files in pair.models)
    checks = [Check(OK, f"Complete files: {names}.")]
    if not spec.is_alone:
        checks.append(SAME_FILE if spec == model_pairs.gemma_pair() else _check_vocabulary(pair))
    return tuple(checks), tuple(files.weight_bytes(pair.request.dtype) for files in pair.models)


def _check_vocabulary(pair: PairFiles) -> Check:
    from sequoia_core.models.pair_tokenizer import id_count

    try:
        tokenizer, _ = pair.tokenizer()
    except (ValueError, OSError) as error:
        return Check(ERROR, f"{str(error)[0].upper()}{str(error)[1:]}. Choose a draft of the same model family.")
    return Check(OK, f"Same vocabulary: {id_count(tokenizer):,} tokens.")


def _check_memory(spec: PairSpec, needed: int) -> tuple[Check, bool]:
    """Return the check of the memory that the weights need in bytes, and whether the models may not fit."""
    if spec.offload is not None:
        from ui import weight_location

        loadable, words = weight_location.check_needs(spec)
        return Check(OK if loadable else ERROR, f"{words}."), False
    if model_pairs.loaded_pair() == spec:
        return Check(OK, "In memory."), False
    free = machine.free_bytes()
    words = f"The weights take {needed / 1e6:,.0f} MB{machine.free_memory()}"
    if free is None or needed <= SPARE_SHARE * free:
        return Check(OK, f"{words}."), False
    advice = "stream the target from disk, or use smaller models" if has("offloading") else "use smaller models"
    return Check(WARNING if needed <= free else ERROR, f"{words}: {advice}."), True


def _check_sizes(target: int, draft: int) -> list[Check]:
    """Compare the models' sizes in bytes: a pass takes at least as long as reading the weights from memory."""
    if not target or not draft:  # a head, whose size is not known yet
        return []
    share = f"The draft has {draft / target:.0%} of the target's bytes"
    if draft >= target:
        return [Check(ERROR, f"{share}: it cannot pay. Choose a smaller draft.")]
    bound = f"{share}: at most about {times(target / draft, 2)} faster, even if every guess is right"
    if draft >= LARGE_DRAFT * target:
        return [Check(WARNING, f"{bound}. A smaller draft is likely to pay more.")]
    return [Check(OK, f"{bound}.")]
