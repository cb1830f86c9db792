"""Which tree to decode with: the tree page's, the best for this hardware, a chain, or one from a file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.design.plain_trees import chain_tree
from ui import uploads
from ui.phrases import count
from ui.session import core_cache, earlier_answers, predictions, session, tree_kinds

if TYPE_CHECKING:
    from sequoia_core.decoding.tree_policy import TreePolicy

SOURCES = {
    "tree": "Tree page",
    "best": "Best for this hardware",
    "chain": "Chain",
    "file": "Imported file",
}


@dataclass(frozen=True, slots=True)
class TreeChoice:
    """A tree and where it comes from.

    Args:
        source: one of `SOURCES`, or "alone" where there is no draft.
        tree: None where there is none.
        origin: where it comes from, or why there is none, for people.
    """

    source: str
    tree: TokenTree | TreePolicy | None
    origin: str


def draw() -> TreeChoice:
    """Draw the choice of a tree. Where it depends on the vector only the source is set: see `settled`."""
    if session.pair_spec().is_alone:
        return TreeChoice("alone", *tree_kinds.grown("lookup"))
    source = st.selectbox(
        "Tree",
        SOURCES,
        key="source",
        bind="query-params",
        format_func=SOURCES.__getitem__,
        help="Best for this hardware: the shape with the highest predicted speedup for the vector and profile in use.",
    )
    if source == "tree":
        return TreeChoice(source, None, "")
    if source == "best":
        return TreeChoice(source, None, "")
    if source == "chain":
        length = st.slider(
            "Chain length",
            1,
            16,
            4,
            key="chain",
            bind="query-params",
            help="Drafted tokens in a row: classic speculative decoding.",
        )
        return TreeChoice(source, chain_tree(length), f"chain of {length}")
    upload = uploads.tree_upload(key="decode_tree_file")
    if upload is None:
        return TreeChoice(source, None, "Upload a tree file, or choose another tree.")
    return TreeChoice(source, upload.value, upload.error or f"your file {upload.name}")


def settled(choice: TreeChoice, vector: AcceptanceVector | None) -> TreeChoice:
    """Return the choice with its tree, under a vector that holds for the decode to come; None where none does."""
    if choice.source == "tree":
        return TreeChoice("tree", *tree_kinds.decoded(vector))
    return best_for(vector) if choice.source == "best" else choice


def with_earlier_answers(choice: TreeChoice) -> TreeChoice:
    """Draw, for lookup trees, whether they look through this session's earlier answers too -> the choice as wished."""
    if choice.tree is None or not tree_kinds.looks_up(choice.tree):
        return choice
    index = earlier_answers.index()
    wished = st.toggle(
        "Also look through this session's earlier answers",
        key="earlier_answers",
        persist_state="session",
        help=f"{index.texts} of this target so far, prompts included. Off, equal settings repeat a run; on, the trees "
        "depend on what was decoded before. The text follows the target either way.",
    )
    if not (wished and index.texts):
        return choice
    origin = f"{choice.origin}, also in {count(index.texts, 'earlier answer')}"
    policy: Any = choice.tree
    return replace(choice, tree=replace(policy, index=index), origin=origin)


def needs_vector(choice: TreeChoice, vector: AcceptanceVector | None) -> bool:
    """Say whether measuring would bring the tree that is missing."""
    if choice.source == "tree":
        return vector is None or vector.calibration is None
    return choice.source == "best"


def best_for(vector: AcceptanceVector | None) -> TreeChoice:
    """Return the tree with the highest predicted speedup under a vector that holds, or why none is known."""
    profile = session.profile()
    if profile is None:
        why = "There is no hardware profile to choose a shape by. Measure one on the machine page."
        return TreeChoice("best", None, why)
    if vector is None:
        why = "No acceptance vector holds for these settings, so no tree is known to be the best. Measure one."
        return TreeChoice("best", None, why)
    if predictions.profile_of_another_pair():
        why = "The times in use are of another pair, so no tree is known to be the best. Measure those of this pair."
        return TreeChoice("best", None, why)
    tree = core_cache.planned(vector, profile)[2]
    return TreeChoice("best", tree, f"best tree for {predictions.profiled_machine()}")
