"""Recipes for growing trees by calibrated probabilities and profiled costs, and their expected speed. k = ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sequoia_core.acceptance.calibration import Calibration, ChanceTables
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.planning.plan import best_shape, grow_profiled_trees, surface_from_trees
from sequoia_core.planning.prediction import Prediction, predict_prompts
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.planning.step_time import step_parts, step_time
from sequoia_core.trees.optimal import expected_tokens, node_scores, optimal_tree
from sequoia_core.trees.tree import TokenTree

from .expansion import Nodes, TokenCosts, TreeBounds
from .running_lookup import LookUp, with_conditional_chances
from .sampled_expansion import SampledExpansion
from .step_costs import StepCosts
from .top_k_expansion import TopKExpansion

TREES_PER_PROMPT = 8  # number of trees grown per prompt for a prediction
TRIAL_STEPS = 60  # number of trees grown per round of an estimate
# Dinkelbach iterations, each using the rate that the previous one achieved. Further iterations change only the noise.
RATE_ROUNDS = 4
TAIL_TOKENS = 8  # the mass missing from a calibration row is spread equally over this many tokens
THRESHOLD_STEP = 1.1  # the threshold is multiplied by this after a full tree and divided by it after any other
MIN_THRESHOLD = 1e-4
GAIN_STEP = 0.02  # relative change per unexpected token; correcting a factor of two takes about fifty steps
GAIN_LIMITS = (0.25, 1.25)
# Probabilities of looked-up tokens were fitted at low temperatures; the gain drops by this per unit of temperature.
LOOKUP_GAIN_DROP = 0.25
LOOKUP_GAIN_STEP = 0.1  # relative change per unexpected token, divided by 1 + the expected number
LOOKUP_GAIN_LIMITS = (0.1, 1.0)


class Controller(NamedTuple):
    """Quantities that adapt to the run.

    Attributes:
        rate: tokens per second.
        threshold: smallest gain that justifies a draw; used only by the sampled recipe.
        gain: factor on acceptance probabilities; below 1 if fewer tokens are accepted than predicted.
        lookup_gain: factor on the probabilities of looked-up tokens whose parents the draft has not read.
    """

    rate: float
    threshold: float
    gain: float = 1.0
    lookup_gain: float = 1.0

    def adjust_threshold(self, size: int, max_size: int) -> Controller:
        """Return the controller after a tree of `size` nodes; in the long run, about half of the trees are full."""
        threshold = self.threshold * THRESHOLD_STEP if size >= max_size else self.threshold / THRESHOLD_STEP
        return self._replace(threshold=max(threshold, MIN_THRESHOLD))

    def correct_gain(self, tokens: float, expected: float) -> Controller:
        """Return the controller after a step that committed `tokens` where the scores predicted `expected`."""
        return self._replace(gain=_corrected(self.gain, GAIN_STEP * (tokens - expected), GAIN_LIMITS))

    def correct_lookup_gain(self, tokens: int, expected: float) -> Controller:
        """Return the controller after a step that committed `tokens` looked-up tokens instead of `expected`."""
        change = LOOKUP_GAIN_STEP * (tokens - expected) / (1.0 + expected)
        return self._replace(lookup_gain=_corrected(self.lookup_gain, change, LOOKUP_GAIN_LIMITS))


def _corrected(gain: float, change: float, limits: tuple[float, float]) -> float:
    lowest, highest = limits
    return min(max(gain * math.exp(change), lowest), highest)


def initial_lookup_gain(temperature: float) -> float:
    """Return the factor on the probabilities of looked-up tokens at the beginning of a run."""
    return 1.0 - LOOKUP_GAIN_DROP * min(temperature, 1.0)


# The arguments are a controller, token costs or None, and a `LookUp` or None.
Expansions = Callable[..., TopKExpansion]


@dataclass(frozen=True, slots=True)
class Recipe:
    """A drafting method, with the verifier that is exact for it.

    Attributes:
        verifier: name of the verifier.
        selection: how children are selected, a key of `calibration.TABLE_GROUPS`.
    """

    verifier: str
    selection: str
    expansion: type[TopKExpansion]

    def expansions(self, bounds: TreeBounds, calibration: Calibration) -> Expansions:
        """Return a function that creates each step's expansion policy."""
        tables = calibration.tables()
        expected = calibration.expected(self.selection)[: bounds.branch]

        def make_expansion(
            controller: Controller, token_costs: TokenCosts | None = None, look_up: LookUp | None = None
        ) -> TopKExpansion:
            chances = replace(tables, gain=controller.gain)
            threshold = (controller.threshold,) if self.expansion.draws else ()
            return self.expansion(bounds, chances, controller.gain * expected, token_costs, look_up, *threshold)

        return make_expansion


RECIPES = {
    "deterministic": Recipe("topk", "most likely", TopKExpansion),
    "sampled": Recipe("sequoia", "drawn", SampledExpansion),
}
STATIC = "static"  # recipe that uses one tree, planned in advance


class Expectation(NamedTuple):
    """Expected performance of a recipe.

    Attributes:
        size: average number of nodes in a tree.
        tokens_per_sec: tokens per second; None without costs.
    """

    tokens_per_step: float
    size: float
    tokens_per_sec: float | None
    controller: Controller

    @property
    def value(self) -> float:
        """The value by which recipes are compared."""
        return self.tokens_per_step if self.tokens_per_sec is None else self.tokens_per_sec


def estimate_recipe(
    recipe: Recipe, bounds: TreeBounds, calibration: Calibration, costs: StepCosts | None, *, seed: int = 0
) -> Expectation:
    """Estimate a recipe's performance from trees grown on the calibration's rows, reproducibly for a given seed."""
    make_expansion = recipe.expansions(bounds, calibration)
    plain_rate = 0.0 if costs is None else costs.plain_rate
    controller = Controller(plain_rate, _static_threshold(recipe, bounds, calibration))
    for _ in range(RATE_ROUNDS):
        generator = np.random.default_rng(seed)
        tokens = 0.0
        sizes = 0
        seconds = 0.0
        for _ in range(TRIAL_STEPS):
            token_costs = None if costs is None else costs.token_costs(controller.rate)
            expansion = make_expansion(controller, token_costs)
            nodes, widths = grow_on_rows(expansion, bounds, calibration.rows, generator)
            tokens += float(nodes.scores.sum())
            sizes += nodes.size
            if costs is not None:
                seconds += costs.seconds(nodes.size, widths)
            controller = controller.adjust_threshold(nodes.size, bounds.max_size)
        if costs is not None:
            controller = controller._replace(rate=max(tokens / seconds, plain_rate))
    tokens_per_sec = None if costs is None else controller.rate
    return Expectation(tokens / TRIAL_STEPS, sizes / TRIAL_STEPS, tokens_per_sec, controller)


def best_static_tree(
    recipe: Recipe,
    bounds: TreeBounds,
    calibration: Calibration,
    profile: HardwareProfile,
    planned: TokenTree | None = None,
) -> tuple[TokenTree, Expectation]:
    """Return the best static tree for a recipe's selection of children, and its expected performance.

    The performance is based on the calibration, like that of `estimate_recipe`, so the two can be compared.

    Args:
        planned: the best tree; None to search for it.
    """
    ranks = calibration.expected(recipe.selection)
    greedy = calibration.temperature == 0.0
    if planned is None:
        vector = AcceptanceVector(ranks[: bounds.branch])
        max_size = min(bounds.max_size, profile.max_size)
        trees = grow_profiled_trees(vector, profile, max_size=max_size, max_depth=bounds.max_depth)
        best = best_shape(surface_from_trees(trees, profile, greedy=greedy))
        planned = trees.tree(best.size, best.depth)
    missing = max(0, int(planned.child_counts.max()) - len(ranks))
    tokens = expected_tokens(planned, AcceptanceVector(np.pad(ranks, (0, missing))))
    rate = tokens / step_time(planned, profile, greedy=greedy).total_sec
    return planned, Expectation(tokens, planned.size, rate, Controller(rate, MIN_THRESHOLD))


def _static_threshold(recipe: Recipe, bounds: TreeBounds, calibration: Calibration) -> float:
    """Return the smallest node score in the best static tree of the maximum size."""
    vector = AcceptanceVector(calibration.expected(recipe.selection))
    try:
        tree = optimal_tree(vector, size=bounds.max_size, depth=bounds.max_depth)
    # No tree can reach the maximum size, so it is not a limit.
    except ValueError:
        return MIN_THRESHOLD
    return max(float(node_scores(tree, vector).min()), MIN_THRESHOLD)


def grow_on_rows(
    expansion: TopKExpansion, bounds: TreeBounds, rows: np.ndarray, generator: np.random.Generator
) -> tuple[Nodes, list[int]]:
    """Grow a tree on rows; also return the number of nodes that each pass read.

    Rows are picked at random from float64 [r, k]; float64 [passes, w, k] gives each pass its rows.
    """
    nodes = Nodes.root(0)
    widths: list[int] = []
    for _ in range(bounds.max_depth):
        frontier = expansion.choose_frontier(nodes)
        if len(frontier) == 0:
            break
        nodes.cache_positions[frontier] = sum(widths) + np.arange(len(frontier))
        widths.append(len(frontier))
        if rows.ndim == 3:
            picked = rows[len(widths) - 1, : len(frontier)]
        else:
            picked = rows[generator.integers(len(rows), size=len(frontier))]
        nodes = expansion.expand(nodes, frontier, _CalibrationRows(picked, generator))
    return expansion.prune(nodes), widths


class _CalibrationRows:
    """A calibration's rows (implements `expansion.FrontierRows`); a token is an index in its row."""

    def __init__(self, best: np.ndarray, generator: np.random.Generator) -> None:
        tail = np.maximum(1.0 - best.sum(axis=1, keepdims=True), 0.0) / TAIL_TOKENS
        self.probs = np.concatenate([best, np.repeat(tail, TAIL_TOKENS, axis=1)], axis=1)
        self.generator = generator

    def most_likely(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        # There are fewer than k columns if the rows are shorter.
        probs = self.probs[:, :k]
        return np.tile(np.arange(probs.shape[1]), (len(probs), 1)), probs

    def probabilities(self, row: int, tokens: np.ndarray) -> np.ndarray:
        return self.probs[row, tokens]

    def draw(self, k: int, seen: Sequence[np.ndarray] = ()) -> tuple[np.ndarray, np.ndarray]:
        race = self.probs / np.maximum(self.generator.standard_exponential(self.probs.shape), 1e-300)
        tokens = np.argsort(-race, axis=1, kind="stable")[:, :k]
        return tokens, np.take_along_axis(self.probs, tokens, axis=1)


def predict_growing(
    expansion: TopKExpansion,
    bounds: TreeBounds,
    calibration: Calibration,
    profile: HardwareProfile,
    *,
    selection: str,
    context: float | None = None,
    prompts: int | None = None,
    seed: int = 0,
) -> Prediction:
    """Predict decoding with trees grown by an expansion policy in its initial state.

    The prediction has no interval for a single prompt, or if the calibration has no rows by prompt. `selection` is a
    key of `calibration.TABLE_GROUPS`.
    """
    greedy = calibration.temperature == 0.0
    tables = calibration.tables()
    rows = calibration.rows_by_prompt()
    gains = calibration.gain_by_prompt(selection)
    positions = calibration.positions
    if rows is None:
        rows = [calibration.rows]
        gains = np.ones(1)
        positions = positions.sum(keepdims=True)
    generator = np.random.default_rng(seed)
    tokens = np.empty((len(rows), TREES_PER_PROMPT))
    sizes = np.empty(tokens.shape, int)
    widths = np.zeros((*tokens.shape, bounds.max_depth), int)
    for prompt, trial in np.ndindex(tokens.shape):
        nodes, read = grow_on_rows(expansion, bounds, rows[prompt], generator)
        chances = replace(tables, gain=float(gains[prompt]))
        tokens[prompt, trial] = acceptance_chances(nodes, chances, selection).sum()
        sizes[prompt, trial] = nodes.size
        widths[prompt, trial, : len(read)] = read
    # The number of steps is positions ÷ tokens per step. The inverse of a noisy mean is biased upwards; the last factor
    # corrects this to first order.
    mean = tokens.mean(axis=1)
    steps = positions / mean / (1.0 + tokens.var(axis=1) / (TREES_PER_PROMPT * mean**2))

    def parts(times: HardwareProfile) -> np.ndarray:
        return np.mean(step_parts(sizes, widths, times, context=context, greedy=greedy, growing=True), axis=-1)

    return predict_prompts(positions, steps, parts, profile, context=context, greedy=greedy, prompts=prompts)


def acceptance_chances(nodes: Nodes, chances: ChanceTables, selection: str) -> np.ndarray:
    """Return the probability that each node is accepted, float64 [n]."""
    table = chances.most_likely if selection == "most likely" else chances.after_draw
    indices = np.arange(nodes.size)
    ranks = np.maximum(nodes.ranks, 1)
    probs = np.zeros((nodes.size, int(ranks.max())))
    probs[indices, ranks - 1] = nodes.probs
    conditional = table(probs)[indices, ranks - 1]
    return with_conditional_chances(nodes._replace(scores=np.ones(nodes.size)), conditional).scores
