"""Records of robustness evidence in plain rows: of a worker, a session, `assets/runs/robustness.json`, a download."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ui.exact.spread import count_bounds, quartile_ratio
from ui.exact.wording import Row, sampling_label

if TYPE_CHECKING:
    from sequoia_core.design.acceptance_matrix import AcceptanceMatrix
    from sequoia_core.studies.losslessness import LosslessnessReport
    from sequoia_core.studies.prediction_check import StaticVersusReal
    from sequoia_core.studies.step_counts import ConfidenceCurve
    from sequoia_core.studies.verifier_comparison import VerifierComparison


def comparison_record(
    comparison: VerifierComparison, *, rejection: Iterable[Row] = (), baseline: Iterable[Row] = (), **settings: Any
) -> Row:
    """Return the record of verifiers compared on one tree.

    Args:
        rejection: rows of a `RejectionStudy`.
        baseline: rows of decoding without a draft: temperature, top_p, tokens_per_sec, timing_spread.
        settings: what there is to know besides the comparison's own settings.
    """
    alone = {sampling_label(row): row for row in baseline}
    runs = []
    for row, run in zip(comparison.rows(), comparison.runs, strict=True):
        plain = alone.get(sampling_label(row))
        spread = quartile_ratio(run.seconds / run.steps)
        runs.append(
            row
            | {
                "speedup": row["tokens_per_sec"] / plain["tokens_per_sec"] if plain else None,
                "timing_spread": max(spread, plain["timing_spread"]) if plain else spread,
            }
        )
    sequoia = any(run.verifier == "sequoia" for run in comparison.runs)
    return {
        "settings": {**comparison.settings, **settings},
        "runs": runs,
        "ratios": comparison.ratios() if sequoia else [],
        "baseline": list(baseline),
        "rejection": list(rejection),
    }


def losslessness_record(
    report: LosslessnessReport, texts: Sequence[str], *, false_alarm: float, **settings: Any
) -> Row:
    """Return the record of a losslessness check, with the text of each of the report's cells.

    `false_alarm` is how often a correct verifier fails, at most.
    """
    low, high = count_bounds(report.expected, report.samples)
    return {
        "settings": settings,
        "samples": report.samples,
        "statistic": float(report.statistic) if math.isfinite(report.statistic) else None,
        "degrees_of_freedom": report.degrees_of_freedom,
        "p_value": report.p_value,
        "threshold": report.threshold,
        "false_alarm": false_alarm,
        "impossible": report.impossible,
        "passed": report.passed,
        "cells": [
            {
                "text": text,
                "tokens": list(cell),
                "pooled": bool(pooled),
                "observed": int(observed),
                "expected": float(expected),
                "expected_low": float(least),
                "expected_high": float(most),
            }
            for text, cell, pooled, observed, expected, least, most in zip(
                texts, report.cells, report.pooled, report.observed, report.expected, low, high, strict=True
            )
        ],
    }


def assumption_record(
    check: StaticVersusReal,
    matrix: AcceptanceMatrix | None = None,
    confidence: ConfidenceCurve | None = None,
    **settings: Any,
) -> Row:
    """Return the record of a check of the static vector, with the counts of decoding once there are some."""
    counted = matrix or check.matrix
    assert counted.trials is not None, "counted in decoding"
    return {
        "settings": {**check.settings, **settings},
        "estimates": check.rows(),
        "static_holds": check.static_holds,
        "by_depth_holds": check.by_depth_holds,
        "acceptance": [
            {"depth": level, "rank": rank, "acceptance": float(prob) if seen else None, "offered": int(seen)}
            for level, (probs, trials) in enumerate(zip(counted.probs, counted.trials, strict=True), start=1)
            for rank, (prob, seen) in enumerate(zip(probs, trials, strict=True), start=1)
        ],
        "confidence": [] if confidence is None else confidence.rows(),
    }
