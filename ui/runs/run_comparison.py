"""Two runs beside each other: what was asked differently, where their texts part, step by step; no Streamlit."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

SETTINGS = {
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


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the texts of two runs part.

    Attributes:
        same: characters that both begin with.
        steps: per run, the step that committed its first other character; None where its text has ended.
    """

    same: int
    steps: tuple[int | None, int | None]


def text_of(run: dict[str, Any]) -> str:
    """Return what the steps of a run committed."""
    return "".join(piece for step in run["steps"] for piece in step["pieces"])


def divergence(left: dict[str, Any], right: dict[str, Any]) -> Divergence | None:
    """Return where two texts part; None when they are equal."""
    texts = [text_of(left), text_of(right)]
    if texts[0] == texts[1]:
        return None
    same = len(os.path.commonprefix(texts))  # noqa: RUF071  characters are meant
    return Divergence(same, (_step_at(left["steps"], same), _step_at(right["steps"], same)))


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first token in which two runs differ.

    Attributes:
        place: tokens before it.
        gap: of their logits, as the target of the first run gave them; None where it did not record both.
    """

    place: int
    texts: tuple[str, str]
    gap: float | None


def first_token(left: dict[str, Any], right: dict[str, Any]) -> FirstToken | None:
    """Return the first token in which two greedy runs differ; None where one of them ends before."""
    for place, ((one, row), (other, _)) in enumerate(zip(_tokens(left), _tokens(right), strict=False)):
        if one != other:
            likely = {} if row is None else dict(zip(row["texts"], row["probs"], strict=True))
            ours, theirs = likely.get(one), likely.get(other)  # at temperature 1, whose logarithms differ as logits do
            gap = math.log(ours / theirs) if ours and theirs else None
            return FirstToken(place, (one, other), gap)
    return None


def _tokens(run: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield each committed token, and the target's likely ones there where they were recorded."""
    for step in run["steps"]:
        after = [*(step["tokens"][node] for node in step["path"][1:]), step["bonus"]]
        rows = step.get("rows") or [None] * len(after)
        for text, row, _ in zip(after, rows, step["pieces"], strict=False):
            yield text, row and row["target"]


def _step_at(steps: Sequence[dict[str, Any]], character: int) -> int | None:
    """Return the step that committed a character of the text."""
    end = 0
    for step in steps:
        end += sum(map(len, step["pieces"]))
        if end > character:
            return step["index"]
    return None


def setting_table(left: dict[str, Any], right: dict[str, Any], *, only_differences: bool) -> pd.DataFrame:
    """Return a row `setting`, `left`, `right` for each thing that was asked, as text."""
    asked = {
        side: [str(run.get(name)) for name in SETTINGS.values()] for side, run in (("left", left), ("right", right))
    }
    table = pd.DataFrame({"setting": list(SETTINGS), **asked})
    return table[table["left"] != table["right"]] if only_differences else table


def to_frame(run: dict[str, Any]) -> pd.DataFrame:
    """Return a row for each step of a run, from 1: its `text`, its `tree`, the `nodes` of that, and its `ms`."""
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
    """Return a row for each step: per run its text, the size of its tree and its milliseconds; missing where it ended.

    A difference is another text or another tree; times always differ.
    """
    both = to_frame(left).join(to_frame(right), how="outer", lsuffix=" 1", rsuffix=" 2")
    if only_differences:
        both = both[(both["text 1"] != both["text 2"]) | (both["tree 1"] != both["tree 2"])]
    return both[[f"{name} {number}" for name in ("text", "nodes", "ms") for number in (1, 2)]]
