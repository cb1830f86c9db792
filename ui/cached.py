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
    from sequoia_core.planning import BestShape

MAX_DEPTH = 24
MAX_SIZE = 512  # past it a slider is no longer a tool; trees of the paper's GPUs have 64 to 128 nodes
TABLE_SIZE = MAX_SIZE + 1  # one more, for the value of the next node

_HASH = {
    "sequoia_core.acceptance.AcceptanceVector": lambda vector: vector.probs.tobytes(),
    "sequoia_core.hardware.HardwareProfile": lambda profile: profile.to_json(),
}


@st.cache_resource(show_spinner=False, max_entries=16)
def load_acceptance(path: str, modified: int) -> AcceptanceVector:
    from sequoia_core import AcceptanceVector

    return AcceptanceVector.load(path)


@st.cache_resource(show_spinner=False, max_entries=16)
def load_profile(path: str, modified: int) -> HardwareProfile:
    from sequoia_core import HardwareProfile

    return HardwareProfile.load(path)


@st.cache_resource(show_spinner="Searching the best tree…", max_entries=64, hash_funcs=_HASH)
def best_tree(vector: AcceptanceVector, size: int, depth: int) -> TokenTree:
    """Return the optimal tree, cached."""
    from sequoia_core import optimal_tree

    return optimal_tree(vector, size=size, depth=depth)


@st.cache_resource(show_spinner="Computing expected tokens…", max_entries=32, hash_funcs=_HASH)
def tokens_table(vector: AcceptanceVector, max_size: int, max_depth: int) -> np.ndarray:
    """Return G(n, d), float64 [max_size + 1, max_depth + 1], cached."""
    from sequoia_core import expected_tokens_table

    return expected_tokens_table(vector, max_size=max_size, max_depth=max_depth)


@st.cache_resource(show_spinner="Comparing shapes…", max_entries=32, hash_funcs=_HASH)
def growth_curves(vector: AcceptanceVector, depth: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return name -> (sizes, expected tokens) of the best tree at two depth limits and of plain shapes."""
    import numpy as np

    from sequoia_core import expected_tokens
    from sequoia_core.construction import branching_tree, chain_tree, independent_chains

    table = tokens_table(vector, TABLE_SIZE, MAX_DEPTH)[: MAX_SIZE + 1]
    plain = {
        "one chain": [chain_tree(length) for length in range(depth + 1)],
        f"independent chains of {depth}": [independent_chains(k, depth) for k in range(1, (MAX_SIZE - 1) // depth + 1)],
        "two children everywhere": [
            branching_tree([2] * levels) for levels in range(depth + 1) if 2 ** (levels + 1) - 1 <= MAX_SIZE
        ],
    }
    curves = {}
    for limit in (depth, MAX_DEPTH):
        sizes = np.flatnonzero(np.isfinite(table[:, limit]))
        if limit == depth or table[sizes[-1], limit] > 1.01 * table[sizes[-1], depth]:  # else one line hides the other
            curves[f"best tree, d ≤ {limit}"] = (sizes, table[sizes, limit])
    for name, trees in plain.items():
        curves[name] = (np.array([t.size for t in trees]), np.array([expected_tokens(t, vector) for t in trees]))
    return curves


def best_value(vector: AcceptanceVector, size: int, depth: int) -> float | None:
    """Return the largest F at this size and depth; None where the vector is too short or n too large."""
    from sequoia_core import expected_tokens

    try:
        return expected_tokens(best_tree(vector, size, depth), vector)
    except ValueError:
        return None


def next_node_value(vector: AcceptanceVector, size: int, depth: int) -> float | None:
    """Return G(n + 1, d) - G(n, d); None where the vector has no place for another node or n is too large to search."""
    try:
        table = tokens_table(vector, max(size + 1, TABLE_SIZE), max(depth, MAX_DEPTH))
    except ValueError:
        return None
    here, there = table[size : size + 2, depth].tolist()
    return there - here if math.isfinite(there) and math.isfinite(here) else None


@st.cache_resource(show_spinner="Planning for this hardware…", max_entries=32, hash_funcs=_HASH)
def planned(vector: AcceptanceVector, profile: HardwareProfile) -> tuple[SpeedupSurface, BestShape]:
    """Return the predicted speedup surface and its best shape, cached."""
    from sequoia_core import best_shape, speedup_surface

    surface = speedup_surface(vector, profile, max_size=min(profile.max_size, MAX_SIZE))
    return surface, best_shape(surface)
