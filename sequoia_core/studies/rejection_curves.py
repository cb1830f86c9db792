"""Rejection curves: how often a node's first k children are all rejected. m = prompts, W = ranks."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..decoding.rank_acceptance import OPTIMA, RankRule
from ..decoding.sampling import SamplingConfig
from ..decoding.verifiers import choose_verifiers
from ..design.acceptance import AcceptanceVector
from ..design.bootstrap import interval
from ..design.conditions import VERIFIERS
from ..files.model_names import needed_draft
from ..models.language_model import ModelPair
from .measure_acceptance import pair_settings, vector_from_prompts
from .prompt_loop import Progress, Report, one_by_one, require_a_prompt, room_after
from .ranks_along_text import SEED, rank_questions, ranks_on_text


def sampling_grid(temperatures: Sequence[float], top_ps: Sequence[float] = (1.0,)) -> list[SamplingConfig]:
    """Return every temperature with every top-p; temperature 0 once, since top-p changes nothing there."""
    if not temperatures or not top_ps:
        raise ValueError(f"grid: found {len(temperatures)} temperatures and {len(top_ps)} top-p, expected some of each")
    pairs = [(t, p if t > 0 else 1.0) for t in temperatures for p in top_ps]
    return [SamplingConfig(t, p) for t, p in dict.fromkeys(pairs)]


@dataclass(frozen=True, slots=True)
class RejectionCurve:
    """How often k children are all rejected, by a verifier or the best one (`OPTIMA`) at a way of sampling."""

    verifier: str
    sampling: SamplingConfig
    acceptance: AcceptanceVector

    @property
    def rejection(self) -> np.ndarray:
        """P(the first k children are all rejected), float64 [W]."""
        return np.clip(1.0 - np.cumsum(self.acceptance.probs), 0.0, 1.0)

    def interval(self) -> np.ndarray | None:
        """Return 95 % bounds of the rejection, float64 [2, W]; None for a single prompt."""
        again = self.acceptance.resampled()
        return None if again is None else interval(np.clip(1.0 - np.cumsum(again, axis=1), 0.0, 1.0))


@dataclass(frozen=True, slots=True)
class RejectionStudy:
    """Rejection curves over ways of sampling and verifiers, with the settings they were measured at."""

    curves: tuple[RejectionCurve, ...]
    settings: dict[str, Any]

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain row per curve and rank, for a table or a file."""
        return [row for curve in self.curves for row in _curve_rows(curve)]


def _curve_rows(curve: RejectionCurve) -> Iterator[dict[str, Any]]:
    bounds = curve.interval()
    for k, (prob, rejection) in enumerate(zip(curve.acceptance.probs, curve.rejection, strict=True)):
        yield {
            "verifier": curve.verifier,
            "temperature": curve.sampling.temperature,
            "top_p": curve.sampling.top_p,
            "rank": k + 1,
            "acceptance": float(prob),
            "rejection": float(rejection),
            "ci_low": float(bounds[0][k]) if bounds is not None else None,
            "ci_high": float(bounds[1][k]) if bounds is not None else None,
            "trials": curve.acceptance.trials,
        }


def measure_rejection(
    prompts: Sequence[Sequence[int]],
    pair: ModelPair,
    *,
    samplings: Sequence[SamplingConfig],
    width: int = 16,
    max_new_tokens: int = 64,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> RejectionStudy:
    """Measure P(the first k children are all rejected) for every way of sampling, by every verifier and the best one.

    At each way of sampling the target writes one text per prompt, and every verifier is asked about the same positions:
    exactly for SpecInfer and top-k, in expectation along one draw without replacement for Sequoia. The best one
    (`OPTIMA`) is known above temperature 0 where neither top-p nor top-k gives first children rows of their own.

    Args:
        samplings: such as `sampling_grid([0, 0.6, 1])`; at temperature 0 there is one curve, "greedy".
    """
    needed_draft(pair.draft, "measuring rejection compares two models")
    cancel = cancel or threading.Event()
    if not prompts or not samplings:
        raise ValueError(f"found {len(prompts)} prompts and {len(samplings)} samplings, expected some of each")
    if not 1 <= width <= pair.vocab_size:
        raise ValueError(f"width: found {width}, expected 1 to {pair.vocab_size}")
    room_after(prompts, pair, max_new_tokens)
    samplings = list(dict.fromkeys(samplings))
    rules = {sampling: _rules(sampling) for sampling in samplings}
    pairings = [(sampling, name) for sampling in samplings for name in rules[sampling]]
    sums: dict[tuple[SamplingConfig, str], list[np.ndarray]] = {pairing: [] for pairing in pairings}
    counts: dict[tuple[SamplingConfig, str], list[int]] = {pairing: [] for pairing in pairings}

    def measure(number: int, report: Report) -> dict[tuple[SamplingConfig, str], np.ndarray] | None:
        rows_by_curve: dict[tuple[SamplingConfig, str], np.ndarray] = {}
        for index, sampling in enumerate(samplings):
            parts = ranks_on_text(
                prompts[number], pair, sampling=sampling, seed=SEED, number=number,
                questions=rank_questions(rules[sampling], width),
                max_new_tokens=max_new_tokens,
                report=lambda share, index=index: report((index + share) / len(samplings)),  # type: ignore[misc]
                cancel=cancel,
            )  # fmt: skip
            if parts is None:
                return None
            rows_by_curve |= {(sampling, name): rows for part in parts for name, rows in part.items()}
        return rows_by_curve

    for rows_by_curve in one_by_one(len(prompts), measure, progress=progress, cancel=cancel):
        for pairing, rows in rows_by_curve.items():
            sums[pairing].append(rows.sum(axis=0))
            counts[pairing].append(len(rows))
    done = len(counts[pairings[0]])
    require_a_prompt(counts[pairings[0]], "rejection")
    settings = pair_settings(pair) | {
        "max_new_tokens": max_new_tokens, "seed": SEED, "prompts": done, "width": width,
    }  # fmt: skip
    curves = tuple(
        RejectionCurve(name, sampling, vector_from_prompts(sums[sampling, name], counts[sampling, name], meta=settings))
        for sampling, name in pairings
    )
    return RejectionStudy(curves, settings)


def _rules(sampling: SamplingConfig) -> dict[str, RankRule]:
    rules = {name: verifier.ranks for name, verifier in choose_verifiers(VERIFIERS, greedy=sampling.greedy).items()}
    return rules | OPTIMA if sampling.plain else rules
