"""Which kind of tree is decoded with: the one in use at every step, or one that follows the draft or the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ui.session import core_cache, predictions, session, tree_in_use
from ui.session.state import get, put

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, TokenTree
    from sequoia_core.decoding.tree_policy import TreePolicy

STATIC = "static"
BEST_STATIC = "the adaptive policy, which expects a static tree to be faster here than trees that grow"
HYBRID_STATIC = "the hybrid policy, which expects a static tree to be faster here than looking text up adds"
KINDS = {STATIC: "Static", "specexec": "SpecExec", "adaptive": "Adaptive", "lookup": "Lookup", "hybrid": "Hybrid"}


def current() -> str:
    """Return the kind in use, one of `KINDS`."""
    return get("tree_kind", STATIC)


def use(kind: str) -> None:
    """Use this kind on every page."""
    put("tree_kind", kind)


def decoded(vector: AcceptanceVector | None) -> tuple[TokenTree | TreePolicy | None, str]:
    """Return what to decode with, and where it comes from; None and the reason where it cannot be had."""
    size, depth = tree_in_use.shape()
    if current() == "lookup":
        return lookup()
    if current() == STATIC:
        return tree_in_use.current(), tree_in_use.source()
    if current() == "specexec":
        return core_cache.policy("specexec", size, depth, None, None), f"SpecExec's trees of at most {size} nodes"
    lacking = lacks(vector, KINDS[current()])
    if lacking is not None:
        return None, lacking
    if current() == "hybrid":
        policy, words = (
            core_cache.policy("hybrid", 0, 0, vector, session.profile()),
            "of text already seen and the draft",
        )
        return (policy, f"trees {words}") if policy.fixed is None else (policy.fixed, HYBRID_STATIC)
    policy = core_cache.policy("adaptive", size, depth, vector, session.profile())
    return (policy, "adaptive trees") if policy.fixed is None else (policy.fixed, BEST_STATIC)


def lookup() -> tuple[TreePolicy, str]:
    """Return trees of text already seen and what they are, by the profile in use where it is one of the target."""
    from sequoia_core.decoding.growing.lookup import profile_of_target

    spec, held = session.pair_spec(), session.profile()
    of_target: dict[str, Any] = {"target": spec.names[0], "dtype": predictions.dtype_in_use(), "offload": spec.offload}
    policy = core_cache.policy("lookup", 0, 0, None, profile_of_target([held] if held else [], **of_target))
    costs = "" if policy.profile else ", as long as they pay: passes are timed when a run starts"
    return policy, f"trees of text already seen{costs}"


def looks_up(tree: TokenTree | TreePolicy) -> bool:
    """Say whether trees depend on text already seen, so that nothing is predicted of them without it."""
    from sequoia_core import HybridTree, LookupTree

    return isinstance(tree, LookupTree | HybridTree)


def lacks(vector: AcceptanceVector | None, name: str) -> str | None:
    """Say what is missing for adaptive or hybrid trees, and where to get it; None when nothing is."""
    if session.profile() is None:
        return f"{name} trees need a hardware profile. Measure one on the hardware page."
    if vector is None:
        return f"{name} trees need an acceptance vector of these settings. Measure one."
    if vector.calibration is None:
        return (
            f"{name} trees need a vector with a calibration, and this one was measured without. Measure acceptance "
            "again: new measurements have one."
        )
    return None


def verifier(tree: TokenTree | TreePolicy, wanted: str) -> str:
    """Return the verifier wanted where it is exact for these trees, else the one that is."""
    from sequoia_core.decoding.tree_policy import policy_of

    exact = policy_of(tree).verifiers
    return wanted if wanted in exact else exact[0]
