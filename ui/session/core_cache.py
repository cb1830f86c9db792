"""Bounded caches for core calls that pages repeat on every rerun. Results are immutable."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import streamlit as st

from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree, optimal_tree
from sequoia_core.decoding.tree_kinds import TREE_KINDS
from sequoia_core.files.prompt_files import parse_prompts
from sequoia_core.models.default_dtype import default_dtype
from sequoia_core.planning import break_even as breaking_even
from sequoia_core.planning import plan as planning
from sequoia_core.planning import prediction as predicting
from sequoia_core.trees.comparison import regret_matrix
from sequoia_core.trees.grown import bootstrap_tables, searchable_table

if TYPE_CHECKING:
    from sequoia_core.decoding.tree_policy import DynamicTree
    from sequoia_extras.evaluation.growth import Curve
    from ui.token_tree.two_ways import SupposedDraft

Function = TypeVar("Function", bound=Callable[..., Any])
Content = TypeVar("Content")
Measured = TypeVar("Measured", bound=AcceptanceVector | HardwareProfile)
MAX_TREE_DEPTH = 24
MAX_TREE_SIZE = 2048  # SpecExec's largest budget; Sequoia uses 64 to 128 nodes on a GPU, 768 with offloading
# For vectors that are not monotone, tables up to `MAX_TREE_SIZE` take seconds, so only larger trees use them.
DEFAULT_TABLE_SIZE = 1024
EAGLE2 = "eagle2"
# EAGLE-2's settings for 7B models: 60 tokens, depth 6, 10 nodes expanded at each level (arXiv 2406.16858).
EAGLE2_SHAPE = (61, 6)
EAGLE2_WIDTH = 10
KINDS: dict[str, Any] = dict(TREE_KINDS)  # with EAGLE-2, which selects tokens as SpecExec does
if "specexec" in KINDS:
    KINDS[EAGLE2] = replace(KINDS["specexec"], title="EAGLE-2's 60 tokens", words="EAGLE-2's trees")
MAX_RESAMPLED_SIZE = 256  # bootstrap intervals need fifty tables, which take one second at this size


@lru_cache(maxsize=32)
def _digest(measured: AcceptanceVector | HardwareProfile) -> bytes:
    """Return a digest of the entire contents, including a vector's sample data."""
    return blake2b(pickle.dumps(measured)).digest()


_HASH_FUNCS: dict[str | type[Any], Callable[[Any], Any]] = {
    AcceptanceVector: _digest,
    HardwareProfile: _digest,
    TokenTree: lambda tree: tree.parents.tobytes(),
}


def cached(entries: int, spinner: str | bool = False) -> Callable[[Function], Function]:
    """Return a decorator that caches the last results by the contents of vectors, profiles and trees."""
    decorator: Any = st.cache_resource(show_spinner=spinner, max_entries=entries, hash_funcs=_HASH_FUNCS)
    return decorator


def table_size(size: int) -> int:
    """Return the largest tree size in the tables that are computed when a tree of this size is shown."""
    return DEFAULT_TABLE_SIZE if size <= DEFAULT_TABLE_SIZE else MAX_TREE_SIZE


# Pages call this hundreds of times, and a Streamlit cache hit takes 0.2 ms.
@lru_cache(maxsize=96)
def _load(read: Callable[[Path], Any], path: Path, modified: int) -> Any:
    return read(path)


def load(read: Callable[[Path], Content], path: Path) -> Content:
    """Read a file; it is read again once it has been edited."""
    return _load(read, path, path.stat().st_mtime_ns)


uploaded_prompts = cached(4)(parse_prompts)
demo_dtype = cached(1)(default_dtype)


@cached(64, "Searching for the best tree…")
def best_tree(vector: AcceptanceVector, size: int, depth: int) -> TokenTree:
    return optimal_tree(vector, size=size, depth=depth)


@cached(32, "Computing expected tokens…")
def tokens_table(vector: AcceptanceVector, largest: int = DEFAULT_TABLE_SIZE) -> np.ndarray:
    """Return G(n, d), float64 [largest + 2, MAX_TREE_DEPTH + 1]; NaN where the search is too large."""
    return searchable_table(vector, max_size=largest + 1, max_depth=MAX_TREE_DEPTH)


@cached(32, "Comparing shapes…")
def growth_curves(vector: AcceptanceVector, depth: int, largest: int = DEFAULT_TABLE_SIZE) -> dict[str, Curve]:
    """Return (sizes, expected tokens) per curve: the best tree, k chains and one chain."""
    from sequoia_extras.evaluation import growth

    return growth.growth_curves(vector, tokens_table(vector, largest)[:-1], depth=depth)


@cached(8, "Planning for better and worse drafts…")
def supposed_drafts(vector: AcceptanceVector, profile: HardwareProfile) -> list[SupposedDraft]:
    from ui.token_tree.two_ways import supposed_drafts

    return supposed_drafts(vector, profile)


@cached(16, "Resampling the measurement…")
def size_and_depth_spread(vector: AcceptanceVector, profile: HardwareProfile) -> planning.ShapeSpread | None:
    """Return how much the best shape varies across bootstrap samples; None without sample data."""
    size = min(MAX_RESAMPLED_SIZE, profile.max_size)
    tables = bootstrap_tables(vector, max_size=size, max_depth=MAX_TREE_DEPTH)
    return None if tables is None else planning.size_and_depth_spread(vector, profile, tables)


tokens_per_step = cached(64)(predicting.tokens_estimate)
prompts_for = cached(64)(predicting.prompts_for)
regret = cached(32)(regret_matrix)
break_even = cached(16, "Looking for break-even…")(breaking_even.break_even)
gains = cached(16, "Looking for break-even…")(breaking_even.gains)


@cached(32, "Planning for this hardware…")
def plan(
    vector: AcceptanceVector, profile: HardwareProfile, paper: bool = False
) -> tuple[planning.SpeedupSurface, planning.BestShape, TokenTree]:
    """Return the predicted speedups by shape, the best shape and its tree; `paper` uses the paper's formula."""
    trees = planning.grow_searchable_trees(vector, profile, max_size=DEFAULT_TABLE_SIZE)
    surface = planning.surface_from_trees(trees, profile, paper=paper)
    best, tree = planning.choose_plan(surface, trees, profile)
    return surface, best if paper else predicting.evaluate_shape(tree, vector, profile), tree


@cached(16, "Planning without depth…")
def without_depth(vector: AcceptanceVector, profile: HardwareProfile) -> predicting.WithoutDepth | None:
    """Return the loss from planning with only the first depth's acceptance; None without per-depth acceptance."""
    return predicting.without_depth(plan(vector, profile)[2], vector, profile, max_size=DEFAULT_TABLE_SIZE)


@cached(64)
def prediction(
    vector: AcceptanceVector,
    profile: HardwareProfile,
    tree: TokenTree,
    prompts: int | None = None,
    context: float | None = None,
) -> predicting.Prediction:
    """Return the prediction for decoding with this tree, with intervals for the given number of prompts."""
    return predicting.predict(tree, vector, profile, prompts=prompts, context=context)


def make_policy(
    kind: str, size: int, depth: int, vector: AcceptanceVector | None, profile: HardwareProfile | None
) -> DynamicTree:
    """Return the policy for one of `KINDS`; `size` and `depth` limit only SpecExec's trees."""
    limits = {"specexec": (size, depth), EAGLE2: EAGLE2_SHAPE}.get(kind, (0, 0))
    return _make_policy(kind, *limits, vector, profile)


@cached(16)
def _make_policy(
    kind: str, size: int, depth: int, vector: AcceptanceVector | None, profile: HardwareProfile | None
) -> DynamicTree:
    chosen = KINDS[kind]
    if chosen.budgeted:
        widths = dict.fromkeys(("beam", "branch"), EAGLE2_WIDTH) if kind == EAGLE2 else {}
        return chosen.make(max_size=size, max_depth=depth, **widths)
    planned = plan(vector, profile)[2] if chosen.calibrated and vector and profile else None
    return chosen.make(vector, profile, planned=planned)


@cached(16)
def policy_prediction(
    kind: str, size: int, depth: int, vector: AcceptanceVector, profile: HardwareProfile, prompts: int | None = None
) -> predicting.Prediction:
    """Return the prediction for decoding with this policy's trees, with intervals."""
    return make_policy(kind, size, depth, vector, profile).predict(vector, profile, prompts=prompts)
