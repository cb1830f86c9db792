"""Trees chosen by calibrated chances and profiled costs: the settings of a recipe, its speed. k = ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...design.acceptance import AcceptanceVector
from ...design.calibration import Calibration, ChanceTables
from ...design.optimal_trees import expected_tokens, node_scores, optimal_tree
from ...design.planning import best_shape, speedup_surface
from ...design.prediction import Prediction, predict_prompts
from ...design.profile import HardwareProfile
from ...design.step_time import step_parts, step_time
from ...design.tree import TokenTree
from .expansion import Nodes, TokenCosts, TreeBounds
from .running_lookup import LookUp
from .sampled_expansion import SampledExpansion
from .step_costs import StepCosts
from .top_k_expansion import TopKExpansion

TREES_PER_PROMPT = 8  # of a prediction
TRIAL_STEPS = 60  # trees grown for one estimate
ROUNDS = 4  # of setting theta to the rate found with it (Dinkelbach); later changes are below the noise
TAIL_TOKENS = 8  # the mass that a kept row lacks is given to so many tokens, equally
THRESHOLD_STEP = 1.1  # the threshold rises by this when a tree is full, and falls by it when not
LOWEST_THRESHOLD = 1e-4
GAIN_STEP = 0.02  # per token more or less than expected: about fifty steps correct chances that are twice too high
GAIN_LIMITS = (0.25, 1.25)
# The chances of looked-up tokens are those of answers at low temperatures, and fall by this share for each unit of it.
LOOKED_UP_FALL = 0.25
LOOKED_UP_STEP, LOOKED_UP_LIMITS = 0.1, (0.1, 1.0)  # the step is per expected token


class Controller(NamedTuple):
    """The controller of a run: its rate, the correction of its chances, and the least gain that a draw must have.

    Attributes:
        theta: tokens per second.
        threshold: used by the sampled recipe alone.
        gain: factor on chances; below 1 where fewer tokens are accepted than they predict.
        looked_up_gain: the same of looked-up tokens, as long as the draft has not been asked about them.
    """

    theta: float
    threshold: float
    gain: float = 1.0
    looked_up_gain: float = 1.0

    def after(self, size: int, max_size: int) -> Controller:
        """Return the controller of the next step, its threshold set so that about half of the trees are full."""
        threshold = self.threshold * THRESHOLD_STEP if size >= max_size else self.threshold / THRESHOLD_STEP
        return self._replace(threshold=max(threshold, LOWEST_THRESHOLD))

    def seen(self, tokens: float, expected: float) -> Controller:
        """Return the controller after a step that committed so many tokens where scores predicted `expected`."""
        return self._replace(gain=_corrected(self.gain, GAIN_STEP * (tokens - expected), GAIN_LIMITS))

    def looked_up(self, tokens: int, expected: float) -> Controller:
        """Return the controller after a step that committed so many looked-up tokens."""
        change = LOOKED_UP_STEP * (tokens - expected) / (1.0 + expected)
        gain = _corrected(self.looked_up_gain, change, LOOKED_UP_LIMITS)
        return self._replace(looked_up_gain=gain)


def _corrected(gain: float, change: float, limits: tuple[float, float]) -> float:
    lowest, highest = limits
    return min(max(gain * math.exp(change), lowest), highest)


def looked_up_gain(temperature: float) -> float:
    """Return the factor on the chances of looked-up tokens when a run begins."""
    return 1.0 - LOOKED_UP_FALL * min(temperature, 1.0)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way of drafting whose verifier is exact for it.

    Attributes:
        verifier: name of the only one that is.
        kind: which tables of the calibration apply to its children.
    """

    verifier: str
    kind: str
    expansion: type[TopKExpansion]

    def expansions(self, bounds: TreeBounds, calibration: Calibration) -> Expansions:
        """Return what gives each step its expansion policy."""
        tables, expected = calibration.tables(), calibration.expected(self.kind)[: bounds.branch]

        def expansion(
            controller: Controller, token_costs: TokenCosts | None = None, look_up: LookUp | None = None
        ) -> TopKExpansion:
            threshold = (controller.threshold,) if self.expansion.draws else ()
            chances, gains = replace(tables, gain=controller.gain), controller.gain * expected
            return self.expansion(bounds, chances, gains, token_costs, look_up, *threshold)

        return expansion


Expansions = Callable[..., TopKExpansion]  # of a controller, the costs in tokens and the text, None for none
RECIPES = {
    "deterministic": Recipe("topk", "most likely", TopKExpansion),
    "sampled": Recipe("sequoia", "drawn", SampledExpansion),
}


STATIC = "static"  # the recipe that plans one tree beforehand


class Expectation(NamedTuple):
    """What a recipe is expected to do.

    Attributes:
        size: nodes of a tree on average.
        tokens_per_sec: None without costs.
    """

    tokens_per_step: float
    size: float
    tokens_per_sec: float | None
    controller: Controller

    @property
    def value(self) -> float:
        return self.tokens_per_step if self.tokens_per_sec is None else self.tokens_per_sec


def expectation(
    recipe: Recipe, bounds: TreeBounds, calibration: Calibration, costs: StepCosts | None, *, seed: int = 0
) -> Expectation:
    """Grow trees on rows of the calibration, and return what they are expected to yield; equal seeds, equal trees."""
    make, threshold = recipe.expansions(bounds, calibration), _static_threshold(recipe, bounds, calibration)
    controller = Controller(0.0 if costs is None else 1.0 / float(costs.step_sec[1]), threshold)
    for _ in range(ROUNDS):
        generator = np.random.default_rng(seed)
        tokens, sizes, seconds = 0.0, 0, 0.0
        for _ in range(TRIAL_STEPS):
            token_costs = None if costs is None else costs.token_costs(controller.theta)
            nodes, widths = grown_on_rows(make(controller, token_costs), bounds, calibration.rows, generator)
            tokens, sizes = tokens + float(nodes.scores.sum()), sizes + nodes.size
            seconds += 0.0 if costs is None else costs.seconds(nodes.size, widths)
            controller = controller.after(nodes.size, bounds.max_size)
        controller = controller._replace(theta=0.0 if costs is None else costs.at_least(tokens / seconds))
    return Expectation(
        tokens / TRIAL_STEPS, sizes / TRIAL_STEPS, None if costs is None else controller.theta, controller
    )


def best_static(
    recipe: Recipe,
    bounds: TreeBounds,
    calibration: Calibration,
    profile: HardwareProfile,
    planned: TokenTree | None = None,
) -> tuple[TokenTree, Expectation]:
    """Return the best static tree where children are drawn by a recipe, and what it is expected to do.

    Its chances are by rank where those of `expectation` are by row, so that both can be compared.

    Args:
        planned: the tree, where it is known already.
    """
    ranks = calibration.expected(recipe.kind)
    greedy = calibration.temperature == 0.0
    if planned is None:
        vector = AcceptanceVector(ranks[: bounds.branch])
        largest = min(bounds.max_size, profile.max_size)
        best = best_shape(speedup_surface(vector, profile, max_size=largest, max_depth=bounds.max_depth, greedy=greedy))
        planned = optimal_tree(vector, size=best.size, depth=best.depth)
    tokens = expected_tokens(
        planned, AcceptanceVector(np.pad(ranks, (0, max(0, int(planned.child_counts.max()) - len(ranks)))))
    )
    per_sec = tokens / step_time(planned, profile, greedy=greedy).total_sec
    return planned, Expectation(tokens, planned.size, per_sec, Controller(per_sec, LOWEST_THRESHOLD))


def _static_threshold(recipe: Recipe, bounds: TreeBounds, calibration: Calibration) -> float:
    """Return the gain of the last node of the best tree of that size for the plain vector."""
    vector = AcceptanceVector(calibration.expected(recipe.kind))
    try:
        tree = optimal_tree(vector, size=bounds.max_size, depth=bounds.max_depth)
    except ValueError:  # fewer nodes exist, so the size is no limit
        return LOWEST_THRESHOLD
    return max(float(node_scores(tree, vector).min()), LOWEST_THRESHOLD)


def grown_on_rows(
    expansion: TopKExpansion, bounds: TreeBounds, rows: np.ndarray, generator: np.random.Generator
) -> tuple[Nodes, list[int]]:
    """Grow one tree on rows float64 [r, k], drawn independently; also return how many nodes each pass read."""
    nodes = Nodes.root(0)
    widths: list[int] = []
    for _ in range(bounds.max_depth):
        frontier = expansion.frontier(nodes)
        if len(frontier) == 0:
            break
        nodes.cache_positions[frontier] = sum(widths) + np.arange(len(frontier))
        widths.append(len(frontier))
        nodes = expansion.extended(
            nodes, frontier, _KeptRows(rows[generator.integers(len(rows), size=len(frontier))], generator)
        )
    return expansion.kept(nodes), widths


class _KeptRows:
    """Rows of a calibration as `expansion.Rows`; a token is its index in the row."""

    def __init__(self, best: np.ndarray, generator: np.random.Generator) -> None:
        tail = np.maximum(1.0 - best.sum(axis=1, keepdims=True), 0.0) / TAIL_TOKENS
        self.probs = np.concatenate([best, np.repeat(tail, TAIL_TOKENS, axis=1)], axis=1)
        self.generator = generator

    def most_likely(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        probs = self.probs[:, :k]  # fewer where the rows are shorter
        return np.tile(np.arange(probs.shape[1]), (len(probs), 1)), probs

    def given(self, row: int, tokens: np.ndarray) -> np.ndarray:
        return self.probs[row, tokens]

    def drawn(self, k: int, seen: Sequence[np.ndarray] = ()) -> tuple[np.ndarray, np.ndarray]:
        race = self.probs / np.maximum(self.generator.standard_exponential(self.probs.shape), 1e-300)
        tokens = np.argsort(-race, axis=1, kind="stable")[:, :k]
        return tokens, np.take_along_axis(self.probs, tokens, axis=1)


def predict_growing(
    expansion: TopKExpansion,
    bounds: TreeBounds,
    calibration: Calibration,
    profile: HardwareProfile,
    *,
    kind: str,
    context: float | None = None,
    prompts: int | None = None,
    seed: int = 0,
) -> Prediction:
    """Predict decoding with trees of this expansion policy, as it is at the start of a run.

    There is no interval for one prompt or rows that are not by prompt. `kind` is one of `calibration.KINDS`.
    """
    greedy = calibration.temperature == 0.0
    rows, gain = calibration.rows_by_prompt(), calibration.gain_by_prompt(kind)
    if rows is None:
        rows, gain = [calibration.rows], np.ones(1)
    generator, tables = np.random.default_rng(seed), calibration.tables()
    shape = len(rows), TREES_PER_PROMPT
    tokens, sizes, widths = np.empty(shape), np.empty(shape, int), np.zeros((*shape, bounds.max_depth), int)
    for prompt, own in enumerate(rows):
        judged = replace(tables, gain=float(gain[prompt]))
        for trial in range(TREES_PER_PROMPT):
            nodes, read = grown_on_rows(expansion, bounds, own, generator)
            tokens[prompt, trial], sizes[prompt, trial] = _expected_tokens(nodes, judged, kind), nodes.size
            widths[prompt, trial, : len(read)] = read
    positions = calibration.positions if len(rows) > 1 else calibration.positions.sum(keepdims=True)
    # Steps are positions ÷ tokens per step; the inverse of a noisy mean is too large, to first order by this.
    mean = tokens.mean(axis=1)
    steps = positions / mean / (1.0 + tokens.var(axis=1) / (TREES_PER_PROMPT * mean**2))

    def parts(times: HardwareProfile) -> np.ndarray:
        return np.mean(step_parts(sizes, widths, times, context=context, greedy=greedy, growing=True), axis=-1)

    return predict_prompts(positions, steps, parts, profile, context=context, greedy=greedy, prompts=prompts)


def _expected_tokens(nodes: Nodes, chances: ChanceTables, kind: str) -> float:
    table = chances.most_likely if kind == "most likely" else chances.after
    ranks = np.maximum(nodes.ranks, 1)
    probs = np.zeros((nodes.size, int(ranks.max())))
    probs[np.arange(nodes.size), ranks - 1] = nodes.probs
    own = table(probs)[np.arange(nodes.size), ranks - 1]
    reach = np.ones(nodes.size)
    for node in range(1, nodes.size):  # parents come first
        reach[node] = reach[nodes.parents[node]] * own[node]
    return float(reach.sum())
