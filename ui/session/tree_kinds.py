"""The type of tree to decode with: the current static tree, or trees that depend on the draft or the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sequoia_core import AcceptanceVector, HardwareProfile
from sequoia_core.decoding.tree_kinds import find_target_profile
from sequoia_core.trees.plain import DEFAULT_CHAIN_LENGTH, chain_tree
from sequoia_core.trees.tree import TokenTree
from ui.session import core_cache, predictions, session, tree_in_use
from ui.session.core_cache import KINDS
from ui.session.state import state

if TYPE_CHECKING:
    from sequoia_core.decoding.tree_policy import TreePolicy

STATIC = "static"
GUESSED_TREE = f"chain of {DEFAULT_CHAIN_LENGTH}, a guess (nothing was measured for this pair)"
KIND_TITLES = {STATIC: "Static"} | {name: kind.title for name, kind in KINDS.items()}


def selected_kind() -> str:
    """Return the selected type of tree, a key of `KIND_TITLES`."""
    return state().tree_kind


def select_kind(kind: str) -> None:
    """Switch every page to this type of tree."""
    state().tree_kind = kind


def resolve_tree(vector: AcceptanceVector | None) -> tuple[TokenTree | TreePolicy | None, str]:
    """Return the tree or policy to decode with and its description, or None and the reason."""
    kind = selected_kind()
    if kind == STATIC:
        return static_tree()
    lacking = missing_inputs(vector, KIND_TITLES[kind]) if KINDS[kind].calibrated else None
    return (None, lacking) if lacking is not None else make_policy(kind, vector, *tree_in_use.designed_shape())


def static_tree() -> tuple[TokenTree, str]:
    """Return the tree to decode with if trees do not vary, and its description."""
    if tree_in_use.is_guessed():
        return chain_tree(DEFAULT_CHAIN_LENGTH), GUESSED_TREE
    return tree_in_use.current_tree(), tree_in_use.describe_source()


def make_policy(
    name: str, vector: AcceptanceVector | None = None, size: int = 0, depth: int = 0
) -> tuple[TokenTree | TreePolicy, str]:
    """Return a policy, or the static tree it prefers if growing trees is not worth it, and a description."""
    kind = KINDS[name]
    profile = session.profile() if kind.drafted else _target_profile()
    policy = core_cache.make_policy(name, size, depth, vector, profile)
    if policy.fixed is not None:
        return policy.fixed, f"the {name} policy, which expects a static tree to be faster here than growing trees"
    timed = kind.drafted or policy.profile is not None
    return policy, kind.words if timed else f"{kind.words}, as long as they pay off: passes are timed at the start"


def _target_profile() -> HardwareProfile | None:
    """Return the current profile if it was measured on the target, with any draft and device; otherwise None."""
    spec = session.pair_spec()
    hardware = session.profile()
    dtype = predictions.resolve_dtype(spec)
    return find_target_profile([hardware] if hardware else [], target=spec.names[0], dtype=dtype, offload=spec.offload)


def looks_up(tree: TokenTree | TreePolicy) -> bool:
    """Return whether the trees depend on earlier text, in which case nothing is predicted for them."""
    return not isinstance(tree, TokenTree) and tree.looks_up


def missing_inputs(vector: AcceptanceVector | None, name: str) -> str | None:
    """Return what adaptive or hybrid trees lack and where to get it; None if nothing is missing."""
    lacking = None
    if session.profile() is None:
        lacking = "a hardware profile. Measure one on the machine page."
    elif vector is None:
        lacking = "an acceptance vector for these settings. Measure one."
    elif vector.calibration is None:
        lacking = "an acceptance vector with a calibration, which new measurements include."
    return lacking and f"{name} trees need {lacking}"


def exact_verifier(tree: TokenTree | TreePolicy, wanted: str) -> str:
    """Return the wanted verifier if it is exact for these trees; otherwise, return one that is."""
    from sequoia_core.decoding.tree_policy import as_policy

    exact = as_policy(tree).verifiers
    return wanted if wanted in exact else exact[0]
