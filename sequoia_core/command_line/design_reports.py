"""Reports, as sentences and tables, for the commands that need no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .formatting import format_duration, format_interval, format_number, format_percent, next_command, plural, table
from .output import Verbatim

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..acceptance.vector import AcceptanceVector
    from ..planning.break_even import LargerTree
    from ..planning.plan import BestShape
    from ..planning.prediction import Prediction, WithoutDepth
    from ..planning.profile import HardwareProfile
    from ..trees.tree import TokenTree

    Parts = Iterator[RenderableType]

MAX_TABLE_ROWS = 32
NEGLIGIBLE_GAIN = 5e-4  # a smaller relative gain in tokens is reported as none
DEPTHS_PER_TABLE = 8  # number of columns that fit into 60 characters


def tree_report(tree: TokenTree, expected: float, acceptance: Path, out: Path | None, note: str | None) -> Parts:
    yield f"The best tree with {plural(tree.size, 'node')} and depth {tree.depth}:"
    yield _levels(tree)
    yield f"Expected tokens per target pass: {format_number(expected)}, compared with 1 without a draft."
    if note is not None:
        yield note
    if out is None:
        yield "Use --out to save it. Whether a tree is faster, and of which size, depends on the machine's pass times."
        yield next_command("plan", "--acceptance", acceptance, "--profile", "profile.json")
    else:
        yield Verbatim(f"Written to {out}.")
        yield next_command("generate", "--prompt", "def read_lines(path):", "--tree", out)


def _levels(tree: TokenTree) -> Any:
    """Return a table with the number of nodes at each depth, and how many children each of them has."""
    counts = tree.child_counts
    rows = [
        (str(depth), f"{len(nodes):,}", _runs(counts[nodes].tolist()) if depth < tree.depth else "–")
        for depth, nodes in enumerate(tree.levels)
    ]
    levels = table(("depth", "nodes", "children of each"), rows)
    levels.columns[-1].justify = "left"
    return levels


def _runs(counts: list[int]) -> str:
    """Format a list of numbers, writing runs of equal numbers as, for example, 0 × 12."""
    runs = [(value, len(list(same))) for value, same in groupby(counts)]
    return ", ".join(f"{value}" if length == 1 else f"{value} × {length}" for value, length in runs)


def table_report(expected: np.ndarray, acceptance: Path) -> Parts:
    """Report G(n, d), float64 [N + 1, D + 1], which is -inf where no tree with this size and depth exists."""
    largest, depths = expected.shape[0] - 1, range(1, expected.shape[1])
    step = max(1, largest // MAX_TABLE_ROWS)
    sizes = [n for n in range(1, largest + 1) if n <= MAX_TABLE_ROWS or n == largest or n % step == 0]
    yield "Highest expected tokens per target pass, for n nodes (rows) and d levels (columns):"
    for start in range(0, len(depths), DEPTHS_PER_TABLE):
        shown = depths[start : start + DEPTHS_PER_TABLE]
        cells = ([f"{value:.3f}" if np.isfinite(value) else "–" for value in expected[n, shown]] for n in sizes)
        rows = [(str(n), *row) for n, row in zip(sizes, cells, strict=True)]
        yield table(("n", *(f"d = {d}" for d in shown)), rows, words=0)
    if len(sizes) < largest:
        yield f"{len(sizes)} of {largest} sizes are shown; --json prints all of them."
    n, d = np.unravel_index(np.argmax(expected), expected.shape)
    yield f"Maximum: {format_number(expected[n, d])} tokens, with n = {n} and d = {d}."
    yield next_command("tree", "--acceptance", acceptance, "--size", n, "--depth", d, "--out", "tree.json")


def score_report(tree: TokenTree, expected: float, best: float | None, warning: str | None, acceptance: Path) -> Parts:
    rows = [
        ("yours", f"{expected:.3f}"),
        ("best of the same size and depth", "unknown" if best is None else f"{best:.3f}"),
    ]
    yield table(("tree", "tokens per target pass"), rows)
    yield f"Your tree has {plural(tree.size, 'node')} and depth {tree.depth}."
    if warning is not None:
        yield warning
    yield next_command(
        "tree", "--acceptance", acceptance, "--size", tree.size, "--depth", tree.depth, "--out", "tree.json"
    )


def uniform_depth_note(flat: WithoutDepth | None) -> Iterator[str]:
    if flat is not None:
        yield (
            f"A plan that assumed the first depth's acceptance at every depth would have {plural(flat.size, 'node')} "
            f"and depth {flat.depth}. It would predict {format_number(flat.promised)}× but achieve "
            f"{format_number(flat.speedup)}×, {format_percent(max(0.0, flat.loss))} less than this plan."
        )


def plan_report(
    tree: TokenTree,
    prediction: Prediction,
    small: BestShape,
    larger: LargerTree | None,
    vector: AcceptanceVector,
    profile: HardwareProfile,
    notes: Sequence[str],
    files: tuple[Path, Path],
    options: tuple[Sequence[str], Sequence[str]],
) -> Parts:
    """Report which tree to draft, the reasons, and the speedup.

    Args:
        tree, prediction: the best tree; if none is faster than no draft, the fastest tree with draft tokens.
        small: the smallest shape that is nearly as good; a single node if no tree is faster than no draft.
        options: command-line options for the vector's pair, and for its sampling, starting with the temperature.
    """
    pays = small.size > 1
    yield from _plan_headline(tree, prediction, pays)
    if pays:
        yield from _size_reasons(tree, small, larger, profile)
    if vector.has_one_prompt:
        yield "There is no interval: acceptance was measured on only one prompt."
    elif prediction.speedup.low is None:
        yield "There is no interval: the files do not contain samples."
    yield from notes
    missing = list(_missing_measurements(vector, profile))
    yield from missing
    if missing:
        return
    pair, sampling = options
    if pays:
        asked = ("--prompt", "def read_lines(path):", *pair, *sampling)
        yield next_command("generate", *asked, "--acceptance", files[0], "--profile", files[1])
    else:
        yield "A faster or more accurate draft is needed. To measure the speed with this one, run bench."
        yield next_command("bench", *pair, *sampling[:2])  # The temperature is the only sampling option of bench.


def _plan_headline(tree: TokenTree, prediction: Prediction, pays: bool) -> Parts:
    step = prediction.step
    tokens = prediction.tokens_per_step
    plain_token = format_duration(prediction.autoregressive_sec)
    tree_token = format_duration(prediction.sec_per_token)
    step_time = format_duration(step.total_sec)
    if pays:
        gain = format_interval(*prediction.speedup, "×")
        yield f"Draft a tree with {tree.size} nodes and depth {tree.depth}: {gain} the speed without a draft."
        yield _levels(tree)
    else:
        yield (
            f"Do not speculate: a token takes {plain_token} without a draft and {tree_token} with the fastest tree "
            f"({plural(tree.size, 'node')}, depth {tree.depth}: {step_time} per step, which yields "
            f"{format_number(tokens.value)} tokens)."
        )
    rows = [
        ("tokens per step", format_interval(*tokens), "1"),
        ("time per step", step_time, plain_token),
        ("  target pass", format_duration(step.verify_sec), ""),
        ("  draft passes", format_duration(step.draft_sec), ""),
    ]
    if step.overhead_sec:
        rows.append(("  the rest", format_duration(step.overhead_sec), ""))
    rows.append(("time per token", tree_token, plain_token))
    yield table(("", "with the tree", "without a draft"), rows)


def _size_reasons(tree: TokenTree, small: BestShape, larger: LargerTree | None, profile: HardwareProfile) -> Parts:
    if larger is not None:
        more = format_percent(larger.more_tokens) if larger.more_tokens >= NEGLIGIBLE_GAIN else "no"
        yield (
            f"Why not a larger tree: {larger.size} nodes would yield {more} more tokens per step, but a step would "
            f"take {format_percent(larger.more_time)} longer."
        )
    else:
        yield (
            "Why not a larger tree: none was considered. The limit is the profile's largest size "
            f"({profile.max_size}), --max-size, --max-depth or the vector's number of ranks; to time larger sizes, use "
            "profile --sizes."
        )
    if small.size < tree.size:
        speedup = format_number(small.predicted_speedup)
        yield f"A tree with {small.size} nodes and depth {small.depth} is within 2 % of it: {speedup}×."


def _missing_measurements(vector: AcceptanceVector, profile: HardwareProfile) -> Parts:
    """Suggest commands that provide the measurements missing from the vector or the profile."""
    models = ("--target", "TARGET", "--draft", "DRAFT")
    if vector.holds_for is None:
        yield "To measure the acceptance of your draft, run:"
        yield Verbatim(" ".join(("  sequoia measure", *models, "--out vector.json")))
    if profile.modelled or profile.meta.get("target") is None or profile.meta.get("draft") is None:
        why = "modelled" if profile.modelled else "from an unnamed pair"
        yield f"The times are {why}. To measure your pair on this machine, run:"
        yield Verbatim(" ".join(("  sequoia profile", *models, "--out profile.json")))
