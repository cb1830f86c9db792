"""Rejection curves: the probability that a node's first k children are all rejected. W = ranks."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sequoia_core.acceptance.bootstrap import interval
from sequoia_core.acceptance.conditions import MEASURED_VERIFIERS
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.rank_acceptance import OPTIMA, RankRule
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.verifiers import choose_verifiers
from sequoia_core.files.model_names import require_draft
from sequoia_core.measuring.measure_acceptance import pair_settings, vector_from_prompts
from sequoia_core.measuring.prompt_loop import Progress, Report, measure_each, require_results, tokens_within_context
from sequoia_core.measuring.ranks_along_text import DEFAULT_SEED, ask_on_text, rank_questions
from sequoia_core.models.language_model import ModelPair


def sampling_grid(temperatures: Sequence[float], top_ps: Sequence[float] = (1.0,)) -> list[SamplingConfig]:
    """Return every temperature combined with every top-p; temperature 0 once, since top-p has no effect there."""
    if not temperatures or not top_ps:
        raise ValueError(
            f"grid: found {len(temperatures)} temperatures and {len(top_ps)} top-p values, expected one or more of each"
        )
    pairs = [(t, p if t > 0 else 1.0) for t in temperatures for p in top_ps]
    return [SamplingConfig(t, p) for t, p in dict.fromkeys(pairs)]


@dataclass(frozen=True, slots=True)
class RejectionCurve:
    """The rejection curve of a verifier, or of an optimum (`OPTIMA`), at one sampling setting."""

    verifier: str
    sampling: SamplingConfig
    acceptance: AcceptanceVector

    @property
    def rejection(self) -> np.ndarray:
        """P(the first k children are all rejected) for k = 1 to W, float64 [W]."""
        return np.clip(1.0 - np.cumsum(self.acceptance.probs), 0.0, 1.0)

    def interval(self) -> np.ndarray | None:
        """Return the bounds of the rejection's 95 % interval, float64 [2, W]; None for a single prompt."""
        samples = self.acceptance.resampled()
        return None if samples is None else interval(np.clip(1.0 - np.cumsum(samples, axis=1), 0.0, 1.0))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one row per rank, as a plain dict."""
        bounds = self.interval()
        for k, (prob, rejection) in enumerate(zip(self.acceptance.probs, self.rejection, strict=True)):
            yield {
                "verifier": self.verifier,
                "temperature": self.sampling.temperature,
                "top_p": self.sampling.top_p,
                "rank": k + 1,
                "acceptance": float(prob),
                "rejection": float(rejection),
                "ci_low": None if bounds is None else float(bounds[0][k]),
                "ci_high": None if bounds is None else float(bounds[1][k]),
                "trials": self.acceptance.trials,
            }


@dataclass(frozen=True, slots=True)
class RejectionStudy:
    """Rejection curves for all sampling settings and verifiers, with the measurement's settings."""

    curves: tuple[RejectionCurve, ...]
    settings: dict[str, Any]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per curve and rank, as plain dicts for a table or a file."""
        return [row for curve in self.curves for row in curve.rows()]


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
    """Measure P(the first k children are all rejected) for each sampling setting and verifier, and for the optimum.

    At each setting, all verifiers are evaluated on the same text from the target, one per prompt: exactly or, for
    Sequoia, in expectation given one draw. `OPTIMA` are known only above temperature 0 and without top-p or top-k.

    Args:
        samplings: sampling settings, such as `sampling_grid([0, 0.6, 1])`; temperature 0 has one curve, "greedy".
        width: number of ranks W.
    """
    require_draft(pair.draft, "rejection is measured by comparing two models")
    if not prompts or not samplings:
        raise ValueError(
            f"found {len(prompts)} prompts and {len(samplings)} sampling settings, expected one or more of each"
        )
    if not 1 <= width <= pair.vocab_size:
        raise ValueError(f"width: found {width}, expected 1 to {pair.vocab_size}")
    tokens_within_context(prompts, pair, max_new_tokens)
    rules = {sampling: _rank_rules(sampling) for sampling in samplings}
    cancel = cancel or threading.Event()
    ask = partial(ask_on_text, pair=pair, seed=DEFAULT_SEED, max_new_tokens=max_new_tokens, cancel=cancel)

    def measure(number: int, report: Report) -> dict[tuple[SamplingConfig, str], np.ndarray] | None:
        rows_by_curve: dict[tuple[SamplingConfig, str], np.ndarray] = {}
        for index, (sampling, asked) in enumerate(rules.items()):
            parts = ask(
                prompts[number],
                sampling=sampling,
                number=number,
                questions=rank_questions(asked, width),
                report=partial(_report_part, report, index, len(rules)),
            )
            if parts is None:
                return None
            rows_by_curve |= {(sampling, name): rows for part in parts for name, rows in part.items()}
        return rows_by_curve

    measured = list(measure_each(len(prompts), measure, progress=progress, cancel=cancel))
    require_results(measured, "rejection")
    settings = pair_settings(pair) | {
        "max_new_tokens": max_new_tokens,
        "seed": DEFAULT_SEED,
        "prompts": len(measured),
        "width": width,
    }
    curves = []
    for sampling, name in measured[0]:
        rows = [rows_by_curve[sampling, name] for rows_by_curve in measured]
        vector = vector_from_prompts([each.sum(axis=0) for each in rows], [len(each) for each in rows], meta=settings)
        curves.append(RejectionCurve(name, sampling, vector))
    return RejectionStudy(tuple(curves), settings)


def _report_part(report: Report, index: int, parts: int, share: float) -> None:
    report((index + share) / parts)


def _rank_rules(sampling: SamplingConfig) -> dict[str, RankRule]:
    verifiers = choose_verifiers(MEASURED_VERIFIERS, greedy=sampling.greedy)
    rules = {name: verifier.ranks for name, verifier in verifiers.items()}
    return rules | OPTIMA if sampling.plain else rules
