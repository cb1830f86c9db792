"""Records of robustness evidence: what a measurement found, in plain rows, to and from files.

One form for what the worker found, what a session keeps, what ships in `assets/runs/robustness.json` and what is
downloaded. No Streamlit here. Shapes: m = prompts.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sequoia_core.files.safe_files import json_bytes, read_bytes
from ui.robustness.wording import Row, sampling_label

if TYPE_CHECKING:
    from sequoia_core.design.acceptance import AcceptanceMatrix
    from sequoia_core.studies.losslessness import LosslessnessReport
    from sequoia_core.studies.prediction_check import StaticVersusReal
    from sequoia_core.studies.step_counts import ConfidenceCurve
    from sequoia_core.studies.verifier_comparison import VerifierComparison

FORMAT, VERSION = "sequoia-evidence", 1
PARTS = ("comparison", "losslessness", "assumption")
MAX_TOKENS = 5  # of a row typed in

# ---- records


def comparison_record(
    comparison: VerifierComparison, *, rejection: Iterable[Row] = (), baseline: Iterable[Row] = (), **settings: Any
) -> Row:
    """Return the record of verifiers compared on one tree.

    Args:
        rejection: rows of a `RejectionStudy`.
        baseline: rows of `timing`, of decoding without a draft.
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


def timing(tokens: Sequence[int], seconds: Sequence[float]) -> Row:
    """Return median tokens per second of m prompts, and how much seconds per token vary between them."""
    count, time = np.array(tokens, dtype=float), np.array(seconds)
    return {"tokens_per_sec": float(np.median(count / time)), "timing_spread": quartile_ratio(time / count)}


def quartile_ratio(values: np.ndarray) -> float:
    """Return the upper ÷ the lower quartile of positive numbers, float64 [m]."""
    low, high = np.percentile(values, [25, 75])
    return float(high / low)


def losslessness_record(
    report: LosslessnessReport, texts: Sequence[str], *, false_alarm: float, **settings: Any
) -> Row:
    """Return the record of a losslessness check.

    Args:
        texts: what each of the report's cells reads as.
        false_alarm: how often a correct verifier fails, at most.
    """
    share = report.expected / report.samples
    half = 1.96 * np.sqrt(report.expected * (1.0 - share))
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
                "expected_low": max(float(expected - margin), 0.0),
                "expected_high": float(expected + margin),
            }
            for text, cell, pooled, observed, expected, margin in zip(
                texts, report.cells, report.pooled, report.observed, report.expected, half, strict=True
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


# ---- files


def to_json(part: str, record: Row) -> bytes:
    """Write one part with its settings, as `load` reads it."""
    return json_bytes({"format": FORMAT, "version": VERSION, part: record})


def to_csv(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    """Write rows with the settings they were measured at as further columns: every row stands alone."""
    fixed = {name: _plain(value) for name, value in settings.items()}
    table = [fixed | {name: _plain(value) for name, value in row.items()} for row in rows]
    text = io.StringIO()
    if table:
        names = [*rows[0], *(name for name in fixed if name not in rows[0])]
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    return text.getvalue()


def _plain(value: Any) -> Any:
    """Fit a value into one field; text that a spreadsheet would take for a formula is quoted."""
    if isinstance(value, list | tuple):
        return json.dumps(value)
    if isinstance(value, str) and (value.startswith(tuple("=+-@")) or not value.isprintable()):
        return repr(value)
    return value


def load(path: str | Path) -> dict[str, Row]:
    """Read the parts of a file that `to_json` wrote, or several in one.

    Raises:
        ValueError: naming the file, what was found and what was expected.
    """
    try:
        held = json.loads(read_bytes(path))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: found no JSON, expected an object of format {FORMAT!r}") from error
    found = held.get("format") if isinstance(held, dict) else type(held).__name__
    if found != FORMAT or held.get("version") != VERSION:
        raise ValueError(f"{path}: found {found!r}, expected format {FORMAT!r}, version {VERSION}")
    return {part: held[part] for part in PARTS if part in held}


# ---- rows that a person types


def read_row(text: str, name: str) -> list[float]:
    """Read a small probability row as a person types it.

    Raises:
        ValueError: naming the row, what was found and what was expected; safe to show anywhere.
    """
    parts = [part.strip() for part in text.split(",")]
    if not 2 <= len(parts) <= MAX_TOKENS:
        raise ValueError(f"{name}: found {len(parts)} value(s), expected 2 to {MAX_TOKENS} separated by commas")
    for part in parts:
        if not re.fullmatch(r"[0-9]*\.?[0-9]+", part, re.ASCII) or not 0.0 <= float(part) <= 1.0:
            harmless = re.sub(r"[^A-Za-z0-9.+-]", "?", part)[:12] or "nothing"
            raise ValueError(f"{name}: found {harmless}, expected numbers from 0 to 1 such as .5, .3, .2")
    values = [float(part) for part in parts]
    if abs(sum(values) - 1.0) > 1e-6:
        raise ValueError(f"{name}: found a sum of {sum(values):g}, expected 1")
    return values
