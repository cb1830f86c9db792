"""Check whether acceptance measured on some prompts predicts tokens per step on others. m = prompts, W = ranks."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks.step_counts import count_by_depth, matrix_from_counts
from sequoia_core.acceptance.bootstrap import RESAMPLES, Estimate, estimate, resample_prompts
from sequoia_core.acceptance.conditions import SEQUOIA
from sequoia_core.acceptance.matrix import AcceptanceMatrix
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.verifiers import choose_verifier
from sequoia_core.files.faults import Cancelled
from sequoia_core.measuring.measure_acceptance import pair_settings, vector_from_prompts
from sequoia_core.measuring.prompt_loop import Progress, Report, measure_each, tokens_within_context
from sequoia_core.measuring.ranks_along_text import ask_on_text, rank_questions
from sequoia_core.models.language_model import ModelPair
from sequoia_core.trees.optimal import expected_tokens
from sequoia_core.trees.tree import TokenTree
from sequoia_extras.evaluation.verifier_comparison import count_yielded_tokens, decode_prompt


@dataclass(frozen=True, slots=True, eq=False)
class PredictionCheck:
    """Predicted tokens per step of a tree, and those measured on other prompts than the prediction's.

    Attributes:
        static: F under the vector measured without a tree, on the fitting prompts.
        by_depth: F under the matrix counted in tree decoding of the fitting prompts.
        measured: tokens per step on the held-out prompts.
        static_gap, by_depth_gap: prediction - measured; the two sets of prompts are resampled independently.
        same_prompts_gap: static - tokens per step of the fitting prompts, resampled together. This is the most
            sensitive test of the vector, because differences between prompts cancel out.
        vector, matrix: the vector and the matrix on which the predictions are based.
    """

    static: Estimate
    by_depth: Estimate
    measured: Estimate
    static_gap: Estimate
    by_depth_gap: Estimate
    same_prompts_gap: Estimate
    vector: AcceptanceVector
    matrix: AcceptanceMatrix
    settings: dict[str, Any]

    @property
    def static_holds(self) -> bool:
        return _includes_zero(self.static_gap)

    @property
    def by_depth_holds(self) -> bool:
        return _includes_zero(self.by_depth_gap)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per estimate, for a table or a file."""
        names = ("static", "by_depth", "measured", "static_gap", "by_depth_gap", "same_prompts_gap")
        return [{"quantity": name, **getattr(self, name).to_json()} for name in names]


class _Fitted(NamedTuple):
    """The measurements of one fitting prompt."""

    rank_sums: np.ndarray  # float64 [W], over positions
    positions: int
    accepted: np.ndarray  # int64 [L, W], by depth and rank
    reached: np.ndarray
    tokens: int
    steps: int


def check_prediction(
    fit_prompts: Sequence[Sequence[int]],
    held_out_prompts: Sequence[Sequence[int]],
    pair: ModelPair,
    *,
    tree: TokenTree,
    sampling: SamplingConfig | None = None,
    max_new_tokens: int = 64,
    seed: int = 0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> PredictionCheck:
    """Predict tokens per step from one set of prompts in two ways, and measure them on another set.

    Args:
        fit_prompts: token ids of at least 2 prompts. The vector is measured along the target's continuations; the
            matrix is counted in tree decoding.
        held_out_prompts: token ids of at least 2 other prompts.
        tree: a tree with at least one node below the root.
    """
    if min(len(fit_prompts), len(held_out_prompts)) < 2 or tree.size == 1:
        raise ValueError(
            f"found {len(fit_prompts)} and {len(held_out_prompts)} prompts, {tree.size} nodes, expected 2 or more each"
        )
    sampling = sampling or SamplingConfig()
    cancel = cancel or threading.Event()
    prompts = [*fit_prompts, *held_out_prompts]
    limits = tokens_within_context(prompts, pair, max_new_tokens, depth=tree.depth)
    rule = choose_verifier(SEQUOIA, greedy=sampling.greedy).ranks
    questions = rank_questions({SEQUOIA: rule}, int(tree.child_ranks.max()))
    ask = partial(ask_on_text, pair=pair, sampling=sampling, questions=questions, seed=seed, cancel=cancel)
    order = _interleaved(len(fit_prompts), len(held_out_prompts))

    def measure(number: int, report: Report) -> _Fitted | tuple[int, int] | None:
        index = order[number]
        prompt = prompts[index]
        limit = limits[index]
        steps = decode_prompt(prompt, pair, tree, sampling, SEQUOIA, limit, seed=seed, number=index, cancel=cancel)
        measured: tuple[int, int] | _Fitted = (count_yielded_tokens(steps), len(steps))
        if index < len(fit_prompts) and not cancel.is_set():
            parts = ask(prompt, max_new_tokens=limit, number=len(prompts) + index)
            if parts is None:
                return None
            ranks = parts[0][SEQUOIA]
            measured = _Fitted(ranks.sum(axis=0), len(ranks), *count_by_depth(steps, tree), *measured)
        if cancel.is_set():
            return None
        report(1.0)
        return measured

    results = list(measure_each(len(prompts), measure, progress=progress, cancel=cancel))
    settings = pair_settings(pair) | {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "verifier": SEQUOIA,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
        "tree": tree.parents.tolist(),
    }
    return _compare(tree, results, settings)


def _includes_zero(gap: Estimate) -> bool:
    assert gap.low is not None and gap.high is not None, "each set has at least two prompts"
    return gap.low <= 0.0 <= gap.high


def _interleaved(fit: int, held_out: int) -> list[int]:
    """Return the indices of all prompts, evenly interleaving both sets, so that a cancelled run has some of each."""
    positions = [(i + 0.5) / fit for i in range(fit)] + [(i + 0.5) / held_out for i in range(held_out)]
    return sorted(range(fit + held_out), key=positions.__getitem__)


def _compare(
    tree: TokenTree, results: Sequence[_Fitted | tuple[int, int]], settings: dict[str, Any]
) -> PredictionCheck:
    fitted = [each for each in results if isinstance(each, _Fitted)]
    held_out = np.array([each for each in results if not isinstance(each, _Fitted)])
    if min(len(fitted), len(held_out)) < 2:
        raise Cancelled("static versus real: cancelled before 2 prompts of each set were complete, expected at least 2")
    settings |= {"fit_prompts": len(fitted), "held_out_prompts": len(held_out)}
    rank_sums, positions, accepted, reached, tokens, steps = (np.array(part) for part in zip(*fitted, strict=True))
    vector = vector_from_prompts(rank_sums, positions, meta=settings)
    matrix = matrix_from_counts(accepted.sum(axis=0), reached.sum(axis=0), meta=settings)
    static = np.empty(RESAMPLES)
    by_depth = np.empty(RESAMPLES)
    picks = resample_prompts(len(fitted))
    for r, pick in enumerate(picks):
        static[r] = expected_tokens(tree, AcceptanceVector(pick @ rank_sums / (pick @ positions)))
        counts = (np.tensordot(pick, part, axes=1) for part in (accepted, reached))
        by_depth[r] = expected_tokens(tree, matrix_from_counts(*counts))
    # Use a different seed, because held-out prompts vary independently of the fitting ones.
    others = resample_prompts(len(held_out), seed=1)
    real = (others @ held_out[:, 0]) / (others @ held_out[:, 1])
    same_prompts = (picks @ tokens) / (picks @ steps)
    static_value = expected_tokens(tree, vector)
    depth_value = expected_tokens(tree, matrix)
    measured = float(held_out[:, 0].sum() / held_out[:, 1].sum())
    return PredictionCheck(
        static=estimate(static_value, static),
        by_depth=estimate(depth_value, by_depth),
        measured=estimate(measured, real),
        static_gap=estimate(static_value - measured, static - real),
        by_depth_gap=estimate(depth_value - measured, by_depth - real),
        same_prompts_gap=estimate(static_value - float(tokens.sum() / steps.sum()), static - same_prompts),
        vector=vector,
        matrix=matrix,
        settings=settings,
    )
