"""Records of robustness evidence: what a measurement found, in plain rows, and what it says in words.

One form for what the worker found, what a session keeps, what ships in `assets/runs/robustness.json` and what is
downloaded. No Streamlit here. Shapes: m = prompts.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sequoia_core.files import json_bytes, read_bytes

if TYPE_CHECKING:
    from sequoia_core.acceptance import AcceptanceMatrix
    from sequoia_core.lossless import LosslessnessReport
    from sequoia_core.outcomes import ConfidenceCurve
    from sequoia_core.robustness import VerifierComparison
    from sequoia_core.static_check import StaticVersusReal

Row = dict[str, Any]
FORMAT, VERSION = "sequoia-evidence", 1
PARTS = ("comparison", "losslessness", "assumption")
RIVALS = ("specinfer", "topk")  # of Sequoia
NAMES = {"sequoia": "Sequoia", "specinfer": "SpecInfer", "topk": "Top-k", "greedy": "Any verifier"}
MAX_TOKENS = 5  # of a row typed in
STEADY = 1.3  # upper ÷ lower quartile of seconds per step up to which a timing is worth a claim

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


# ---- in words


def sampling_label(row: Mapping[str, Any]) -> str:
    """Name a way of sampling: temperature, and top-p where it cuts something."""
    return f"T = {row['temperature']:g}" + (f", top-p {row['top_p']:g}" if row["top_p"] < 1 else "")


def at_setting(rows: Sequence[Row], shown: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the same way of sampling."""
    return [row for row in rows if sampling_label(row) == sampling_label(shown)]


def at_top_p(rows: Sequence[Row], shown: Mapping[str, Any]) -> list[Row]:
    """Return the rows over temperature that belong with the one on show; temperature 0 belongs with every top-p."""
    hot = [row["top_p"] for row in rows if row["temperature"] > 0]
    top_p = shown["top_p"] if shown["temperature"] > 0 else max(hot, default=1.0)
    return [row for row in rows if row["top_p"] == top_p or row["temperature"] == 0]


def outcome(ratio: Mapping[str, Any]) -> str:
    """Say who wins by the 95% interval of a ratio: "wins", "ties", "loses", or "unknown" without an interval."""
    if ratio["low"] is None or ratio["high"] is None:
        return "unknown"
    return "wins" if ratio["low"] > 1.0 else "loses" if ratio["high"] < 1.0 else "ties"


def verdict(ratios: Sequence[Mapping[str, Any]]) -> str:
    """Say in plain words, a line per rival, where Sequoia wins, ties or loses: no win whose interval includes 1."""
    parts = []
    for rival in dict.fromkeys(row["other"] for row in ratios):
        rows = [row for row in ratios if row["other"] == rival]
        found = {word: [row for row in rows if outcome(row) == word] for word in ("wins", "ties", "loses", "unknown")}
        said = [
            f"{words} at {_list(group)}" + (f" ({_range(group)})" if word in ("wins", "loses") else "")
            for word, words in (
                ("wins", "**wins**"),
                ("ties", "no difference is shown"),
                ("loses", "**loses**"),
                ("unknown", "one prompt leaves it open"),
            )
            if (group := found[word])
        ]
        parts.append(f"- Against {NAMES.get(rival, rival)} Sequoia: {'; '.join(said)}.")
    return "\n".join(parts)


def _list(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [sampling_label(row) for row in rows]
    if all(row["top_p"] == 1 for row in rows):
        names = [f"T = {names[0].removeprefix('T = ')}", *(name.removeprefix("T = ") for name in names[1:])]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _range(rows: Sequence[Mapping[str, Any]]) -> str:
    low, high = min(row["value"] for row in rows), max(row["value"] for row in rows)
    return f"{low:.2f}×" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f}× to {high:.2f}×"


def tally(ratios: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Count the outcomes of a grid."""
    return Counter(map(outcome, ratios))


def between(low: float | None, high: float | None) -> str:
    """Write a 95% interval for a metric's second line."""
    return "one prompt: no interval" if low is None or high is None else f"95%: {low:.2f} to {high:.2f}"


def speed_sentence(run: Mapping[str, Any]) -> str:
    """Say how fast a run was, or why that cannot be said."""
    spread = f"seconds per step vary {run['timing_spread']:.1f}-fold between prompts (middle half)"
    if run["speedup"] is None:
        why = "no run without a draft was timed beside it"
    elif run["timing_spread"] > STEADY:
        why = spread
    else:
        return f"{run['speedup']:.2f}× the speed of decoding without a draft ({run['tokens_per_sec']:.0f} tokens/s)."
    return f"No speedup is claimed: {why}. Tokens per step do not depend on the machine."


def assumption_sentence(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Say whether predictions made beforehand held, by the intervals of their gaps."""
    static, depth, same = (found[name] for name in ("static_gap", "by_depth_gap", "same_prompts_gap"))
    if static["low"] <= 0.0 <= static["high"]:
        verdict = "**the vector is not contradicted**"
    else:
        verdict = f"**the vector promises too {'much' if static['value'] > 0 else 'little'}**"
    return (
        f"Predicted less measured: {_gap(static)} for the vector, {_gap(depth)} by depth; {verdict}. "
        f"On the very prompts it was measured on, where how hard they are cancels out, it is off by {_gap(same)}."
    )


def _gap(row: Mapping[str, Any]) -> str:
    return f"{row['value']:+.2f} ({row['low']:+.2f} to {row['high']:+.2f})"


def run_line(run: Mapping[str, Any]) -> Row:
    """Return one run as a line of a table for people."""
    spread = "" if run["ci_low"] is None else f" ({run['ci_low']:.2f} to {run['ci_high']:.2f})"
    fast = run["speedup"] is not None and run["timing_spread"] <= STEADY
    return {
        "Setting": sampling_label(run),
        "Verifier": NAMES.get(run["verifier"], run["verifier"]),
        "Tokens per step": f"{run['tokens_per_step']:.2f}" + spread,
        "Speedup": f"{run['speedup']:.2f}×" if fast else "unreliable" if run["speedup"] else "not timed",
    }


def cell_rows(cells: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the cells of a losslessness check for a table, their texts shown literally."""
    return [{"text": cell_name(cell)} | {k: v for k, v in cell.items() if k != "text"} for cell in cells]


def literal(text: str, limit: int = 60) -> str:
    """Write text that nobody vouches for so that it is seen as it is: quoted, control characters spelled out."""
    quoted = repr(text)
    return quoted if len(quoted) <= limit else f"{quoted[: limit - 1]}…"


def cell_name(cell: Mapping[str, Any]) -> str:
    """Name a cell of a losslessness check."""
    if not cell["pooled"]:
        return literal(cell["text"])
    return f"{literal(cell['text'])} + any rarer token" if cell["tokens"] else "all rarer texts"


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
