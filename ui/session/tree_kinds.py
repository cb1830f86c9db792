"""Which kind of tree is decoded with: the one in use at every step, or one that follows the draft or the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sequoia_core.decoding.tree_kinds import TREE_KINDS
from sequoia_core.design.plain_trees import GUESSED_CHAIN, chain_tree
from sequoia_core.design.tree import TokenTree
from ui.session import core_cache, predictions, session, tree_in_use
from ui.session.state import get, put

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector, HardwareProfile
    from sequoia_core.decoding.tree_policy import TreePolicy

STATIC = "static"
GUESS = f"chain of {GUESSED_CHAIN}, a guess (nothing was measured for this pair)"
KINDS = {STATIC: "Static"} | {name: kind.title for name, kind in TREE_KINDS.items()}


def current() -> str:
    """Return the kind in use, one of `KINDS`."""
    return get("tree_kind", STATIC)


def use(kind: str) -> None:
    """Use this kind on every page."""
    put("tree_kind", kind)


def decoded(vector: AcceptanceVector | None) -> tuple[TokenTree | TreePolicy | None, str]:
    """Return what to decode with, and where it comes from; None and the reason where it cannot be had."""
    if current() == STATIC and tree_in_use.is_guessed():
        return chain_tree(GUESSED_CHAIN), GUESS
    if current() == STATIC:
        return tree_in_use.current(), tree_in_use.source()
    lacking = lacks(vector, KINDS[current()]) if TREE_KINDS[current()].calibrated else None
    return (None, lacking) if lacking is not None else grown(current(), vector, *tree_in_use.shape())


def grown(
    name: str, vector: AcceptanceVector | None = None, size: int = 0, depth: int = 0
) -> tuple[TokenTree | TreePolicy, str]:
    """Return the policy of a kind and what its trees are; the static tree that it takes where growing does not pay."""
    kind = TREE_KINDS[name]
    profile = session.profile() if kind.drafted else _profile_of_target()
    policy = core_cache.policy(name, size, depth, vector, profile)
    if policy.fixed is not None:
        return policy.fixed, f"the {name} policy, which expects a static tree to be faster here than trees that grow"
    timed = kind.drafted or policy.profile is not None
    return policy, kind.words if timed else f"{kind.words}, as long as they pay: passes are timed when a run starts"


def _profile_of_target() -> HardwareProfile | None:
    """Return the profile in use where it is one of the target, whatever its draft and device."""
    from sequoia_core.decoding.growing.policies import profile_of_target

    spec, held = session.pair_spec(), session.profile()
    of_target: dict[str, Any] = {"target": spec.names[0], "dtype": predictions.dtype_in_use(), "offload": spec.offload}
    return profile_of_target([held] if held else [], **of_target)


def looks_up(tree: TokenTree | TreePolicy) -> bool:
    """Say whether trees depend on text already seen, so that nothing is predicted of them without it."""
    return not isinstance(tree, TokenTree) and tree.looks_up


def lacks(vector: AcceptanceVector | None, name: str) -> str | None:
    """Say what is missing for adaptive or hybrid trees, and where to get it; None when nothing is."""
    if session.profile() is None:
        return f"{name} trees need a hardware profile. Measure one on the machine page."
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
