"""Two runs beside each other: what was asked differently, where their texts part, step by step. No Streamlit here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

SETTINGS = {
    "Prompt": "prompt",
    "Tree": "tree_source",
    "Temperature": "temperature",
    "Top-p": "top_p",
    "Verifier": "verifier",
    "Seed": "seed",
    "New tokens": "max_new_tokens",
    "Target": "target",
    "Draft": "draft",
    "Number format": "dtype",
    "Device": "device",
    "Streamed from": "offload",
}


@dataclass(frozen=True, slots=True)
class Parting:
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


def parting(left: dict[str, Any], right: dict[str, Any]) -> Parting | None:
    """Return where two texts part; None when they are equal."""
    texts = [text_of(left), text_of(right)]
    if texts[0] == texts[1]:
        return None
    same = len(os.path.commonprefix(texts))
    return Parting(same, (_step_at(left["steps"], same), _step_at(right["steps"], same)))


def _step_at(steps: Sequence[dict[str, Any]], character: int) -> int | None:
    """Return the step that committed a character of the text."""
    end = 0
    for step in steps:
        end += sum(map(len, step["pieces"]))
        if end > character:
            return step["index"]
    return None


def setting_rows(left: dict[str, Any], right: dict[str, Any], *, only_differences: bool) -> list[dict[str, Any]]:
    """Return a row `setting`, `left`, `right` for each thing that was asked, as text."""
    rows = [
        {"setting": label, "left": str(left.get(name)), "right": str(right.get(name))}
        for label, name in SETTINGS.items()
    ]
    return [row for row in rows if not only_differences or row["left"] != row["right"]]


def step_rows(left: dict[str, Any], right: dict[str, Any], *, only_differences: bool) -> list[dict[str, Any]]:
    """Return a row for each step: per run its text, the size of its tree and its milliseconds; None where it has ended.

    A difference is another text or another tree; times always differ.
    """
    rows = []
    for index, (a, b) in enumerate(zip_longest(left["steps"], right["steps"])):
        first, second = _step_row(left, a), _step_row(right, b)
        differ = a is None or b is None or first["text"] != second["text"] or _tree(left, a) != _tree(right, b)
        if differ or not only_differences:
            names = ("text", "nodes", "ms")
            rows.append(
                {"step": index + 1}
                | {f"{name} {i + 1}": s[name] for name in names for i, s in enumerate((first, second))}
            )
    return rows


def _tree(run: dict[str, Any], step: dict[str, Any]) -> list[int]:
    return run["shapes"][step["shape"]]


def _step_row(run: dict[str, Any], step: dict[str, Any] | None) -> dict[str, Any]:
    if step is None:
        return {"text": None, "nodes": None, "ms": None}
    return {"text": "".join(step["pieces"]), "nodes": len(_tree(run, step)), "ms": 1000 * sum(step["seconds"])}
