"""The fastest tree, from expected tokens and measured times. N = largest tree size, D = largest depth in edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .acceptance import AcceptanceVector
from .bootstrap import LEVEL, interval
from .grown_trees import GrownTrees, grown_by_depth
from .optimal_trees import expected_tokens_table, optimal_tree
from .profile import HardwareProfile
from .step_time import autoregressive_sec, step_seconds
from .tree import TokenTree
from .tree_search import REACH

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, eq=False)
class SpeedupSurface:
    """Predicted speedup of the best tree of every size and depth.

    Args:
        expected_tokens: float64 [N + 1, D + 1], tokens per step at [n, d]; -inf where no such tree exists.
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

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each shape that exists: `size`, `depth`, `expected_tokens` and `speedup`."""
        import pandas as pd

        sizes, depths = shapes = np.nonzero(np.isfinite(self.speedup))
        values = {"expected_tokens": self.expected_tokens[shapes], "speedup": self.speedup[shapes]}
        return pd.DataFrame({"size": sizes, "depth": depths, **values})


class BestShape(NamedTuple):
    """The shape with the largest predicted speedup; size 1 means that speculation does not pay."""

    size: int
    depth: int
    predicted_speedup: float
    expected_tokens: float


def paper_step_cost(size: int | np.ndarray, depth: int | np.ndarray, profile: HardwareProfile) -> np.ndarray:
    """Return t(n) + d c, the time of one step ÷ the time of one autoregressive pass, as the paper has it (§3.3).

    c is one draft pass over a single token. n and d: any shapes that broadcast.
    """
    return profile.t(np.asarray(size)) + np.asarray(depth) * profile.c


def speedup_surface(
    acceptance: AcceptanceVector,
    profile: HardwareProfile,
    *,
    max_size: int | None = None,
    max_depth: int = 24,
    context: float | None = None,
    greedy: bool | None = None,
    paper: bool = False,
) -> SpeedupSurface:
    """Return the predicted speedup of the best tree of every size and depth, against autoregressive decoding.

    Tokens per step are those of `grown_by_depth`. A step takes the time of its target pass, of a draft pass over each
    level's own width, and of the rest (`step_time`).

    Args:
        max_size: N; None for the largest size profiled.
        context: tokens in the cache; None for as many as the profile was timed with.
        greedy: whether steps are taken at temperature 0; None as the vector was measured.
        paper: the paper's formula instead, G(n, d) / (t(n) + d c).
    """
    max_size = profile.max_size if max_size is None else max_size
    if max_size > profile.max_size:
        raise ValueError(f"max_size: found {max_size}, expected at most {profile.max_size}, the largest size profiled")
    if not paper:
        trees = grown_by_depth(acceptance, max_size=max_size, max_depth=max_depth)
        return surface_of(trees, profile, context=context, greedy=greedy)
    table = expected_tokens_table(acceptance, max_size=max_size, max_depth=max_depth)
    return _divided(table, paper_step_cost(np.arange(1, max_size + 1)[:, None], np.arange(max_depth + 1), profile))


def surface_within_reach(
    acceptance: AcceptanceVector, profile: HardwareProfile, *, max_size: int | None = None, **options
) -> SpeedupSurface:
    """Return the speedup surface, up to n = REACH where more is too much to search."""
    largest = profile.max_size if max_size is None else min(profile.max_size, max_size)
    try:
        return speedup_surface(acceptance, profile, max_size=largest, **options)
    except ValueError:
        if largest <= REACH:
            raise
        return speedup_surface(acceptance, profile, max_size=REACH, **options)


def surface_of(
    trees: GrownTrees, profile: HardwareProfile, *, context: float | None = None, greedy: bool | None = None
) -> SpeedupSurface:
    """Return the predicted speedup of grown trees; the options are those of `speedup_surface`."""
    return _divided(trees.tokens * trees.correction, _relative_cost(trees, profile, context, greedy))


def is_greedy(acceptance: AcceptanceVector) -> bool:
    """Whether a vector was measured at temperature 0; assumed where it does not say."""
    return acceptance.holds_for is None or acceptance.holds_for.temperature == 0


def _relative_cost(
    trees: GrownTrees, profile: HardwareProfile, context: float | None = None, greedy: bool | None = None
) -> np.ndarray:
    """Return seconds of a step ÷ of an autoregressive one for n = 1 .. N, float64 [N, D + 1]."""
    greedy = is_greedy(trees.acceptance) if greedy is None else greedy
    widths = trees.widths[1:]
    sizes = np.broadcast_to(np.arange(1, len(widths) + 1)[:, None], widths.shape[:2])
    seconds = step_seconds(sizes, widths, profile, context=context, greedy=greedy)
    return seconds / autoregressive_sec(profile, context=context, greedy=greedy)


def _divided(tokens: np.ndarray, cost: np.ndarray) -> SpeedupSurface:
    """Divide tokens per step, float64 [N + 1, D + 1], by the cost of each shape, float64 [N, D + 1]."""
    speedup = np.full_like(tokens, np.nan)
    speedup[1:] = np.where(np.isneginf(tokens[1:]), np.nan, tokens[1:] / cost)
    return SpeedupSurface(expected_tokens=tokens, speedup=speedup)


def best_shape(surface: SpeedupSurface) -> BestShape:
    """Return the shape with the largest predicted speedup; among equals the smallest, then the shallowest."""
    size, depth = np.unravel_index(np.nanargmax(surface.speedup), surface.speedup.shape)
    return BestShape(
        size=int(size),
        depth=int(depth),
        predicted_speedup=float(surface.speedup[size, depth]),
        expected_tokens=float(surface.expected_tokens[size, depth]),
    )


def fastest_of_sizes(surface: SpeedupSurface, least: int, most: int) -> BestShape | None:
    """Return the shape of `least` to `most` nodes with the largest predicted speedup; None where none exists."""
    rows = slice(least, most + 1)
    if not np.isfinite(surface.speedup[rows]).any():
        return None
    best = best_shape(SpeedupSurface(surface.expected_tokens[rows], surface.speedup[rows]))
    return best._replace(size=best.size + least)


class Plan(NamedTuple):
    """The shape that is predicted to be the fastest, and its optimal tree."""

    shape: BestShape
    tree: TokenTree


def plan_on(surface: SpeedupSurface, acceptance: AcceptanceVector, profile: HardwareProfile) -> Plan:
    """Choose the fastest tree of a surface that has at most `profile.most_leaves` leaves."""
    shape, most = best_shape(surface), profile.most_leaves
    while True:
        tree = optimal_tree(acceptance, size=shape.size, depth=shape.depth)
        if most is None or tree.leaves <= most:
            return Plan(shape, tree)
        smaller = fastest_of_sizes(surface, 1, min(tree.size - 1, tree.size * most // tree.leaves))
        assert smaller is not None, "the root alone has a speedup"
        shape = smaller


def plan_tree(
    acceptance: AcceptanceVector, profile: HardwareProfile, *, max_size: int | None = None, max_depth: int = 24
) -> TokenTree:
    """Return the optimal tree of the size and depth predicted to be the fastest; see `plan_on`."""
    surface = surface_within_reach(acceptance, profile, max_size=max_size, max_depth=max_depth)
    return plan_on(surface, acceptance, profile).tree


@dataclass(frozen=True, slots=True)
class ShapeSpread:
    """How certain the best size and depth are, given the sample behind the acceptance vector.

    Args:
        sizes, depths: lowest and highest n and d that are best within the confidence level.
        speedup: bounds of the predicted speedup of the chosen shape.
        agreement: share of the resamples whose best shape is the chosen one.
        worst_loss: largest speedup lost against each resample's own best, within the level.
    """

    chosen: BestShape
    sizes: tuple[int, int]
    depths: tuple[int, int]
    speedup: tuple[float, float]
    agreement: float
    worst_loss: float


def size_and_depth_spread(acceptance: AcceptanceVector, profile: HardwareProfile, tables: np.ndarray) -> ShapeSpread:
    """Choose the best shape for each resampled vector, by its `bootstrap_tables`, and compare."""
    trees = grown_by_depth(acceptance, max_size=tables.shape[1] - 1, max_depth=tables.shape[2] - 1)
    cost = _relative_cost(trees, profile)
    chosen = best_shape(_divided(trees.tokens * trees.correction, cost))
    surfaces = [_divided(resampled * trees.correction, cost) for resampled in tables]
    shapes = [best_shape(surface) for surface in surfaces]
    own = np.array([surface.speedup[chosen.size, chosen.depth] for surface in surfaces])
    losses = np.array([shape.predicted_speedup for shape in shapes]) - own
    low, high = interval(np.array([shape[:2] for shape in shapes]), whole=True).astype(int)
    return ShapeSpread(
        chosen=chosen,
        sizes=(int(low[0]), int(high[0])),
        depths=(int(low[1]), int(high[1])),
        speedup=tuple(interval(own).tolist()),
        agreement=float(np.mean([shape[:2] == chosen[:2] for shape in shapes])),
        worst_loss=float(np.quantile(losses, LEVEL)),
    )


def more_ranks_wanted(tree: TokenTree, acceptance: AcceptanceVector) -> str | None:
    """Say that a tree uses every rank of its vector, so that more might help."""
    if len(acceptance) > 1 and int(tree.child_ranks.max()) >= len(acceptance) and acceptance.reject > 0:
        return (
            f"The tree uses all {len(acceptance)} ranks of the acceptance vector: measured over more ranks (measure "
            f"--width {2 * len(acceptance)}) a better one may be found."
        )
    return None


def pair_mismatches(acceptance: AcceptanceVector, profile: HardwareProfile) -> list[str]:
    """Return why a vector and a profile are not of one pair, one sentence for each reason."""
    if acceptance.holds_for is None:
        return ["The acceptance vector does not say which pair it was measured on."]
    sentences = []
    for role in ("target", "draft"):
        measured, timed = getattr(acceptance.holds_for, role), profile.meta.get(role)
        if timed is None:
            sentences.append(f"The profile does not name its {role}.")
        elif timed != measured:
            sentences.append(f"Acceptance was measured with the {role} {measured}, times with {timed}.")
    return sentences


def smallest_good_shape(surface: SpeedupSurface) -> BestShape:
    """Return the smallest tree whose predicted speedup is within 2 % of the best; among equals the shallowest."""
    good = surface.speedup >= 0.98 * np.nanmax(surface.speedup)
    size = int(np.flatnonzero(good.any(axis=1))[0])
    depths = np.flatnonzero(good[size])
    depth = int(depths[np.argmax(surface.speedup[size, depths])])
    return BestShape(size, depth, float(surface.speedup[size, depth]), float(surface.expected_tokens[size, depth]))
