"""The tree that every page works with.

It follows the current acceptance vector and profile until the user selects a shape or imports a tree.
"""

from pathlib import Path

from sequoia_core import TokenTree
from sequoia_core.planning.plan import BestShape
from ui.session import core_cache, predictions, session
from ui.session.state import Chosen, state

FALLBACK_SIZE_AND_DEPTH = (16, 5)  # used if there is no hardware profile


def best_shape() -> BestShape | None:
    """Return the best (n, d) for the current vector and profile; None without a profile."""
    hardware = session.profile()
    return None if hardware is None else core_cache.plan(session.acceptance(), hardware)[1]


def designed_shape() -> tuple[int, int]:
    """Return (n, d) of the planned tree: the user's choice, or the best shape for this hardware."""
    if (shape := state().shape) is not None:
        return shape
    plan = best_shape()
    return FALLBACK_SIZE_AND_DEPTH if plan is None else (max(plan.size, 1), max(plan.depth, 1))


def set_size_and_depth(size: int | None, depth: int = 1, *, show: bool = True) -> None:
    """Set (n, d) of the planned tree, None for the best shape; `show` moves the tree page's sliders."""
    state().shape = None if size is None else (size, max(depth, 1))
    state().tree = None
    state().shape_to_show = show


def pop_size_and_depth_to_show() -> bool:
    """Return whether the tree page should move its sliders to `designed_shape()`, and clear the request."""
    wanted = state().shape_to_show
    state().shape_to_show = False
    return wanted


def current_tree() -> TokenTree:
    """Return the current tree: the imported one, or the best one of the planned shape for the current vector."""
    if (imported := state().tree) is not None:
        return imported.value
    try:
        return core_cache.best_tree(session.acceptance(), *designed_shape())
    except ValueError:  # a shape selected for a vector with more ranks may be impossible
        plan = best_shape()
        return core_cache.best_tree(session.acceptance(), *((plan.size, plan.depth) if plan else (2, 1)))


def is_imported() -> bool:
    """Return whether the current tree was imported by the user."""
    return state().tree is not None


def follows_profile() -> bool:
    """Return whether the current tree is the best one for the current profile."""
    return state().tree is None and state().shape is None and session.profile() is not None


def describe_source() -> str:
    """Describe where the current tree comes from."""
    if (imported := state().tree) is not None:
        return imported.source
    foreign = predictions.vector_is_for_another_pair()
    if state().shape is not None:
        return (
            f"tree of the chosen shape, planned with {_describe_vector()}"
            if foreign
            else "best tree of the chosen shape"
        )
    if session.profile() is None:
        return "best tree of a default shape"
    machine = predictions.profiled_machine().removeprefix("this ")
    if foreign or predictions.profile_is_for_another_pair():
        return f"tree planned with {_describe_vector()} and for {machine}"
    return f"best tree for this acceptance and {machine}"


def _describe_vector() -> str:
    holds_for = session.acceptance().holds_for
    if holds_for is None:
        return "this acceptance"
    return f"the acceptance of {Path(holds_for.target).name} ← {Path(holds_for.draft).name}"


def is_guessed() -> bool:
    """Return whether the tree to decode with is a guess, because no tree was selected and nothing was measured."""
    return state().tree is None and state().shape is None and predictions.lacks_measurement()


def use_tree(tree: TokenTree, source: str) -> None:
    """Use this tree on every page, for any vector."""
    state().tree = Chosen(tree, source)
