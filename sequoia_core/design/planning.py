"""The fastest tree, from expected tokens and measured times. N = largest tree size, D = largest depth in edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .acceptance import AcceptanceVector
from .optimal_trees import expected_tokens_table, is_monotone, optimal_tree, rows_by_levels_left
from .profile import HardwareProfile
from .replay import replay_while_growing
from .step_time import autoregressive_sec, step_seconds
from .tree import TokenTree
from .tree_search import REACH, best_first
from .what_if import isotonic

if TYPE_CHECKING:
    import pandas as pd

REPLAYED_SIZES = 24  # at each depth


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

    Tokens per step are G(n, d), corrected by what such trees yield along the measured texts, where the vector keeps
    them (`replay`). A step takes the time of its target pass, of a draft pass over each level's own width, and of the
    rest (`step_time`). Where ranks do not always decrease, widths are those of the closest vector whose ranks do.

    Args:
        max_size: N; None for the largest size profiled.
        context: tokens in the cache; None for as many as the profile was timed with.
        greedy: whether steps are taken at temperature 0; None as the vector was measured.
        paper: the paper's formula instead, G(n, d) / (t(n) + d c).
    """
    max_size = profile.max_size if max_size is None else max_size
    if max_size > profile.max_size:
        raise ValueError(f"max_size: found {max_size}, expected at most {profile.max_size}, the largest size profiled")
    table = expected_tokens_table(acceptance, max_size=max_size, max_depth=max_depth)
    sizes = np.arange(1, max_size + 1)
    if paper:
        return surface_of(table, paper_step_cost(sizes[:, None], np.arange(max_depth + 1), profile))
    widths = shape_widths(acceptance, max_size=max_size, max_depth=max_depth)
    greedy = is_greedy(acceptance) if greedy is None else greedy
    cost = relative_cost(widths, profile, greedy=greedy, context=context)
    return surface_of(table * text_correction(table, acceptance), cost)


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


def relative_cost(
    widths: np.ndarray, profile: HardwareProfile, *, greedy: bool, context: float | None = None
) -> np.ndarray:
    """Return seconds of a step of `shape_widths` ÷ of an autoregressive one for n = 1 .. N, float64 [N, D + 1]."""
    widths = widths[1:]
    sizes = np.broadcast_to(np.arange(1, len(widths) + 1)[:, None], widths.shape[:2])
    seconds = step_seconds(sizes, widths, profile, context=context, greedy=greedy)
    return seconds / autoregressive_sec(profile, context=context, greedy=greedy)


def is_greedy(acceptance: AcceptanceVector) -> bool:
    """Whether a vector was measured at temperature 0; assumed where it does not say."""
    return acceptance.holds_for is None or acceptance.holds_for.temperature == 0


def surface_of(tokens: np.ndarray, cost: np.ndarray) -> SpeedupSurface:
    """Divide tokens per step, float64 [N + 1, D + 1], by the cost of each shape, float64 [N, D + 1]."""
    speedup = np.full_like(tokens, np.nan)
    speedup[1:] = np.where(np.isneginf(tokens[1:]), np.nan, tokens[1:] / cost)
    return SpeedupSurface(expected_tokens=tokens, speedup=speedup)


def shape_widths(acceptance: AcceptanceVector, *, max_size: int, max_depth: int) -> np.ndarray:
    """Return the nodes of each draft pass for the best tree of every shape, int64 [N + 1, D + 1, D].

    At [n, d, l] the nodes at depth l that have children; meaningless where no such tree exists.
    """
    falling = _falling(acceptance)
    widths = np.zeros((max_size + 1, max_depth + 1, max_depth), dtype=np.int64)
    for depth in range(1, min(max_depth, max_size - 1) + 1):
        parents, ranks, _ = best_first(rows_by_levels_left(falling, depth), max_size)
        widths[1 : len(parents) + 1, depth:, :depth] = _inner_by_level(parents, ranks, depth)[:, None]
        widths[len(parents) + 1 :, depth:] = widths[len(parents), depth]
        if depth > 1 and np.array_equal(widths[:, depth], widths[:, depth - 1]):
            break  # no deeper level is ever used
    return widths


def _inner_by_level(parents: np.ndarray, ranks: np.ndarray, depth: int) -> np.ndarray:
    """Return for the trees of the first 1 .. m nodes how many have children at each depth, int64 [m, depth]."""
    depths = np.zeros(len(parents), dtype=np.int64)
    for node, parent in enumerate(parents.tolist()[1:], start=1):
        depths[node] = depths[parent] + 1
    became = np.zeros((len(parents), depth), dtype=np.int64)
    eldest = np.flatnonzero(ranks == 1)
    became[eldest, depths[eldest] - 1] = 1
    return became.cumsum(axis=0)


def text_correction(table: np.ndarray, acceptance: AcceptanceVector) -> np.ndarray:
    """Return what trees yield along the measured texts ÷ G(n, d) of them, float64 [N + 1, D + 1]; 1 without texts."""
    correction = np.ones_like(table)
    if acceptance.prompt_ranks is None:
        return correction
    falling, top = _falling(acceptance), table.shape[0] - 1
    sizes = np.unique(np.geomspace(1, top, REPLAYED_SIZES).round().astype(int))
    for depth in range(1, table.shape[1]):
        if depth > 1 and np.array_equal(table[:, depth], table[:, depth - 1]):
            correction[:, depth] = correction[:, depth - 1]
            continue
        parents, ranks, scores = best_first(rows_by_levels_left(falling, depth), top)
        known = sizes[sizes <= len(parents)]
        texts = replay_while_growing(parents, ranks, known.tolist(), acceptance)
        assert texts is not None
        ratio = [text.tokens_per_step for text in texts] / scores.cumsum()[known - 1]
        correction[1:, depth] = np.interp(np.arange(1, top + 1), known, ratio)
    return correction


def _falling(acceptance: AcceptanceVector) -> AcceptanceVector:
    """Return the closest vector whose ranks never increase, for which best-first grows the best trees."""
    return acceptance if is_monotone(acceptance) else isotonic(acceptance)


def best_shape(surface: SpeedupSurface) -> BestShape:
    """Return the shape with the largest predicted speedup; among equals the smallest, then the shallowest."""
    size, depth = np.unravel_index(np.nanargmax(surface.speedup), surface.speedup.shape)
    return BestShape(
        size=int(size),
        depth=int(depth),
        predicted_speedup=float(surface.speedup[size, depth]),
        expected_tokens=float(surface.expected_tokens[size, depth]),
    )


def plan_tree(
    acceptance: AcceptanceVector, profile: HardwareProfile, *, max_size: int | None = None, max_depth: int = 24
) -> TokenTree:
    """Return the optimal tree of the size and depth predicted to be the fastest, with at most `profile.most_leaves`."""
    most = profile.most_leaves
    while True:
        best = best_shape(surface_within_reach(acceptance, profile, max_size=max_size, max_depth=max_depth))
        tree = optimal_tree(acceptance, size=best.size, depth=best.depth)
        if most is None or tree.leaves <= most:
            return tree
        max_size = min(tree.size - 1, tree.size * most // tree.leaves)


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


def size_and_depth_spread(
    acceptance: AcceptanceVector, profile: HardwareProfile, tables: np.ndarray, *, level: float = 0.95
) -> ShapeSpread:
    """Choose the best shape for each resampled vector, by its `bootstrap_tables`, and compare."""
    bounds = {"max_size": tables.shape[1] - 1, "max_depth": tables.shape[2] - 1}
    cost = relative_cost(shape_widths(acceptance, **bounds), profile, greedy=is_greedy(acceptance))
    table = expected_tokens_table(acceptance, **bounds)
    correction = text_correction(table, acceptance)
    chosen = best_shape(surface_of(table * correction, cost))
    surfaces = [surface_of(resampled * correction, cost) for resampled in tables]
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


def smallest_good_shape(surface: SpeedupSurface, *, within: float = 0.02) -> BestShape:
    """Return the smallest tree whose predicted speedup is within a share of the best; among equals the shallowest."""
    good = surface.speedup >= (1 - within) * np.nanmax(surface.speedup)
    size = int(np.flatnonzero(good.any(axis=1))[0])
    depths = np.flatnonzero(good[size])
    depth = int(depths[np.argmax(surface.speedup[size, depths])])
    return BestShape(size, depth, float(surface.speedup[size, depth]), float(surface.expected_tokens[size, depth]))
