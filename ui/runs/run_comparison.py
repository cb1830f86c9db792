"""Differences between two runs: settings, texts and steps. No Streamlit."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pandas.io.formats.style import Styler

COMPARED_SETTINGS = {
    "Prompt": "prompt",
    "Prompt's end": "prompt_ending",
    "Template arguments": "template_arguments",
    "Tree": "tree_source",
    "Temperature": "temperature",
    "Top-p": "top_p",
    "First child cut": "first_cut",
    "Verifier": "verifier",
    "Seed": "seed",
    "New tokens": "max_new_tokens",
    "Target": "target",
    "Draft": "draft",
    "Dtype": "dtype",
    "Device": "device",
    "Streamed from": "offload",
}
NAMES = ("A", "B")  # of two runs that are compared
BADGES = {"A": ":blue-badge[A]", "B": ":yellow-badge[B]"}
SHADES = {"A": "rgba(47, 132, 196, 0.18)", "B": "rgba(176, 132, 28, 0.18)"}  # readable in both themes


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the texts of two runs diverge.

    Attributes:
        same: length of the common prefix in characters.
        steps: for each run, the step that committed its first different character; None if its text ends there.
    """

    same: int
    steps: tuple[int | None, int | None]


def full_text(run: dict[str, Any]) -> str:
    """Return the text committed by a run's steps."""
    return "".join(piece for step in run["steps"] for piece in step["pieces"])


def find_divergence(left: dict[str, Any], right: dict[str, Any]) -> Divergence | None:
    """Return where two texts diverge; None if they are equal."""
    texts = [full_text(left), full_text(right)]
    if texts[0] == texts[1]:
        return None
    same = len(os.path.commonprefix(texts))  # noqa: RUF071  a prefix of characters is intended
    return Divergence(same, (_step_at(left["steps"], same), _step_at(right["steps"], same)))


@dataclass(frozen=True, slots=True)
class DifferentToken:
    """The first token in which two greedy runs differ.

    Attributes:
        position: number of tokens before this one.
        gap: difference between the two tokens' logits in the first run's target row; None unless the row has both.
    """

    position: int
    texts: tuple[str, str]
    gap: float | None


def first_different_token(left: dict[str, Any], right: dict[str, Any]) -> DifferentToken | None:
    """Return the first token in which two greedy runs differ; None if one of them ends before that."""
    for position, ((one, row), (other, _)) in enumerate(zip(_tokens(left), _tokens(right), strict=False)):
        if one != other:
            likely = {} if row is None else dict(zip(row["texts"], row["probs"], strict=True))
            # The probabilities are at temperature 1, so the logarithm of their ratio is the difference between the
            # logits.
            ours = likely.get(one)
            theirs = likely.get(other)
            gap = math.log(ours / theirs) if ours and theirs else None
            return DifferentToken(position, (one, other), gap)
    return None


def _tokens(run: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield each committed token and the target's likely tokens at its position, if recorded."""
    for step in run["steps"]:
        after = [*(step["tokens"][node] for node in step["path"][1:]), step["bonus"]]
        rows = step.get("rows") or [None] * len(after)
        for text, row, _ in zip(after, rows, step["pieces"], strict=False):
            yield text, row and row["target"]


def _step_at(steps: Sequence[dict[str, Any]], character: int) -> int | None:
    """Return the index of the step that committed a character of the text."""
    end = 0
    for step in steps:
        end += sum(map(len, step["pieces"]))
        if end > character:
            return step["index"]
    return None


def setting_table(left: dict[str, Any], right: dict[str, Any], *, only_differences: bool) -> pd.DataFrame:
    """Return a row with the text columns `setting`, `A` and `B` for each setting."""
    asked = {
        side: [str(run.get(name)) for name in COMPARED_SETTINGS.values()]
        for side, run in zip(NAMES, (left, right), strict=True)
    }
    table = pd.DataFrame({"setting": list(COMPARED_SETTINGS), **asked})
    return table[table["A"] != table["B"]] if only_differences else table


def steps_frame(run: dict[str, Any]) -> pd.DataFrame:
    """Return a row for each step of a run, with its `text`, `tree`, number of `nodes`, and time in `ms`."""
    steps = run["steps"]
    trees = [tuple(run["shapes"][step["shape"]]) for step in steps]
    return pd.DataFrame(
        {
            "text": ["".join(step["pieces"]) for step in steps],
            "tree": trees,
            "nodes": pd.array([len(tree) for tree in trees], dtype="Int64"),
            "ms": [1000 * sum(step["seconds"]) for step in steps],
        },
        index=pd.RangeIndex(1, len(steps) + 1, name="step"),
    )


def step_table(left: dict[str, Any], right: dict[str, Any], *, only_differences: bool) -> pd.DataFrame:
    """Return a row for each step, with each run's text, tree size and milliseconds; missing after a run's end.

    With `only_differences`, steps with the same text and tree are omitted, even if their times differ.
    """
    both = steps_frame(left).join(steps_frame(right), how="outer", lsuffix=" A", rsuffix=" B")
    if only_differences:
        both = both[(both["text A"] != both["text B"]) | (both["tree A"] != both["tree B"])]
    return both[[f"{column} {name}" for column in ("text", "nodes", "ms") for name in NAMES]]


def shade_runs(table: pd.DataFrame) -> Styler:
    """Return a table whose columns of A and of B have the colours of these runs."""
    styler = table.style.format(precision=1)
    for name, shade in SHADES.items():
        columns = [column for column in table if column.split()[-1] == name]
        styler.set_properties(subset=columns, **{"background-color": shade})
    return styler
