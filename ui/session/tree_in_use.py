"""The tree that every page works with.

It follows the acceptance vector and the profile in use until the user fixes a shape or brings a tree.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ui.session import core_cache, predictions, session
from ui.session.state import get, put

if TYPE_CHECKING:
    from sequoia_core import TokenTree
    from sequoia_core.design.planning import BestShape

FALLBACK_SIZE_AND_DEPTH = (16, 5)  # only without any hardware profile to choose a shape by


def best() -> BestShape | None:
    """Return the best (n, d) for the vector and the profile in use; None without a profile."""
    hardware = session.profile()
    return None if hardware is None else core_cache.planned(session.acceptance(), hardware)[1]


def shape() -> tuple[int, int]:
    """Return (n, d) of the designed tree: as fixed by the user, else the best for this hardware."""
    if get("shape") is not None:
        return get("shape")
    plan = best()
    return FALLBACK_SIZE_AND_DEPTH if plan is None else (max(plan.size, 1), max(plan.depth, 1))


def set_size_and_depth(size: int | None, depth: int = 1, *, show: bool = True) -> None:
    """Design the tree at this (n, d), or the best for the hardware; `show` moves the tree page's sliders there."""
    put("shape", None if size is None else (size, max(depth, 1)))
    put("tree", None)
    put("shape_to_show", show)


def pop_size_and_depth_to_show() -> bool:
    """Return whether the tree page's sliders should jump to `shape()`, and clear the flag: the caller moves them."""
    wanted = get("shape_to_show", False)
    put("shape_to_show", False)
    return wanted


def current() -> TokenTree:
    """Return the tree in use: the user's own, else the best one of the designed shape for the vector in use."""
    if get("tree") is not None:
        return get("tree")
    try:
        return core_cache.best_tree(session.acceptance(), *shape())
    except ValueError:  # a shape chosen for a wider vector may not exist for this one
        plan = best()
        return core_cache.best_tree(session.acceptance(), *((plan.size, plan.depth) if plan else (2, 1)))


def is_own() -> bool:
    """Whether the tree in use was brought by the user and not designed here."""
    return get("tree") is not None


def follows_profile() -> bool:
    """Whether the tree in use is the best for the profile in use, rather than chosen or brought by the user."""
    return get("tree") is None and get("shape") is None and session.profile() is not None


def source() -> str:
    """Say where the tree in use comes from."""
    if get("tree") is not None:
        return get("tree_source")
    foreign = predictions.vector_of_another_pair()
    if get("shape") is not None:
        return f"tree of the chosen shape, by {_pair_of_vector()}" if foreign else "best tree of the chosen shape"
    if session.profile() is None:
        return "best tree of a default shape"
    machine = predictions.profiled_machine().removeprefix("this ")
    if foreign or predictions.profile_of_another_pair():
        return f"tree planned by {_pair_of_vector()} and for {machine}"
    return f"best tree for this acceptance and {machine}"


def _pair_of_vector() -> str:
    holds_for = session.acceptance().holds_for
    if holds_for is None:
        return "this acceptance"
    return f"the acceptance of {Path(holds_for.target).name} ← {Path(holds_for.draft).name}"


def is_guessed() -> bool:
    """Whether there is no tree to decode with but a guess: none was brought or chosen, and nothing was measured."""
    return get("tree") is None and get("shape") is None and predictions.lacks_measurement()


def use(tree: TokenTree, source: str) -> None:
    """Use this very tree on every page, whatever the vector."""
    put("tree", tree)
    put("tree_source", source)
