"""Core calls that pages repeat on every rerun, behind bounded caches.

Everything they take and return is immutable, so sharing results between sessions is safe.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import streamlit as st

if TYPE_CHECKING:
    import numpy as np

    from sequoia_core import AcceptanceVector, HardwareProfile, SpeedupSurface, TokenTree
    from sequoia_core.design.planning import BestShape, ShapeSpread
    from sequoia_core.design.regret import Regret

MAX_DEPTH = 24
MAX_SIZE = 1024  # the paper's trees have 64 to 128 nodes on a GPU, 768 with offloading
TABLE_SIZE = MAX_SIZE + 1  # one more, for the value of the next node
BAND_SIZE = 256  # the largest size with a bootstrap interval: fifty tables of it take a second
TOO_LONG = (
    f"Only trees up to n = {BAND_SIZE} were searched: this vector has many ranks that rise and fall. Smooth it on the "
    "acceptance page to search larger ones."
)

_HASH = {
    "sequoia_core.design.acceptance.AcceptanceVector": lambda vector: vector.probs.tobytes(),
    "sequoia_core.design.profile.HardwareProfile": lambda profile: profile.to_json(),
    "sequoia_core.design.tree.TokenTree": lambda tree: tree.parents.tobytes(),
}
# what depends on how the vector was measured, and not on its values alone
_SAMPLE_HASH = {**_HASH, "sequoia_core.design.acceptance.AcceptanceVector": lambda vector: vector.to_bytes()}


@st.cache_resource(show_spinner=False, max_entries=16)
def load_acceptance(path: str, modified: int) -> AcceptanceVector:
    from sequoia_core import AcceptanceVector

    return AcceptanceVector.load(path)


@st.cache_resource(show_spinner=False, max_entries=16)
def load_profile(path: str, modified: int) -> HardwareProfile:
    from sequoia_core import HardwareProfile

    return HardwareProfile.load(path)


@st.cache_data(show_spinner=False, max_entries=4)
def uploaded_prompts(data: bytes, name: str, column: str | None) -> list[str]:
    """Return the prompts of an uploaded file; parsing megabytes anew on every rerun would be felt."""
    from sequoia_core.files.prompt_files import prompts_from_bytes

    return prompts_from_bytes(data, name, column)


@st.cache_resource(show_spinner="Searching the best tree…", max_entries=64, hash_funcs=_HASH)
def best_tree(vector: AcceptanceVector, size: int, depth: int) -> TokenTree:
    """Return the optimal tree, cached."""
    from sequoia_core import optimal_tree

    return optimal_tree(vector, size=size, depth=depth)


@st.cache_resource(show_spinner="Computing expected tokens…", max_entries=32, hash_funcs=_HASH)
def tokens_table(vector: AcceptanceVector, max_size: int, max_depth: int) -> np.ndarray:
    """Return G(n, d), float64 [max_size + 1, max_depth + 1], cached; NaN where it is too much to search.

    A long vector whose ranks rise and fall is searched up to n = BAND_SIZE only, which takes any vector.
    """
    import numpy as np

    from sequoia_core import expected_tokens_table

    try:
        return expected_tokens_table(vector, max_size=max_size, max_depth=max_depth)
    except ValueError:
        table = np.full((max_size + 1, max_depth + 1), np.nan)
        table[: BAND_SIZE + 1] = expected_tokens_table(vector, max_size=BAND_SIZE, max_depth=max_depth)
        return table


@st.cache_resource(show_spinner="Comparing shapes…", max_entries=32, hash_funcs=_HASH)
def growth_curves(vector: AcceptanceVector, depth: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return name -> (sizes, expected tokens) of the best tree at two depth limits and of plain shapes."""
    import numpy as np

    from sequoia_core import expected_tokens
    from sequoia_core.design.optimal_trees import is_monotone
    from sequoia_core.design.plain_trees import (
        beam_tree,
        best_first_tree,
        branching_tree,
        chain_tree,
        independent_chains,
    )

    table = tokens_table(vector, TABLE_SIZE, MAX_DEPTH)[: MAX_SIZE + 1]
    widths = np.unique(np.geomspace(1, max((MAX_SIZE - 1) // depth, 1), 24).astype(int)).tolist()
    plain = {
        "one chain": [chain_tree(length) for length in range(depth + 1)],
        f"independent chains of {depth}": [independent_chains(k, depth) for k in widths],
        f"beam of depth {depth}": [beam_tree(vector, width=k, depth=depth) for k in widths],
        "two children everywhere": [
            branching_tree([2] * levels) for levels in range(depth + 1) if 2 ** (levels + 1) - 1 <= MAX_SIZE
        ],
    }
    curves = {}
    for limit in (depth, MAX_DEPTH):
        sizes = np.flatnonzero(np.isfinite(table[:, limit]))
        if limit == depth or table[sizes[-1], limit] > 1.01 * table[sizes[-1], depth]:  # else one line hides the other
            curves[f"best tree, d ≤ {limit}"] = (sizes, table[sizes, limit])
    if not is_monotone(vector):  # else it is the best tree
        sizes = np.unique(np.geomspace(1, MAX_SIZE, 24).astype(int)).tolist()
        plain["best first (Medusa)"] = [best_first_tree(vector, size=size, depth=depth) for size in sizes]
    for name, trees in plain.items():
        sizes, first = np.unique([tree.size for tree in trees], return_index=True)
        curves[name] = (sizes, np.array([expected_tokens(trees[i], vector) for i in first]))
    return curves


def best_value(vector: AcceptanceVector, tree: TokenTree) -> float | None:
    """Return the largest F at a tree's size and depth; None where that is too much to search."""
    from sequoia_core.design.optimal_trees import best_expected_tokens

    try:
        return best_expected_tokens(tree, vector)
    except ValueError:
        return None


@st.cache_resource(show_spinner="Resampling the measurement…", max_entries=8, hash_funcs=_SAMPLE_HASH)
def resampled_tables(vector: AcceptanceVector) -> np.ndarray | None:
    """Return G(n, d) for vectors the same measurement might have found, up to n = BAND_SIZE; None if none is known."""
    from sequoia_core.design.optimal_trees import bootstrap_tables

    return bootstrap_tables(vector, max_size=BAND_SIZE, max_depth=MAX_DEPTH)


def growth_band(vector: AcceptanceVector, depth: int) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return (sizes, low, high), the 95% interval of G(n, depth); None when nothing is known of the sample."""
    import numpy as np

    tables = resampled_tables(vector)
    if tables is None:
        return None
    sizes = np.flatnonzero(np.isfinite(tables[0, :, depth]))
    low, high = np.quantile(tables[:, sizes, depth], [0.025, 0.975], axis=0)
    return sizes, low, high


@st.cache_resource(show_spinner=False, max_entries=16, hash_funcs=_SAMPLE_HASH)
def shape_spread(vector: AcceptanceVector, profile: HardwareProfile) -> ShapeSpread | None:
    """Return how sure the best shape is, cached; None when nothing is known of the sample."""
    from sequoia_core.design import planning

    tables = resampled_tables(vector)
    if tables is None:
        return None
    return planning.shape_spread(vector, profile, tables[:, : profile.max_size + 1])


@st.cache_resource(show_spinner=False, max_entries=64, hash_funcs=_SAMPLE_HASH)
def tokens_interval(vector: AcceptanceVector, tree: TokenTree) -> tuple[float, float] | None:
    """Return the 95% interval of F of this very tree, from the sample behind the vector; None when none is known."""
    import numpy as np

    from sequoia_core import expected_tokens

    vectors = vector.resamples(100)
    if vectors is None:
        return None
    low, high = np.quantile([expected_tokens(tree, v) for v in vectors], [0.025, 0.975])
    return float(low), float(high)


@st.cache_resource(show_spinner=False, max_entries=32, hash_funcs=_HASH)
def regret(vectors: tuple[AcceptanceVector, ...], size: int, depth: int) -> Regret:
    """Return what each vector's tree loses under the others, cached."""
    from sequoia_core.design.regret import regret_matrix

    return regret_matrix(vectors, size=size, depth=depth)


def next_node_value(vector: AcceptanceVector, size: int, depth: int) -> float | None:
    """Return G(n + 1, d) - G(n, d); None where no node fits or the tree is off the table."""
    if size >= TABLE_SIZE or depth > MAX_DEPTH:
        return None
    table = tokens_table(vector, TABLE_SIZE, MAX_DEPTH)
    here, there = table[size : size + 2, depth].tolist()
    return there - here if math.isfinite(there) and math.isfinite(here) else None


@st.cache_resource(show_spinner="Planning for this hardware…", max_entries=32, hash_funcs=_HASH)
def planned(vector: AcceptanceVector, profile: HardwareProfile) -> tuple[SpeedupSurface, BestShape]:
    """Return the predicted speedup surface and its best shape, cached; up to n = BAND_SIZE where more is too much."""
    from sequoia_core import best_shape, speedup_surface

    largest = min(profile.max_size, MAX_SIZE)
    try:
        surface = speedup_surface(vector, profile, max_size=largest)
    except ValueError:
        surface = speedup_surface(vector, profile, max_size=min(largest, BAND_SIZE))
    return surface, best_shape(surface)
