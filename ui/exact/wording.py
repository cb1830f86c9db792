"""Verbal summaries of the evidence: which verifier wins, and whether the check passed."""

from collections.abc import Mapping, Sequence
from typing import Any

from ui.markdown import quoted
from ui.phrases import in_parentheses, sampling
from ui.verifier_names import COMPARED_NAMES

Row = dict[str, Any]


def outcome(ratio: Mapping[str, Any]) -> str:
    """Return "wins", "ties" or "loses" according to a ratio's 95% interval; without an interval it is a tie."""
    if ratio["low"] is None or ratio["low"] <= 1.0 <= ratio["high"]:
        return "ties"
    return "wins" if ratio["low"] > 1.0 else "loses"


def outcome_rows(ratios: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return a row per sampling setting with Sequoia's tokens per step ÷ each rival's; ▲ marks a win, ▼ a loss."""
    rows: dict[str, Row] = {}
    for ratio in ratios:
        setting = sampling(ratio["temperature"], ratio["top_p"])
        mark = {"wins": " ▲", "loses": " ▼"}.get(outcome(ratio), "")
        row = rows.setdefault(setting, {"Setting": setting})
        row[COMPARED_NAMES.get(ratio["other"], ratio["other"])] = f"{ratio['value']:.2f}×{mark}"
    return list(rows.values())


def specinfer_sentence(settings: Mapping[str, Any]) -> str:
    """Explain SpecInfer's two lines."""
    return (
        f"*SpecInfer* applies its rule to the same tree as Sequoia, n = {len(settings['tree'])}. "
        "*SpecInfer 5 × 8 trees* combine its rule with its own shape, five chains of eight tokens (n = 41), as in the "
        "Sequoia paper."
    )


def losslessness_sentence(record: Mapping[str, Any]) -> str:
    """Describe what a check compared and what its result means."""
    compared = (
        f"The check compares the first {record['settings']['new_tokens']} tokens of every continuation with the "
        "target's probabilities, computed without a draft."
    )
    if record["degrees_of_freedom"] == 0 and record["passed"]:
        return (
            f"{compared} At these settings, only one outcome is possible, and every sample matched it: a higher "
            "temperature is a stronger test."
        )
    chance = f"A lossless decoder deviates at least this much by chance with probability {record['p_value']:.2g}"
    if record["passed"]:
        return (
            f"{compared} {chance}, so nothing here contradicts losslessness; an error too small to show in this many "
            "samples would also pass."
        )
    return f"{compared} {chance}, which is too unlikely to be chance: **something is wrong**."


def run_line(run: Mapping[str, Any]) -> Row:
    """Return a run as a table row."""
    return {
        "Setting": sampling(run["temperature"], run["top_p"]),
        "Verifier": COMPARED_NAMES.get(run["verifier"], run["verifier"]),
        "Tokens per step": f"{run['tokens_per_step']:.2f}" + in_parentheses(run["ci_low"], run["ci_high"]),
    }


def cell_name(cell: Mapping[str, Any]) -> str:
    """Return a cell's label: its quoted text, or a description of the rarer continuations that it pools."""
    if not cell["pooled"]:
        return quoted(cell["text"])
    return f"{quoted(cell['text'])} + any rarer token" if cell["tokens"] else "all rarer texts"
