"""Runs to and from files: JSON lines, the header first, then one line per step. No Streamlit here.

A file may come from anybody: everything in it is checked before a page or the live tree sees it.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from sequoia_core.design.conditions import TRAVERSAL, VERIFIERS
from sequoia_core.design.tree import TokenTree
from sequoia_core.files.safe_files import checked, kind_of, read_bytes, read_json
from sequoia_core.models.chat import ROLES
from ui.runs import FORMAT, VERSION
from ui.tree_layout import MAX_DRAWN

MAX_STEPS = 10_000
MAX_LIKELY = 100
MAX_TURNS = 10_000
Positive = Annotated[FiniteFloat, Field(ge=0)]
Chance = Annotated[FiniteFloat, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Baseline(_Strict):
    tokens: Annotated[int, Field(ge=0)]
    seconds: Positive


class _Turn(_Strict):
    role: Literal[ROLES]
    text: str


class _Header(_Strict):
    format: Literal[FORMAT]
    version: Literal[VERSION]
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    prompt: str
    turns: Annotated[list[_Turn], Field(max_length=MAX_TURNS)] = []
    remarks: Annotated[list[str], Field(max_length=MAX_TURNS)] = []
    tree_source: str
    temperature: Positive
    top_p: Annotated[FiniteFloat, Field(gt=0, le=1)]
    max_new_tokens: Annotated[int, Field(ge=1)]
    verifier: Literal[(*VERIFIERS, TRAVERSAL)]
    seed: int
    target: str | None
    draft: str | None
    dtype: str | None
    device: str | None
    offload: Literal["disk", "host"] | None = None
    read_bytes_per_sec: Positive | None = None
    expected_tokens: Positive | None
    predicted_speedup: Positive | None
    prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    predicted_interval: Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = None
    baseline: _Baseline | None
    text: str
    shapes: Annotated[list[Annotated[list[int], Field(max_length=MAX_DRAWN)]], Field(max_length=MAX_STEPS)]


class _Likely(_Strict):
    texts: Annotated[list[str], Field(max_length=MAX_LIKELY)]
    probs: list[Chance]


class _Rows(_Strict):
    node: int
    target: _Likely
    draft: _Likely
    residuals: Annotated[list[_Likely], Field(max_length=MAX_DRAWN)]


class _LeftOut(_Strict):
    parent: Annotated[int, Field(ge=0)]
    text: str | None
    gain: Chance


class _Marginal(_Strict):
    gains: list[Chance]
    costs: list[Positive | None]
    next_cost: Positive | None
    left_out: Annotated[list[_LeftOut], Field(max_length=MAX_LIKELY)]


class _Step(_Strict):
    index: int
    shape: Annotated[int, Field(ge=0)]
    tokens: list[str]
    outcomes: Annotated[str, Field(pattern="^[ARN]*$")]
    draft: list[FiniteFloat | None]
    target: list[FiniteFloat | None]
    path: Annotated[list[int], Field(min_length=1)]
    bonus: str | None
    pieces: list[str]
    trials: list[Annotated[list[FiniteFloat | None], Field(min_length=4, max_length=4)]]
    seconds: Annotated[list[Positive], Field(min_length=4, max_length=4)]
    read_wait_sec: Positive = 0.0
    finished: Literal["eos", "length", "context"] | None
    rows: list[_Rows] = []
    marginal: _Marginal | None = None


def run_to_bytes(run: dict[str, Any]) -> bytes:
    """Return a run as JSON lines, which `run_from_bytes` reads back."""
    header = {name: value for name, value in run.items() if name != "steps"}
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in (header, *run["steps"])).encode()


def load_run(path: str | Path) -> dict[str, Any]:
    """Read a run from a file; see `run_from_bytes`."""
    return run_from_bytes(read_bytes(path), str(path))


def run_from_bytes(data: bytes, name: str) -> dict[str, Any]:
    """Read a run, also of version 1: one JSON object with one tree for all steps.

    Args:
        name: of the file, for errors.

    Raises:
        ValueError: naming the file, what was found and what was expected.
    """
    lines = data.splitlines()
    try:
        first = read_json(lines[0]) if lines else None
        if not isinstance(first, dict) or first.get("format") != FORMAT:
            raise ValueError(f"found {kind_of(data)}, expected a run: JSON lines, the first of format {FORMAT!r}")
        if first.get("version") == 1:
            first, steps = _upgraded(first)
        else:
            steps = _steps_of(lines[1:])
        return _checked_run(first, steps)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _upgraded(run: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return header and steps of a run of version 1 as version 2 has them."""
    steps = run.pop("steps", None)
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ValueError("steps: found no list of objects, expected the steps of the run")
    return run | {"version": VERSION, "shapes": [run.pop("parents", None)]}, [{**step, "shape": 0} for step in steps]


def _steps_of(lines: list[bytes]) -> list[Any]:
    if len(lines) > MAX_STEPS:
        raise ValueError(f"found {len(lines):,} steps, expected at most {MAX_STEPS:,}")
    steps = []
    for number, line in enumerate(lines, start=2):
        try:
            steps.append(read_json(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return steps


def _checked_run(first: dict[str, Any], steps: list[Any]) -> dict[str, Any]:
    header = checked(_Header, first).model_dump()
    trees = [TokenTree(np.array(parents)) for parents in header["shapes"]]
    found = []
    for index, raw in enumerate(steps):
        try:
            step = checked(_Step, raw)
            _check_step(step, index, trees)
        except ValueError as error:
            raise ValueError(f"step {index}: {error}") from error
        found.append(step.model_dump(exclude_unset=True))
    return header | {"steps": found}


def _check_step(step: _Step, index: int, trees: list[TokenTree]) -> None:
    """Refuse a step that does not fit its tree."""
    if step.index != index:
        raise ValueError(f"index: found {step.index}, expected {index}")
    if step.shape >= len(trees):
        raise ValueError(f"shape: found {step.shape}, expected one of {len(trees)} shapes")
    tree = trees[step.shape]
    for name in ("tokens", "outcomes", "draft", "target"):
        if len(getattr(step, name)) != tree.size:
            raise ValueError(f"{name}: found {len(getattr(step, name))}, expected one for each of {tree.size} nodes")
    inside = range(tree.size)
    joined = all(below in inside and tree.parents[below] == above for above, below in pairwise(step.path))
    if step.path[0] != 0 or not joined:
        raise ValueError("path: found nodes that are no path, expected one from the root along edges of the tree")
    if not 1 <= len(step.pieces) <= len(step.path):
        raise ValueError(
            f"pieces: found {len(step.pieces)}, expected 1 to {len(step.path)}, the last of them the bonus"
        )
    if (step.bonus is not None) != (len(step.pieces) == len(step.path)):
        raise ValueError("bonus: found one without its piece or a piece without it, expected both or neither")
    if step.rows and [rows.node for rows in step.rows] != step.path:
        raise ValueError("rows: found other nodes than those of the path, expected one for each of them")
    for likely in (each for rows in step.rows for each in (rows.target, rows.draft, *rows.residuals)):
        if len(likely.texts) != len(likely.probs):
            raise ValueError(
                f"rows: found {len(likely.probs)} probabilities, expected one for each of {len(likely.texts)} texts"
            )
    if any(trial[0] not in inside or trial[0] == 0 for trial in step.trials):
        raise ValueError(f"trials: found a node that is not drafted, expected 1 to {tree.size - 1}")
    if step.marginal is not None:
        for name in ("gains", "costs"):
            if (found := len(getattr(step.marginal, name))) != tree.size:
                raise ValueError(f"marginal.{name}: found {found}, expected one for each of {tree.size} nodes")
        if any(one.parent >= tree.size for one in step.marginal.left_out):
            raise ValueError(f"marginal.left_out: found a parent beyond the tree, expected one of {tree.size} nodes")
