"""Plan the fastest tree from expected tokens and measured times. N = largest tree size, D = largest depth in edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..acceptance.bootstrap import CONFIDENCE_LEVEL, interval
from ..acceptance.vector import AcceptanceVector
from ..trees.grown import GrownTrees, grow_best_trees
from ..trees.optimal import SEARCHABLE_SIZE
from ..trees.tree import TokenTree
from .profile import HardwareProfile
from .step_time import autoregressive_sec, step_seconds

if TYPE_CHECKING:
    import pandas as pd

GOOD_SHARE = 0.98  # a speedup of at least this share of the best one is near the best


@dataclass(frozen=True, slots=True, eq=False)
class SpeedupSurface:
    """Predicted speedup of the best tree of every size and depth.

    Args:
        expected_tokens: float64 [N + 1, D + 1], tokens per step, indexed [n, d]; -inf where no such tree exists.
        speedup: float64 [N + 1, D + 1], relative to autoregressive decoding of the same target; NaN where no such tree
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

    def shape(self, size: int | np.integer, depth: int | np.integer) -> BestShape:
        """Return the entry for one size and depth."""
        at = int(size), int(depth)
        return BestShape(*at, float(self.speedup[at]), float(self.expected_tokens[at]))

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row per existing shape: `size`, `depth`, `expected_tokens` and `speedup`."""
        import pandas as pd

        sizes, depths = shapes = np.nonzero(np.isfinite(self.speedup))
        values = {"expected_tokens": self.expected_tokens[shapes], "speedup": self.speedup[shapes]}
        return pd.DataFrame({"size": sizes, "depth": depths, **values})


class BestShape(NamedTuple):
    """The shape with the largest predicted speedup; size 1 means that speculation is not worth it."""

    size: int
    depth: int
    predicted_speedup: float
    expected_tokens: float


def paper_step_cost(size: int | np.ndarray, depth: int | np.ndarray, profile: HardwareProfile) -> np.ndarray:
    """Return t(n) + d c, the paper's cost of a step in autoregressive passes (§3.3); n and d must be broadcastable.

    c is the cost of a one-token draft pass.
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
    """Return the predicted speedup of the best tree of every size and depth, relative to autoregressive decoding.

    Tokens per step come from `grow_best_trees`. Step times come from `step_time`: the target pass, one draft pass per
    level, and overhead.

    Args:
        max_size: N; None for the largest size profiled.
        context: number of tokens in the cache; None for the profile's number.
        greedy: whether to decode at temperature 0; None for the vector's setting.
        paper: use the paper's formula instead, G(n, d) / (t(n) + d c).
    """
    trees = grow_profiled_trees(acceptance, profile, max_size=max_size, max_depth=max_depth)
    return surface_from_trees(trees, profile, context=context, greedy=greedy, paper=paper)


def grow_profiled_trees(
    acceptance: AcceptanceVector, profile: HardwareProfile, *, max_size: int | None = None, max_depth: int = 24
) -> GrownTrees:
    """Find the best trees of up to `max_size` nodes, or of up to the largest profiled size if None."""
    max_size = profile.max_size if max_size is None else max_size
    if max_size > profile.max_size:
        raise ValueError(f"max_size: found {max_size}, expected at most {profile.max_size}, the largest size profiled")
    return grow_best_trees(acceptance, max_size=max_size, max_depth=max_depth)


def grow_searchable_trees(
    acceptance: AcceptanceVector, profile: HardwareProfile, *, max_size: int | None = None, max_depth: int = 24
) -> GrownTrees:
    """Find the best trees of the profiled sizes; only up to `SEARCHABLE_SIZE` if the full search is too slow."""
    largest = profile.max_size if max_size is None else min(profile.max_size, max_size)
    try:
        return grow_best_trees(acceptance, max_size=largest, max_depth=max_depth)
    except ValueError:
        if largest <= SEARCHABLE_SIZE:
            raise
        return grow_best_trees(acceptance, max_size=SEARCHABLE_SIZE, max_depth=max_depth)


def surface_from_trees(
    trees: GrownTrees,
    profile: HardwareProfile,
    *,
    context: float | None = None,
    greedy: bool | None = None,
    paper: bool = False,
) -> SpeedupSurface:
    """Return the predicted speedup of the best trees; for the options, see `speedup_surface`."""
    if not paper:
        return _surface(trees.tokens * trees.correction, _relative_cost(trees, profile, context, greedy))
    size, depth = trees.tokens.shape
    return _surface(trees.tokens, paper_step_cost(np.arange(1, size)[:, None], np.arange(depth), profile))


def is_greedy(acceptance: AcceptanceVector) -> bool:
    """Return whether a vector was measured at temperature 0; True if the vector does not record the temperature."""
    return acceptance.holds_for is None or acceptance.holds_for.temperature == 0


def _relative_cost(
    trees: GrownTrees, profile: HardwareProfile, context: float | None = None, greedy: bool | None = None
) -> np.ndarray:
    """Return the step time divided by that of an autoregressive step for n = 1 .. N, float64 [N, D + 1]."""
    greedy = is_greedy(trees.acceptance) if greedy is None else greedy
    widths = trees.widths[1:]
    sizes = np.broadcast_to(np.arange(1, len(widths) + 1)[:, None], widths.shape[:2])
    seconds = step_seconds(sizes, widths, profile, context=context, greedy=greedy)
    return seconds / autoregressive_sec(profile, context=context, greedy=greedy)


def _surface(tokens: np.ndarray, cost: np.ndarray) -> SpeedupSurface:
    """Divide tokens per step, float64 [N + 1, D + 1], by the cost of each shape, float64 [N, D + 1]."""
    speedup = np.full_like(tokens, np.nan)
    speedup[1:] = np.where(np.isneginf(tokens[1:]), np.nan, tokens[1:] / cost)
    return SpeedupSurface(expected_tokens=tokens, speedup=speedup)


def best_shape(surface: SpeedupSurface) -> BestShape:
    """Return the shape with the largest predicted speedup; ties go to the smallest, then the shallowest."""
    size, depth = np.unravel_index(np.nanargmax(surface.speedup), surface.speedup.shape)
    return surface.shape(size, depth)


def fastest_within_sizes(surface: SpeedupSurface, least: int, most: int) -> BestShape | None:
    """Return the shape with `least` to `most` nodes that has the largest predicted speedup; None if there is none."""
    speedup = surface.speedup[least : most + 1]
    if not np.isfinite(speedup).any():
        return None
    size, depth = np.unravel_index(np.nanargmax(speedup), speedup.shape)
    return surface.shape(least + size, depth)


class Plan(NamedTuple):
    """The shape predicted to be fastest, and the optimal tree of that shape."""

    shape: BestShape
    tree: TokenTree


def choose_plan(surface: SpeedupSurface, trees: GrownTrees, profile: HardwareProfile) -> Plan:
    """Choose the fastest tree with at most `profile.max_leaves` leaves from a surface."""
    largest = surface.max_size
    while True:
        shape = fastest_within_sizes(surface, 1, largest)
        assert shape is not None, "the root alone has a speedup"
        tree = trees.tree(shape.size, shape.depth)
        if profile.max_leaves is None or tree.leaves <= profile.max_leaves:
            return Plan(shape, tree)
        largest = min(tree.size - 1, tree.size * profile.max_leaves // tree.leaves)


def plan_tree(
    acceptance: AcceptanceVector, profile: HardwareProfile, *, max_size: int | None = None, max_depth: int = 24
) -> TokenTree:
    """Return the optimal tree of the size and depth predicted to be fastest; see `choose_plan`."""
    trees = grow_searchable_trees(acceptance, profile, max_size=max_size, max_depth=max_depth)
    surface = surface_from_trees(trees, profile)
    return choose_plan(surface, trees, profile).tree


@dataclass(frozen=True, slots=True)
class ShapeSpread:
    """Uncertainty of the best size and depth, given the sample behind the acceptance vector.

    Args:
        sizes, depths: lowest and highest best n and d within the confidence level.
        speedup: bounds on the predicted speedup of the chosen shape.
        agreement: share of resamples whose best shape is the chosen one.
        worst_loss: largest loss of speedup relative to a resample's best shape, within the confidence level.
    """

    chosen: BestShape
    sizes: tuple[int, int]
    depths: tuple[int, int]
    speedup: tuple[float, float]
    agreement: float
    worst_loss: float


def size_and_depth_spread(acceptance: AcceptanceVector, profile: HardwareProfile, tables: np.ndarray) -> ShapeSpread:
    """Compare the chosen shape with the best shape for each resampled vector of `bootstrap_tables`."""
    trees = grow_best_trees(acceptance, max_size=tables.shape[1] - 1, max_depth=tables.shape[2] - 1)
    cost = _relative_cost(trees, profile)
    chosen = best_shape(_surface(trees.tokens * trees.correction, cost))
    surfaces = [_surface(resampled * trees.correction, cost) for resampled in tables]
    shapes = [best_shape(surface) for surface in surfaces]
    speedups = np.array([surface.speedup[chosen[:2]] for surface in surfaces])
    losses = np.array([shape.predicted_speedup for shape in shapes]) - speedups
    sizes, depths = interval(np.array([shape[:2] for shape in shapes]), whole=True).astype(int).T.tolist()
    return ShapeSpread(
        chosen=chosen,
        sizes=tuple(sizes),
        depths=tuple(depths),
        speedup=tuple(interval(speedups).tolist()),
        agreement=float(np.mean([shape[:2] == chosen[:2] for shape in shapes])),
        worst_loss=float(np.quantile(losses, CONFIDENCE_LEVEL)),
    )


def suggest_more_ranks(tree: TokenTree, acceptance: AcceptanceVector) -> str | None:
    """Return a hint if a tree uses every rank of its vector, so that measuring more ranks might help."""
    ranks = len(acceptance)
    if ranks > 1 and int(tree.child_ranks.max()) >= ranks and acceptance.reject > 0:
        return (
            f"The tree uses all {ranks} ranks of the acceptance vector: measuring more ranks (measure --width "
            f"{2 * ranks}) may give a better tree."
        )
    return None


def pair_mismatches(acceptance: AcceptanceVector, profile: HardwareProfile) -> list[str]:
    """Return a sentence for each reason why a vector and a profile do not belong to the same pair."""
    if acceptance.holds_for is None:
        return ["The acceptance vector does not say which pair it was measured for."]
    sentences = []
    for role in ("target", "draft"):
        measured = getattr(acceptance.holds_for, role)
        timed = profile.meta.get(role)
        if timed is None:
            sentences.append(f"The profile does not name its {role}.")
        elif timed != measured:
            sentences.append(f"Acceptance was measured with the {role} {measured}, times with {timed}.")
    return sentences


def smallest_good_shape(surface: SpeedupSurface) -> BestShape:
    """Return the smallest tree whose predicted speedup is at least `GOOD_SHARE` of the best, at its fastest depth."""
    good = surface.speedup >= GOOD_SHARE * np.nanmax(surface.speedup)
    size = np.flatnonzero(good.any(axis=1))[0]
    return surface.shape(size, np.nanargmax(surface.speedup[size]))
