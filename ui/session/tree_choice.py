"""Selection of the tree to decode with: the tree page's, the best one for this hardware, a chain, or a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.files.extras import has
from sequoia_core.trees.plain import chain_tree
from ui import uploads
from ui.phrases import count
from ui.session import core_cache, predictions, session, tree_kinds
from ui.session.state import state

if TYPE_CHECKING:
    from sequoia_core.decoding.tree_policy import TreePolicy
    from sequoia_extras.dynamic_trees.text_index import TextIndex

MAX_INDEX_TOKENS = 1 << 16  # about 4 MB
TREE_SOURCES = {
    "tree": "Tree page",
    "best": "Best for this hardware",
    "chain": "Chain",
    "file": "Imported file",
}


@dataclass(frozen=True, slots=True)
class TreeChoice:
    """A selected tree and where it comes from.

    Attributes:
        source: one of `TREE_SOURCES`, or "alone" without a draft.
        origin: a description of where the tree comes from, or why there is none.
    """

    source: str
    tree: TokenTree | TreePolicy | None
    origin: str


def tree_control() -> TreeChoice:
    """Show a selector for the tree; `resolve_choice` adds the tree if it depends on the vector."""
    if session.pair_spec().is_alone:
        if not has("dynamic_trees"):
            from sequoia_core.decoding.tree_policy import ROOT_ONLY

            return TreeChoice("alone", ROOT_ONLY, "one token per pass")
        return TreeChoice("alone", *tree_kinds.make_policy("lookup"))
    source = st.selectbox(
        "Tree",
        TREE_SOURCES,
        key="source",
        bind="query-params",
        format_func=TREE_SOURCES.__getitem__,
        help="Best for this hardware: the shape with the highest predicted speedup for the current vector and profile.",
    )
    if source in ("tree", "best"):
        return TreeChoice(source, None, "")
    if source == "chain":
        length = st.slider(
            "Chain length",
            1,
            16,
            4,
            key="chain",
            bind="query-params",
            help="Number of tokens drafted in a row: classic speculative decoding.",
        )
        return TreeChoice(source, chain_tree(length), f"chain of {length}")
    upload = uploads.tree_upload(key="decode_tree_file")
    if upload is None:
        return TreeChoice(source, None, "Upload a tree file or choose another tree.")
    return TreeChoice(source, upload.value, upload.error or f"your file {upload.name}")


def resolve_choice(choice: TreeChoice, vector: AcceptanceVector | None) -> TreeChoice:
    """Return the choice with its tree; `vector` is the one measured for the decode's settings, if any."""
    if choice.source == "tree":
        return TreeChoice("tree", *tree_kinds.resolve_tree(vector))
    return best_tree_for(vector) if choice.source == "best" else choice


def earlier_answers_control(choice: TreeChoice) -> TreeChoice:
    """Draw a toggle that lets lookup trees search this session's earlier answers, and return the choice."""
    if choice.tree is None or not tree_kinds.looks_up(choice.tree):
        return choice
    index = text_index()
    enabled = st.toggle(
        "Also search this session's earlier answers",
        key="earlier_answers",
        persist_state="session",
        help=f"{index.texts} from this target so far, including prompts. If off, a run with the same settings is "
        "repeatable; if on, trees also depend on what was decoded before. The output is the target's in both cases.",
    )
    if not (enabled and index.texts):
        return choice
    origin = f"{choice.origin}, also in {count(index.texts, 'earlier answer')}"
    policy: Any = choice.tree
    return replace(choice, tree=replace(policy, index=index), origin=origin)


def text_index() -> TextIndex:
    """Return the index of this session's earlier answers of the target, to which each finished decode is added."""
    from sequoia_extras.dynamic_trees.text_index import TextIndex

    return state().earlier_answers.setdefault(session.pair_spec().names[0], TextIndex(max_tokens=MAX_INDEX_TOKENS))


def needs_measurement(choice: TreeChoice, vector: AcceptanceVector | None) -> bool:
    """Return whether a measurement would provide the missing tree."""
    if choice.source == "tree":
        return vector is None or vector.calibration is None
    return choice.source == "best"


def best_tree_for(vector: AcceptanceVector | None) -> TreeChoice:
    """Return the tree with the highest predicted speedup for a vector, or the reason why there is none."""
    profile = session.profile()
    if profile is None:
        why = "Choosing a shape requires a hardware profile. Measure one on the machine page."
    elif vector is None:
        why = "No acceptance vector was measured for these settings, so the best tree is unknown. Measure one."
    elif predictions.profile_is_for_another_pair():
        why = "The current profile was measured on another pair, so the best tree is unknown. Measure this pair."
    else:
        tree = core_cache.plan(vector, profile)[2]
        return TreeChoice("best", tree, f"best tree for {predictions.profiled_machine()}")
    return TreeChoice("best", None, why)
