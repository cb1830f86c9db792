"""Runs to and from files: JSON lines, header first, then one line per step; all of it is checked. No Streamlit."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, JsonValue, TypeAdapter

from sequoia_core.design.conditions import TRAVERSAL, VERIFIERS
from sequoia_core.design.tree import TokenTree
from sequoia_core.files.file_kinds import kind_of
from sequoia_core.files.json_models import checked
from sequoia_core.files.safe_files import read_bytes, read_json
from sequoia_core.models.chat import ROLES
from ui.runs.runs import FORMAT, VERSION, Positive, StepRecord
from ui.tree_layout import MAX_DRAWN

MAX_STEPS = 10_000
MAX_TURNS = 10_000
MAX_ARGUMENTS = 100
MAX_SETTINGS, MAX_SETTING_CHARS = 100, 100
if TYPE_CHECKING:  # mypy takes no computed literals
    Role: TypeAlias = str
    Format: TypeAlias = str
    Version: TypeAlias = int
    Verifier: TypeAlias = str
else:
    Role, Format, Version = Literal[ROLES], Literal[FORMAT], Literal[VERSION]
    Verifier = Literal[(*VERIFIERS, TRAVERSAL)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Baseline(_Strict):
    tokens: Annotated[int, Field(ge=0)]
    seconds: Positive


class _Turn(_Strict):
    role: Role
    text: str


class _Header(_Strict):
    format: Format
    version: Version
    id: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    prompt: str
    turns: Annotated[list[_Turn], Field(max_length=MAX_TURNS)] = []
    remarks: Annotated[list[str], Field(max_length=MAX_TURNS)] = []
    prompt_ending: Annotated[str, Field(max_length=80)] | None = None
    template_arguments: Annotated[dict[str, JsonValue], Field(max_length=MAX_ARGUMENTS)] = {}
    tree_source: str
    temperature: Positive
    top_p: Annotated[FiniteFloat, Field(gt=0, le=1)]
    first_cut: bool | None = None  # files of top-p < 1 that do not say it drew first children from uncut rows
    max_new_tokens: Annotated[int, Field(ge=1)]
    verifier: Verifier
    seed: int
    target: str | None
    draft: str | None
    head: bool = False
    dtype: str | None
    device: str | None
    settings_left_out: Annotated[
        list[Annotated[str, Field(max_length=MAX_SETTING_CHARS)]], Field(max_length=MAX_SETTINGS)
    ] = []
    offload: Literal["disk", "host"] | None = None
    read_bytes_per_sec: Positive | None = None
    expected_tokens: Positive | None
    predicted_speedup: Positive | None
    prompt_tokens: Annotated[int, Field(ge=1)] | None = None
    predicted_interval: Annotated[list[Positive], Field(min_length=2, max_length=2)] | None = None
    baseline: _Baseline | None
    text: str
    shapes: Annotated[list[Annotated[list[int], Field(max_length=MAX_DRAWN)]], Field(max_length=MAX_STEPS)]


_STEP = TypeAdapter(StepRecord)


def run_to_bytes(run: dict[str, Any]) -> bytes:
    """Return a run as JSON lines, which `run_from_bytes` reads back."""
    header = {name: value for name, value in run.items() if name != "steps"}
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in (header, *run["steps"])).encode()


def load_run(path: str | Path) -> dict[str, Any]:
    """Read a run from a file; see `run_from_bytes`."""
    return run_from_bytes(read_bytes(path), str(path))


def run_from_bytes(data: bytes, name: str) -> dict[str, Any]:
    """Read a run, also of version 1: one JSON object with one tree for all steps."""
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
            step = checked(_STEP, raw)
            _check_step(step, index, trees)
        except ValueError as error:
            raise ValueError(f"step {index}: {error}") from error
        found.append(_up_to_the_end(step, trees[step["shape"]]))
    return header | {"steps": found}


def _up_to_the_end(step: StepRecord, tree: TokenTree) -> StepRecord:
    """Return a step without what its walk found beyond the end of the text, which older records hold too."""
    end = len(step["pieces"])
    if end >= len(step["path"]) - 1:
        return step
    inside = [depth <= end for depth in tree.depths]
    cut = {
        "path": step["path"][: end + 1],
        "outcomes": "".join(code if known else "N" for code, known in zip(step["outcomes"], inside, strict=True)),
        "trials": [trial for trial in step["trials"] if trial[0] is not None and inside[int(trial[0])]],
    }
    rows = {"rows": step["rows"][: end + 1]} if "rows" in step else {}
    return cast("StepRecord", {**step, **cut, **rows})


def _check_step(step: StepRecord, index: int, trees: list[TokenTree]) -> None:
    """Refuse a step that does not fit its tree."""
    shape, path, pieces = step["shape"], step["path"], step["pieces"]
    rows, marginal, found_at = step.get("rows", []), step.get("marginal"), step.get("found_at", [])
    if step["index"] != index:
        raise ValueError(f"index: found {step['index']}, expected {index}")
    if shape >= len(trees):
        raise ValueError(f"shape: found {shape}, expected one of {len(trees)} shapes")
    tree = trees[shape]
    for name in ("tokens", "outcomes", "draft", "target"):
        if len(step[name]) != tree.size:
            raise ValueError(f"{name}: found {len(step[name])}, expected one for each of {tree.size} nodes")
    inside = range(tree.size)
    joined = all(below in inside and tree.parents[below] == above for above, below in pairwise(path))
    if path[0] != 0 or not joined:
        raise ValueError("path: found nodes that are no path, expected one from the root along edges of the tree")
    if not 1 <= len(pieces) <= len(path):
        raise ValueError(f"pieces: found {len(pieces)}, expected 1 to {len(path)}, the last of them the bonus")
    if (step["bonus"] is not None) != (len(pieces) == len(path)):
        raise ValueError("bonus: found one without its piece or a piece without it, expected both or neither")
    if rows and [row["node"] for row in rows] != path:
        raise ValueError("rows: found other nodes than those of the path, expected one for each of them")
    for likely in (each for row in rows for each in (row["target"], row["draft"], *row["residuals"])):
        texts, probs = likely["texts"], likely["probs"]
        if len(texts) != len(probs):
            raise ValueError(f"rows: found {len(probs)} probabilities, expected one for each of {len(texts)} texts")
    if any(trial[0] not in inside or trial[0] == 0 for trial in step["trials"]):
        raise ValueError(f"trials: found a node that is not drafted, expected 1 to {tree.size - 1}")
    if found_at and len(found_at) != tree.size:
        raise ValueError(f"found_at: found {len(found_at)}, expected one for each of {tree.size} nodes")
    if marginal is not None:
        for name, numbers in (("gains", marginal["gains"]), ("costs", marginal["costs"])):
            if len(numbers) != tree.size:
                raise ValueError(f"marginal.{name}: found {len(numbers)}, expected one for each of {tree.size} nodes")
        if any(one["parent"] >= tree.size for one in marginal["left_out"]):
            raise ValueError(f"marginal.left_out: found a parent beyond the tree, expected one of {tree.size} nodes")
