"""Reading and writing runs as JSON Lines: a header, then one line per step. Every field is validated when read."""

import json
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sequoia_core.files.file_types import file_type
from sequoia_core.files.json_models import validate_model
from sequoia_core.files.safe_files import read_bytes, read_json
from sequoia_core.trees.tree import TokenTree
from ui.runs.run_schema import MAX_RUN_STEPS, RUN_FORMAT, RUN_VERSION, RunHeader, StepRecord


def run_to_bytes(run: dict[str, Any]) -> bytes:
    """Serialize a run as JSON Lines, which `run_from_bytes` reads."""
    header = {name: value for name, value in run.items() if name != "steps"}
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in (header, *run["steps"])).encode()


def load_run(path: str | Path) -> dict[str, Any]:
    """Read a run from a file; see `run_from_bytes`."""
    return run_from_bytes(read_bytes(path), str(path))


def run_from_bytes(data: bytes, name: str) -> dict[str, Any]:
    """Parse a run; a version 1 file is a single JSON object with one tree for all steps."""
    lines = data.splitlines()
    try:
        first = read_json(lines[0]) if lines else None
        if not isinstance(first, dict) or first.get("format") != RUN_FORMAT:
            raise ValueError(
                f"found {file_type(data)}, expected a run: JSON Lines, the first with format {RUN_FORMAT!r}"
            )
        if first.get("version") == 1:
            first, steps = _upgrade_version_1(first)
        else:
            steps = _parse_steps(lines[1:])
        return _validate_run(first, steps)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _upgrade_version_1(run: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Convert a version 1 run to the header and steps that version 2 stores."""
    steps = run.pop("steps", None)
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ValueError("steps: found something other than a list of objects, expected the run's steps")
    header = run | {"version": RUN_VERSION, "shapes": [run.pop("parents", None)]}
    return header, [{**step, "shape": 0} for step in steps]


def _parse_steps(lines: list[bytes]) -> list[Any]:
    if len(lines) > MAX_RUN_STEPS:
        raise ValueError(f"found {len(lines):,} steps, expected at most {MAX_RUN_STEPS:,}")
    steps = []
    for number, line in enumerate(lines, start=2):
        try:
            steps.append(read_json(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
    return steps


def _validate_run(first: dict[str, Any], steps: list[Any]) -> dict[str, Any]:
    header = validate_model(RunHeader, first).model_dump()
    trees = [TokenTree(np.array(parents)) for parents in header["shapes"]]
    records = []
    for index, raw in enumerate(steps):
        try:
            step = validate_model(StepRecord, raw)
            if step.index != index:
                raise ValueError(f"index: found {step.index}, expected {index}")
            if step.shape >= len(trees):
                raise ValueError(
                    f"shape: found {step.shape}, expected an index below {len(trees)} (the number of shapes)"
                )
            tree = trees[step.shape]
            _check_node_lists(step, tree.size)
            _check_path(step, tree)
            _check_rows(step)
        except ValueError as error:
            raise ValueError(f"step {index}: {error}") from error
        records.append(_cut_at_end(step.model_dump(exclude_unset=True), tree))
    return header | {"steps": records}


def _check_node_lists(step: StepRecord, size: int) -> None:
    """Raise ValueError unless the lists have one entry per node and all node numbers are in the tree."""
    lists: dict[str, Any] = {name: getattr(step, name) for name in ("tokens", "outcomes", "draft", "target")}
    if step.found_at:
        lists["found_at"] = step.found_at
    if step.marginal is not None:
        lists |= {"marginal.gains": step.marginal.gains, "marginal.costs": step.marginal.costs}
        if any(node.parent >= size for node in step.marginal.left_out):
            raise ValueError(f"marginal.left_out: found a parent outside the tree, expected 0 to {size - 1}")
    for name, values in lists.items():
        if len(values) != size:
            raise ValueError(f"{name}: found {len(values)} values, expected {size} (one per node)")
    if any(trial[0] not in range(1, size) for trial in step.trials):
        raise ValueError(f"trials: found a node that was not drafted, expected 1 to {size - 1}")


def _check_path(step: StepRecord, tree: TokenTree) -> None:
    """Raise ValueError unless the path follows the tree's edges and matches the committed text."""
    path = step.path
    committed = len(step.pieces)
    joined = all(below in range(tree.size) and tree.parents[below] == above for above, below in pairwise(path))
    if path[0] != 0 or not joined:
        raise ValueError(
            "path: found nodes that do not form a path, expected a path from the root along the tree's edges"
        )
    if not 1 <= committed <= len(path):
        raise ValueError(f"pieces: found {committed}, expected 1 to {len(path)}, including the bonus")
    if (step.bonus is not None) != (committed == len(path)):
        raise ValueError("bonus: found a bonus token without a piece or the reverse, expected both or neither")


def _check_rows(step: StepRecord) -> None:
    """Raise ValueError unless rows are complete and exist for all nodes of the path or for none."""
    if step.rows and [row.node for row in step.rows] != step.path:
        raise ValueError("rows: found different nodes than in the path, expected one row for each node of the path")
    for likely in chain.from_iterable((row.target, row.draft, *row.residuals) for row in step.rows):
        texts = len(likely.texts)
        probs = len(likely.probs)
        if texts != probs:
            raise ValueError(f"rows: found {probs} probabilities, expected {texts} (one per text)")


def _cut_at_end(step: dict[str, Any], tree: TokenTree) -> dict[str, Any]:
    """Drop the part of a walk after the end of the text, which older files contain."""
    end = len(step["pieces"])
    if end >= len(step["path"]) - 1:
        return step
    inside = [depth <= end for depth in tree.depths]
    cut = {
        "path": step["path"][: end + 1],
        "outcomes": "".join(code if known else "N" for code, known in zip(step["outcomes"], inside, strict=True)),
        "trials": [trial for trial in step["trials"] if inside[int(trial[0])]],
    }
    if "rows" in step:
        cut["rows"] = step["rows"][: end + 1]
    return step | cut
