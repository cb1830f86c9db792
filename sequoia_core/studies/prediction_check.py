"""Checks whether acceptance measured on other prompts predicts tokens per step. m = prompts, r = resamples."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..decoding.sampling import SamplingConfig
from ..decoding.verifiers import choose_verifier
from ..design.acceptance import AcceptanceVector
from ..design.acceptance_matrix import AcceptanceMatrix
from ..design.bootstrap import RESAMPLES, Estimate, estimate, resampled
from ..design.conditions import SEQUOIA
from ..design.optimal_trees import expected_tokens
from ..design.tree import TokenTree
from ..files.faults import Cancelled
from ..models.language_model import ModelPair
from .measure_acceptance import pair_settings, vector_from_prompts
from .prompt_loop import Progress, Report, one_by_one, room_after
from .ranks_along_text import rank_questions, ranks_on_text
from .step_counts import count_by_depth, matrix_from_counts
from .verifier_comparison import decode_prompt, whole_tokens


@dataclass(frozen=True, slots=True, eq=False)
class StaticVersusReal:
    """Predicted and measured tokens per step of a tree, on other prompts than those of the vector.

    Attributes:
        static: F under the vector measured without a tree, on the fitting prompts.
        by_depth: F under the matrix counted in tree decoding of the fitting prompts.
        measured: tokens per step on the held-out prompts.
        static_gap, by_depth_gap: prediction - measured; the halves are resampled independently.
        same_prompts_gap: static - tokens per step of the fitting prompts themselves, resampled together: the most
            sensitive test of the vector, since differences between prompts cancel out.
        vector, matrix: from which the predictions were computed.
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
        return _holds_zero(self.static_gap)

    @property
    def by_depth_holds(self) -> bool:
        return _holds_zero(self.by_depth_gap)

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain row per estimate, for a table or a file."""
        names = ("static", "by_depth", "measured", "static_gap", "by_depth_gap", "same_prompts_gap")
        return [{"quantity": name, **getattr(self, name).to_json()} for name in names]


def static_versus_real(
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
) -> StaticVersusReal:
    """Predict tokens per step from one set of prompts, twice, and measure it on another.

    Args:
        fit_prompts: token ids, at least 2 prompts; the vector is measured along the target's own continuations, the
            matrix counted in tree decoding.
        held_out_prompts: token ids, at least 2 other prompts.
        tree: at least one node below the root.
    """
    sampling, cancel = sampling or SamplingConfig(), cancel or threading.Event()
    for name, prompts in (("fit_prompts", fit_prompts), ("held_out_prompts", held_out_prompts)):
        if len(prompts) < 2:
            raise ValueError(f"{name}: found {len(prompts)}, expected at least 2, so that there is a spread")
    if tree.size == 1:
        raise ValueError("tree: found one node, expected at least one child")
    prompts = [*fit_prompts, *held_out_prompts]
    rooms = room_after(prompts, pair, max_new_tokens, depth=tree.depth)
    width = int(tree.child_ranks.max())
    questions = rank_questions({SEQUOIA: choose_verifier(SEQUOIA, greedy=sampling.greedy).ranks}, width)
    fitted: list[_Fitted] = []
    held_out: list[tuple] = []  # tokens and steps of each prompt
    total = len(fit_prompts) + len(held_out_prompts)
    turns = _taking_turns(len(fit_prompts), len(held_out_prompts))

    def measure(number: int, report: Report) -> _Fitted | tuple[int, int] | None:
        index, fitting = turns[number]
        stream = index if fitting else len(fit_prompts) + index
        prompt, room = prompts[stream], rooms[stream]
        steps = decode_prompt(prompt, pair, tree, sampling, SEQUOIA, room, seed=seed, number=stream, cancel=cancel)
        outcome: tuple[int, int] | _Fitted = (whole_tokens(steps), len(steps))
        if fitting and not cancel.is_set():
            parts = ranks_on_text(
                prompt, pair, sampling=sampling, questions=questions, max_new_tokens=room, seed=seed,
                number=total + index, cancel=cancel,
            )  # fmt: skip
            if parts is None:
                return None
            along = parts[0][SEQUOIA]
            outcome = _Fitted(along.sum(axis=0), len(along), *count_by_depth(steps, tree), *outcome)
        if cancel.is_set():
            return None
        report(1.0)
        return outcome

    for outcome in one_by_one(total, measure, progress=progress, cancel=cancel):
        if isinstance(outcome, _Fitted):
            fitted.append(outcome)
        else:
            held_out.append(outcome)
    if min(len(fitted), len(held_out)) < 2:
        raise Cancelled(
            "static versus real: cancelled before 2 prompts of each set were complete, expected at least those"
        )
    settings = pair_settings(pair) | {
        "temperature": sampling.temperature, "top_p": sampling.top_p, "verifier": SEQUOIA, "seed": seed,
        "max_new_tokens": max_new_tokens, "fit_prompts": len(fitted), "held_out_prompts": len(held_out),
        "tree": tree.parents.tolist(),
    }  # fmt: skip
    return _compared(tree, fitted, np.array(held_out), settings)


def _holds_zero(gap: Estimate) -> bool:
    assert gap.low is not None and gap.high is not None, "two prompts of each set leave something to resample"
    return gap.low <= 0.0 <= gap.high


class _Fitted(NamedTuple):
    """The data of one fitting prompt: sums [W] over positions, counts [L, W], and its own tree decoding."""

    rank_sums: np.ndarray
    positions: int
    accepted: np.ndarray
    reached: np.ndarray
    tokens: int
    steps: int


def _taking_turns(fit: int, held_out: int) -> list[tuple[int, bool]]:
    """Interleave both sets evenly, as (index, is fitting): a cancelled run then has some of each."""
    turns = [((i + 0.5) / fit, i, True) for i in range(fit)]
    turns += [((i + 0.5) / held_out, i, False) for i in range(held_out)]
    return [(i, fitting) for _, i, fitting in sorted(turns)]


def _compared(
    tree: TokenTree, fitted: Sequence[_Fitted], held_out: np.ndarray, settings: dict[str, Any]
) -> StaticVersusReal:
    rank_sums, positions, accepted, reached, tokens, steps = (np.array(part) for part in zip(*fitted, strict=True))
    vector = vector_from_prompts(rank_sums, positions, meta=settings)
    matrix = matrix_from_counts(accepted.sum(axis=0), reached.sum(axis=0), meta=settings)
    static, by_depth = np.empty(RESAMPLES), np.empty(RESAMPLES)
    picks = resampled(len(fitted))
    for r, pick in enumerate(picks):
        static[r] = expected_tokens(tree, AcceptanceVector(pick @ rank_sums / (pick @ positions)))
        counts = (np.tensordot(pick, part, axes=1) for part in (accepted, reached))
        by_depth[r] = expected_tokens(tree, matrix_from_counts(*counts))
    others = resampled(len(held_out), seed=1)  # held-out prompts vary independently of the fitting ones
    real = (others @ held_out[:, 0]) / (others @ held_out[:, 1])
    measured = float(held_out[:, 0].sum() / held_out[:, 1].sum())
    same = float(tokens.sum() / steps.sum())
    static_value, depth_value = expected_tokens(tree, vector), expected_tokens(tree, matrix)
    return StaticVersusReal(
        static=estimate(static_value, static),
        by_depth=estimate(depth_value, by_depth),
        measured=estimate(measured, real),
        static_gap=estimate(static_value - measured, static - real),
        by_depth_gap=estimate(depth_value - measured, by_depth - real),
        same_prompts_gap=estimate(static_value - same, static - (picks @ tokens) / (picks @ steps)),
        vector=vector,
        matrix=matrix,
        settings=settings,
    )
