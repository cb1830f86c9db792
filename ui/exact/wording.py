"""What evidence says in words: which verifier wins, whether a prediction held, how fast a run was."""

from collections.abc import Mapping, Sequence
from typing import Any

from ui.markdown import quoted
from ui.phrases import beside
from ui.verifier_names import COMPARED

Row = dict[str, Any]
STEADY = 1.3  # upper ÷ lower quartile of seconds per step up to which a timing is worth a claim


def sampling_label(row: Mapping[str, Any]) -> str:
    """Name a way of sampling: temperature, and top-p where it cuts something."""
    return f"T = {row['temperature']:g}" + (f", top-p {row['top_p']:g}" if row["top_p"] < 1 else "")


def at_setting(rows: Sequence[Row], shown: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the same way of sampling."""
    return [row for row in rows if sampling_label(row) == sampling_label(shown)]


def along(axis: str, rows: Sequence[Row], shown: Mapping[str, Any]) -> list[Row]:
    """Return the rows over temperature or top-p that belong with the one on show.

    The other of the two stays what it is there, or where it has the most points. Temperature 0, where top-p changes
    nothing, belongs with every top-p.

    Args:
        axis: "temperature" or "top_p".
    """
    other = "top_p" if axis == "temperature" else "temperature"
    cold = [row for row in rows if row["temperature"] == 0 and axis == "temperature"]
    hot = sorted((row for row in rows if row["temperature"] > 0), key=lambda row: -row[other])
    if not hot:
        return cold
    points: dict[float, set[float]] = {}
    for row in hot:
        points.setdefault(row[other], set()).add(row[axis])
    held = most = max(points, key=lambda value: len(points[value]))
    if shown["temperature"] > 0 and (len(points.get(shown[other], ())) > 1 or len(points[most]) == 1):
        held = shown[other]
    return cold + [row for row in hot if row[other] == held]


def outcome(ratio: Mapping[str, Any]) -> str:
    """Say which one wins by the 95% interval of a ratio: "wins", "ties", "loses", or "unknown" without an interval."""
    if ratio["low"] is None or ratio["high"] is None:
        return "unknown"
    return "wins" if ratio["low"] > 1.0 else "loses" if ratio["high"] < 1.0 else "ties"


def optimum_sentence(curves: Sequence[Mapping[str, Any]]) -> str:
    """Say how near the verifiers come to the best possible one, for rows of one setting; empty where it is unknown."""
    widest = max((row["rank"] for row in curves if row["verifier"] == "optimum"), default=None)
    if widest is None:
        return ""
    accepted = {row["verifier"]: 1.0 - row["rejection"] for row in curves if row["rank"] == widest}
    return (
        f" Of {widest} children drawn without replacement no verifier could accept one more often than "
        f"{accepted['optimum']:.1%} (Sequoia: {accepted['sequoia']:.1%}); with replacement, than "
        f"{accepted['optimum_with_replacement']:.1%} (SpecInfer: {accepted['specinfer']:.1%}). "
        f"Top-k: {accepted['topk']:.1%}, and none could be better with its children."
    )


def speed_sentence(run: Mapping[str, Any]) -> str:
    """Say how fast a run was, or why that cannot be said."""
    spread = f"seconds per step vary {run['timing_spread']:.1f}-fold between prompts (middle half)"
    if run["speedup"] is None:
        why = "no run without a draft was timed beside it"
    elif run["timing_spread"] > STEADY:
        why = spread
    else:
        slower = "" if run["speedup"] >= 1 else "; verifying this tree costs more here than it yields, see Machine"
        alone = run["tokens_per_sec"] / run["speedup"]
        return (
            f"{run['speedup']:.2f}× the speed of decoding without a draft, {run['tokens_per_sec']:,.0f} against "
            f"{alone:,.0f} tokens/s, timed one after the other{slower}."
        )
    return f"No speedup is claimed: {why}. Tokens per step do not depend on the machine."


def specinfer_sentence(runs: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str | None:
    """Say how SpecInfer's two lines differ; None where only its rule was compared."""
    if all(run["verifier"] != "specinfer_tree" for run in runs):
        return None
    return (
        f"*SpecInfer* is its rule on the same tree as Sequoia's, n = {len(settings['tree'])}. *SpecInfer 5 × 8 trees* "
        "are its own shape, five chains of eight tokens (n = 41), drawn and verified by its own rule: shape and rule "
        "together, as the Sequoia paper compares them."
    )


def lacking_beside(runs: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str | None:
    """Say which trees a comparison lacks beside its own, and how to get them; None where it has all."""
    asked = settings.get("beside")
    if asked is None:
        return (
            "Lookup and hybrid trees and SpecInfer 5 × 8 trees are not in this recording: run the comparison on your "
            "pair for theirs."
        )
    has = {kind: [sampling_label(run) for run in runs if run["verifier"] == kind] for kind in asked}
    labels = dict.fromkeys(map(sampling_label, runs))
    parts = [
        f"{COMPARED[kind]} are missing at {', '.join(label for label in labels if label not in found)}: no acceptance "
        "vector with a calibration holds there. Measure one on the draft page."
        for kind, found in has.items()
        if set(found) != set(labels)
    ]
    return " ".join(parts) or None


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
    return f"{row['value']:+.2f}{beside(row['low'], row['high'], '{:+.2f}')}"


def losslessness_sentence(record: Mapping[str, Any]) -> str:
    """Say what a check compared and what follows from it."""
    compared = (
        f"Compared: the first {record['settings']['new_tokens']} tokens of every continuation with the target's own "
        "odds, computed without a draft."
    )
    if record["degrees_of_freedom"] == 0 and record["passed"]:
        return f"{compared} Here they leave only one outcome, and every sample was it: a warmer setting tests more."
    chance = f"By chance a lossless decoder deviates at least as much with a probability of {record['p_value']:.2g}"
    if record["passed"]:
        return (
            f"{compared} {chance}, so nothing here contradicts losslessness; an error too small for this many samples "
            "to show would pass as well."
        )
    return f"{compared} {chance}, too little to be chance: **something is wrong**."


def run_line(run: Mapping[str, Any]) -> Row:
    """Return one run as a line of a table for people."""
    fast = run["speedup"] is not None and run["timing_spread"] <= STEADY
    return {
        "Setting": sampling_label(run),
        "Verifier": COMPARED.get(run["verifier"], run["verifier"]),
        "Tokens per step": f"{run['tokens_per_step']:.2f}" + beside(run["ci_low"], run["ci_high"]),
        "Speedup": f"{run['speedup']:.2f}×" if fast else "unreliable" if run["speedup"] else "not timed",
    }


def cell_rows(cells: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the cells of a losslessness check for a table, their texts shown literally."""
    return [{"text": cell_name(cell)} | {k: v for k, v in cell.items() if k != "text"} for cell in cells]


def cell_name(cell: Mapping[str, Any]) -> str:
    """Name a cell of a losslessness check."""
    if not cell["pooled"]:
        return quoted(cell["text"])
    return f"{quoted(cell['text'])} + any rarer token" if cell["tokens"] else "all rarer texts"
