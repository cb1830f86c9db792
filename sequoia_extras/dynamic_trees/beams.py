"""Find the best beam for engines that grow every step's tree themselves, as EAGLE-2 does.

Such engines take three numbers. In each pass, the draft reads the best `width` nodes of the newest level, each of which
gets `width` children. After `depth` passes, the best `size` nodes are verified, including the root.

m = prompts, t = trees, D = largest depth, N = largest size, k = ranks.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from sequoia_core.acceptance.calibration import ChanceTables
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.planning.plan import is_greedy
from sequoia_core.planning.prediction import Prediction, predict_prompts
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.planning.step_time import autoregressive_sec, step_parts
from sequoia_core.trees.plain import chain_tree
from sequoia_core.trees.replay import replay

from .expansion import DraftChances, TreeBounds
from .recipes import acceptance_chances, grow_on_rows
from .top_k_expansion import LevelExpansion

SELECTION = "most likely"
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
MAX_DEPTH = 16
TREES = 120  # number of trees grown for each width


class Beam(NamedTuple):
    """A beam and its predicted speed. `size` includes the root."""

    width: int
    depth: int
    size: int
    prediction: Prediction


def candidates(width: int, depth: Any) -> Any:
    """Return the number of nodes that a beam considers, including the root; engines reject a larger size."""
    return 1 + width + (depth - 1) * width**2


def best_beams(acceptance: AcceptanceVector, profile: HardwareProfile) -> list[Beam]:
    """Return the fastest beam of each width, fastest first."""
    search = BeamSearch(acceptance, profile)
    beams: list[Beam] = []
    for width in WIDTHS[: bisect_right(WIDTHS, search.rows.shape[-1])]:
        tokens = search.tokens(width)
        speeds = search.speeds(width, tokens)
        depth, size = divmod(int(speeds.argmax()), speeds.shape[1])
        if depth:  # otherwise, the profile's sizes are too small for this width
            beams.append(Beam(width, depth, size, search.predict(width, depth, size, tokens[depth, size])))
        if len(beams) - beams.index(max(beams, key=_speed)) > 3:  # the last three widths were slower
            break
    return sorted(beams, key=_speed, reverse=True)


def _speed(beam: Beam) -> float:
    return beam.prediction.speedup.value


class BeamSearch:
    """Predicts the speed of beams of every width, depth and size.

    A beam's tokens per step are those of a chain of the same depth on the measured texts, times the beam's gain over
    the chain if both are grown on the calibration's rows. Without a calibration, every node has the mean probabilities
    of its depth.

    Attributes:
        rows: float64 [t, D, w, k], the draft's probabilities in each pass of each tree. Trees of all widths share them,
            so that noise hardly affects the comparison.
        positions: int64 [m].
        steps: float64 [m, D + 1], steps that each prompt's positions take with a chain of each depth.
    """

    def __init__(
        self, acceptance: AcceptanceVector, profile: HardwareProfile, *, trees: int = TREES, seed: int = 0
    ) -> None:
        self.profile = profile
        self.greedy = is_greedy(acceptance)
        levels = acceptance.levels[np.minimum(np.arange(MAX_DEPTH), len(acceptance.levels) - 1)]
        # A head accepts much less beyond the depths that were measured than at the last of these.
        self.max_depth = MAX_DEPTH if acceptance.by_depth is None else len(acceptance.levels)
        first = levels[:, 0]
        texts = [replay(chain_tree(depth), acceptance) for depth in range(MAX_DEPTH + 1)]
        self.positions = np.ones(1) if texts[0] is None else texts[0].tokens
        self.steps = np.array([text.steps for text in texts if text is not None]).T
        if texts[0] is None:
            self.steps = 1.0 / _chain_tokens(first)[None]
        self.rows = np.repeat(levels[None, :, None], WIDTHS[-1], axis=2)
        self.chances: ChanceTables | None = None
        if acceptance.calibration is not None:
            rows = acceptance.calibration.rows
            picks = np.random.default_rng(seed).integers(len(rows), size=(trees, MAX_DEPTH, WIDTHS[-1]))
            self.rows = rows[picks]
            self.chances = acceptance.calibration.tables()
            # The calibration is an average over all measured depths. The vector may be for drawn tokens.
            mean = acceptance.levels.mean(axis=0)
            selected = first * acceptance.calibration.expected(SELECTION)[0] / mean[0]
            self.steps = self.steps * _chain_tokens(first) / _chain_tokens(selected)
            self.scale = np.append(1.0, np.cumprod(levels.sum(axis=1) / mean.sum()))
        self.chain_tokens = self.positions.sum() / self.steps.sum(axis=0)

    def speeds(self, width: int, tokens: np.ndarray) -> np.ndarray:
        """Return the predicted speedup by depth and size, float64 [D + 1, N + 1]; 0 where there is no beam."""
        depths, sizes = np.indices(tokens.shape)
        plain = autoregressive_sec(self.profile, greedy=self.greedy)
        seconds = self._parts(width, depths, sizes, self.profile).sum(axis=0)
        exists = (depths >= 1) & (depths <= self.max_depth) & (np.maximum(depths, width) < sizes)
        exists &= sizes <= candidates(width, depths)
        return np.where(exists, tokens * plain / seconds, 0.0)

    def predict(self, width: int, depth: int, size: int, tokens: float) -> Prediction:
        steps = self.steps[:, depth] * self.chain_tokens[depth] / tokens
        parts = partial(self._parts, width, np.array([depth]), np.array([size]))
        return predict_prompts(self.positions, steps, parts, self.profile, greedy=self.greedy)

    def _parts(self, width: int, depths: Any, sizes: Any, profile: HardwareProfile) -> np.ndarray:
        """Return the seconds of verifying, drafting and overhead, float64 [3, *S], for depths and sizes, int64 [*S]."""
        passes = np.where(np.arange(MAX_DEPTH) < depths[..., None], width, 0)
        passes[..., 0] = np.minimum(passes[..., 0], 1)  # the first pass reads the root
        return np.array(step_parts(np.maximum(sizes, 1), passes, profile, greedy=self.greedy, growing=True))

    def tokens(self, width: int) -> np.ndarray:
        """Return tokens per step by depth and size, float64 [D + 1, N + 1]."""
        grown = self._grow(width, min(candidates(width, MAX_DEPTH), self.profile.max_size))
        return grown * (self.chain_tokens / self._grown_chain)[:, None]

    @cached_property
    def _grown_chain(self) -> np.ndarray:
        """A chain's tokens per step on the rows, float64 [D + 1], as `_grow` returns them."""
        return np.diagonal(self._grow(1, MAX_DEPTH + 1), offset=1)

    def _grow(self, width: int, max_size: int) -> np.ndarray:
        """Return the sum of all trees' tokens per step on the rows, as `tokens` does.

        The beam of depth d is a deeper one down to depth d. Its tree consists of the best nodes.
        """
        bounds = TreeBounds(max_size=candidates(width, MAX_DEPTH), max_depth=MAX_DEPTH, beam=width, branch=width)
        expansion = LevelExpansion(bounds, DraftChances())
        tokens = np.zeros((MAX_DEPTH + 1, max_size + 1))
        for rows in self.rows:
            nodes, _ = grow_on_rows(expansion, bounds, rows, np.random.default_rng(0))
            accepted = nodes.scores
            if self.chances is not None:
                accepted = acceptance_chances(nodes, self.chances, SELECTION) * self.scale[nodes.depths]
            for depth in range(MAX_DEPTH + 1):
                best = accepted[nodes.depths <= depth][:max_size].cumsum()
                tokens[depth, 1:] += np.pad(best, (0, max_size - len(best)), mode="edge")
        return tokens


def _chain_tokens(first: np.ndarray) -> np.ndarray:
    """Return expected tokens per step of a chain of each depth, float64 [D + 1].

    `first`, float64 [D], is the probability that the first child at each depth is accepted.
    """
    return np.cumsum(np.append(1.0, np.cumprod(first)))
