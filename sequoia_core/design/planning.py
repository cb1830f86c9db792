"""Which tree pays on this hardware: expected tokens set against measured time.

Knows acceptance, shapes and pass times; runs no model. Shapes: N = largest tree size, D = largest depth in edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .acceptance import AcceptanceVector
from .optimal_trees import expected_tokens, expected_tokens_table
from .profile import HardwareProfile
from .tree import TokenTree


@dataclass(frozen=True, slots=True, eq=False)
class SpeedupSurface:
    """Predicted speedup of the best tree of every size and depth.

    Args:
        expected_tokens: float64 [N + 1, D + 1], G(n, d) at [n, d]; -inf where no such tree exists.
        speedup: float64 [N + 1, D + 1], against autoregressive decoding of the same target; NaN where no such tree
            exists. `speedup[1, 0]` is 1: no speculation.
    """

    expected_tokens: np.ndarray
    speedup: np.ndarray

    @property
    def max_size(self) -> int:
        return self.speedup.shape[0] - 1

    @property
    def max_depth(self) -> int:
        return self.speedup.shape[1] - 1


class BestShape(NamedTuple):
    """The shape with the largest predicted speedup; size 1 means that speculation does not pay."""

    size: int
    depth: int
    predicted_speedup: float
    expected_tokens: float


def step_cost(size: int | np.ndarray, depth: int | np.ndarray, profile: HardwareProfile) -> np.ndarray:
    """Return t(n) + d c, the time of one step ÷ the time of one autoregressive token (paper §3.3).

    Where the profile has draft passes over several tokens, c is that of the tree's mean level, (n - 1) / d nodes,
    rather than of a single token: on a small machine a draft pass over many tokens is not free.

    Args:
        size: n, any shape.
        depth: d, any shape that broadcasts with it.

    Returns:
        float64, the broadcast shape.

    Raises:
        ValueError: for sizes beyond what was profiled.
    """
    size, depth = np.asarray(size), np.asarray(depth)
    mean_level = (size - 1) / np.maximum(depth, 1)
    return profile.t(size) + depth * profile.draft_cost(mean_level)


def speedup_surface(
    acceptance: AcceptanceVector, profile: HardwareProfile, *, max_size: int | None = None, max_depth: int = 16
) -> SpeedupSurface:
    """Return Speedup(n, d) = G(n, d) / (t(n) + d c) for every size and depth (paper §3.3).

    c is the draft's cost at the mean size of a level, see `step_cost`.

    Args:
        max_size: N; None for the largest size profiled.
        max_depth: D.

    Raises:
        ValueError: for sizes beyond what was profiled, or a table too large to compute.
    """
    max_size = profile.max_size if max_size is None else max_size
    if max_size > profile.max_size:
        raise ValueError(f"max_size: found {max_size}, expected at most {profile.max_size}, the largest size profiled")
    return _surface(expected_tokens_table(acceptance, max_size=max_size, max_depth=max_depth), profile)


def _surface(table: np.ndarray, profile: HardwareProfile) -> SpeedupSurface:
    """Divide G(n, d), float64 [N + 1, D + 1], by the time of each shape."""
    speedup = np.full_like(table, np.nan)
    sizes, depths = np.arange(1, table.shape[0])[:, None], np.arange(table.shape[1])[None, :]
    speedup[1:] = np.where(np.isneginf(table[1:]), np.nan, table[1:] / step_cost(sizes, depths, profile))
    return SpeedupSurface(expected_tokens=table, speedup=speedup)


def best_shape(surface: SpeedupSurface) -> BestShape:
    """Return the shape with the largest predicted speedup; among equals the smallest, then the shallowest."""
    size, depth = np.unravel_index(np.nanargmax(surface.speedup), surface.speedup.shape)
    return BestShape(
        size=int(size),
        depth=int(depth),
        predicted_speedup=float(surface.speedup[size, depth]),
        expected_tokens=float(surface.expected_tokens[size, depth]),
    )


@dataclass(frozen=True, slots=True)
class ShapeSpread:
    """How sure the best shape is, given how sure the acceptance vector is.

    Args:
        chosen: the best shape for the vector itself.
        sizes, depths: lowest and highest n and d that are best within the confidence level.
        speedup: bounds of the predicted speedup of the chosen shape.
        agreement: share of the resamples whose best shape is the chosen one.
        worst_loss: largest speedup that the chosen shape gives away against a resample's own best, within the level.
    """

    chosen: BestShape
    sizes: tuple[int, int]
    depths: tuple[int, int]
    speedup: tuple[float, float]
    agreement: float
    worst_loss: float


def shape_spread(
    acceptance: AcceptanceVector, profile: HardwareProfile, tables: np.ndarray, *, level: float = 0.95
) -> ShapeSpread:
    """Choose the best shape for each vector that the same measurement might have found, and compare.

    Args:
        tables: float64 [resamples, N + 1, D + 1] from `bootstrap_tables`; N at most the largest size profiled.
        level: confidence, between 0 and 1.

    Raises:
        ValueError: for tables of sizes beyond what was profiled.
    """
    bounds = {"max_size": tables.shape[1] - 1, "max_depth": tables.shape[2] - 1}
    chosen = best_shape(speedup_surface(acceptance, profile, **bounds))
    surfaces = [_surface(table, profile) for table in tables]
    shapes = [best_shape(surface) for surface in surfaces]
    own = np.array([surface.speedup[chosen.size, chosen.depth] for surface in surfaces])
    quantiles = [(1 - level) / 2, (1 + level) / 2]

    def whole(values: list[int]) -> tuple[int, int]:
        low, high = np.quantile(values, quantiles, method="closest_observation")
        return int(low), int(high)

    low, high = np.quantile(own, quantiles)
    losses = np.array([shape.predicted_speedup for shape in shapes]) - own
    return ShapeSpread(
        chosen=chosen,
        sizes=whole([shape.size for shape in shapes]),
        depths=whole([shape.depth for shape in shapes]),
        speedup=(float(low), float(high)),
        agreement=float(np.mean([shape[:2] == chosen[:2] for shape in shapes])),
        worst_loss=float(np.quantile(losses, level)),
    )


def pair_mismatches(acceptance: AcceptanceVector, profile: HardwareProfile) -> list[str]:
    """Return why a vector and a profile are not of one pair, one sentence for each reason; empty when they are.

    A speedup from two that differ is a what-if: it answers no question about a pair that exists.
    """
    if acceptance.holds_for is None:
        return ["The acceptance vector does not say which pair it was measured on."]
    found = []
    for role in ("target", "draft"):
        measured, timed = getattr(acceptance.holds_for, role), profile.meta.get(role)
        if timed is None:
            found.append(f"The profile does not name its {role}.")
        elif timed != measured:
            found.append(f"Acceptance was measured with the {role} {measured}, times with {timed}.")
    return found


def predicted_speedup(tree: TokenTree, acceptance: AcceptanceVector, profile: HardwareProfile) -> float:
    """Return F(T) / (t(n) + d c) for this very tree, against autoregressive decoding of the same target.

    c is the draft's cost at the mean size of the tree's levels, as for the surface, so the two can be compared.

    Raises:
        ValueError: when the tree is larger than what was profiled.
    """
    return expected_tokens(tree, acceptance) / float(step_cost(tree.size, tree.depth, profile))
