"""Which kind of tree is decoded with: the one tree in use at every step, or one that follows the draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ui.session import core_cache, session, tree_in_use
from ui.session.state import get, put

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, TokenTree
    from sequoia_core.decoding.tree_policy import TreePolicy

STATIC = "static"
BEST_STATIC = "the adaptive policy, which expects a static tree to be faster here than trees that grow"
KINDS = {STATIC: "Static", "specexec": "SpecExec", "adaptive": "Adaptive"}


def current() -> str:
    """Return the kind in use, one of `KINDS`."""
    return get("tree_kind", STATIC)


def use(kind: str) -> None:
    """Use this kind on every page."""
    put("tree_kind", kind)


def decoded(vector: AcceptanceVector | None) -> tuple[TokenTree | TreePolicy | None, str]:
    """Return what to decode with, and where it comes from; None and the reason where it cannot be had.

    Args:
        vector: one that holds for the decode to come; None where none does.
    """
    size, depth = tree_in_use.shape()
    if current() == STATIC:
        return tree_in_use.current(), tree_in_use.source()
    if current() == "specexec":
        return core_cache.policy("specexec", size, depth, None, None), f"SpecExec's trees of at most {size} nodes"
    lacking = adaptive_lacks(vector)
    if lacking is not None:
        return None, lacking
    policy = core_cache.policy("adaptive", size, depth, vector, session.profile())
    return (policy, "adaptive trees") if policy.fixed is None else (policy.fixed, BEST_STATIC)


def adaptive_lacks(vector: AcceptanceVector | None) -> str | None:
    """Say what is missing for adaptive trees, and where to get it; None when nothing is."""
    if session.profile() is None:
        return "Adaptive trees need a hardware profile. Measure one on the hardware page."
    if vector is None:
        return "Adaptive trees need an acceptance vector of these settings. Measure one."
    if vector.calibration is None:
        return (
            "Adaptive trees need a vector with a calibration, and this one was measured without. Measure acceptance "
            "again: new measurements have one."
        )
    return None


def verifier(tree: TokenTree | TreePolicy, wanted: str) -> str:
    """Return the verifier wanted where it is exact for these trees, else the one that is."""
    from sequoia_core.decoding.tree_policy import policy_of

    exact = policy_of(tree).verifiers
    return wanted if wanted in exact else exact[0]
