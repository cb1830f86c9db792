"""Predictions for dynamic trees, grown on each prompt's rows, drawn independently. m = prompts, r = resamples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...design.calibration import Calibration, ChanceTables
from ...design.prediction import Prediction, predict_prompts
from ...design.profile import HardwareProfile
from ...design.step_time import step_parts
from .expansion import Nodes, TreeBounds
from .recipes import grown_on_rows
from .top_k_expansion import TopKExpansion

TREES_PER_PROMPT = 8


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
