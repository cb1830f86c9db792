"""What the commands without a model say to people: one function for each, of sentences and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .figures import command, counted, duration, figure, percent, sure, table
from .output import AsItIs

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..design.acceptance import AcceptanceVector
    from ..design.bootstrap import Estimate
    from ..design.break_even import Larger
    from ..design.planning import BestShape
    from ..design.prediction import Prediction, WithoutDepth
    from ..design.profile import HardwareProfile
    from ..design.tree import TokenTree
    from ..servers.chain_acceptance import ChainAcceptance
    from ..servers.counts import ServerCounts
    from ..servers.diagnosis import Diagnosis
    from ..servers.plan import BatchPlan, ServerPlan
    from ..servers.request_spread import LengthPart, Spread

    Parts = Iterator[RenderableType]

SHOWN_SIZES = 32  # rows of a table
MIN_SHARE = 5e-4  # a smaller share of more tokens is none
DEPTHS_BESIDE, BATCHES_BESIDE = 8, 2  # columns that fit 60 characters


def tree_parts(tree: TokenTree, expected: float, acceptance: Path, out: Path | None, note: str | None) -> Parts:
    yield f"The best tree of {counted(tree.size, 'node')}, {tree.depth} deep:"
    yield _levels(tree)
    yield f"{figure(expected)} tokens are expected per target pass; without a draft it is 1."
    if note is not None:
        yield note
    if out is None:
        yield "--out writes it to a file; whether it pays, and which size pays most, takes the times of a machine."
        yield command("plan", "--acceptance", acceptance, "--profile", "profile.json")
    else:
        yield AsItIs(f"Written to {out}.")
        yield command("generate", "--prompt", "def read_lines(path):", "--tree", out)


def _levels(tree: TokenTree) -> Any:
    """Return a row for each depth: how many nodes, and how many children each has, in their order."""
    counts = tree.child_counts
    rows = [
        (str(depth), f"{len(nodes):,}", _runs(counts[nodes].tolist()) if depth < tree.depth else "–")
        for depth, nodes in enumerate(tree.levels)
    ]
    levels = table(("depth", "nodes", "children of each"), rows)
    levels.columns[-1].justify = "left"
    return levels


def _runs(counts: list[int]) -> str:
    """Write numbers one after the other, those that repeat as 0 × 12."""
    runs = [(value, len(list(same))) for value, same in groupby(counts)]
    return ", ".join(f"{value}" if length == 1 else f"{value} × {length}" for value, length in runs)


def table_parts(expected: np.ndarray, acceptance: Path) -> Parts:
    """Say G(n, d), float64 [N + 1, D + 1]; -inf where there is no tree."""
    largest, depths = expected.shape[0] - 1, range(1, expected.shape[1])
    sizes = [n for n in range(1, largest + 1) if n <= SHOWN_SIZES or n == largest or not n % (largest // SHOWN_SIZES)]
    yield "Most expected tokens per target pass, for n nodes (down) and d levels (across):"
    for start in range(0, len(depths), DEPTHS_BESIDE):
        shown = depths[start : start + DEPTHS_BESIDE]
        cells = ([f"{value:.3f}" if np.isfinite(value) else "–" for value in expected[n, shown]] for n in sizes)
        rows = [(str(n), *row) for n, row in zip(sizes, cells, strict=True)]
        yield table(("n", *(f"d = {d}" for d in shown)), rows, words=0)
    if len(sizes) < largest:
        yield f"{len(sizes)} of {largest} sizes are shown; --json has all."
    n, d = np.unravel_index(np.argmax(expected), expected.shape)
    yield f"Most: {figure(expected[n, d])} tokens with n = {n} and d = {d}."
    yield command("tree", "--acceptance", acceptance, "--size", n, "--depth", d, "--out", "tree.json")


def score_parts(tree: TokenTree, expected: float, best: float | None, warning: str | None, acceptance: Path) -> Parts:
    rows = [
        ("yours", f"{expected:.3f}"),
        ("the best of its size and depth", "unknown" if best is None else f"{best:.3f}"),
    ]
    yield table(("tree", "tokens per target pass"), rows)
    yield f"Yours has {counted(tree.size, 'node')} and is {tree.depth} deep."
    if warning is not None:
        yield warning
    yield command("tree", "--acceptance", acceptance, "--size", tree.size, "--depth", tree.depth, "--out", "tree.json")


def without_depth_words(flat: WithoutDepth | None) -> Iterator[str]:
    if flat is not None:
        yield (
            f"Planned as if every depth were the first: {counted(flat.size, 'node')}, {flat.depth} deep, which would "
            f"promise {figure(flat.promised)}× and bring {figure(flat.speedup)}×, {percent(max(0.0, flat.loss))} less."
        )


def plan_parts(
    tree: TokenTree,
    prediction: Prediction,
    small: BestShape,
    larger: Larger | None,
    vector: AcceptanceVector,
    profile: HardwareProfile,
    warnings: Sequence[str],
    files: tuple[Path, Path],
    options: tuple[Sequence[str], Sequence[str]],
) -> Parts:
    """Say what to draft, why, and what it brings.

    Args:
        tree, prediction: the best tree, or the fastest that drafts where none pays.
        options: that name the vector's pair again, and its way of sampling, the temperature first.
    """
    speedup, tokens, step = prediction.speedup, prediction.tokens_per_step, prediction.step
    pays = small.size > 1
    alone, taken = duration(prediction.autoregressive_sec), duration(step.total_sec)
    if pays:
        yield f"Draft a tree of {tree.size} nodes, {tree.depth} deep: {sure(*speedup, '×')} the speed without a draft."
        yield _levels(tree)
    else:
        yield (
            f"Do not speculate: a token takes {alone} without a draft and {duration(prediction.sec_per_token)} with "
            f"the fastest tree ({counted(tree.size, 'node')}, {tree.depth} deep: {taken} a step for "
            f"{figure(tokens.value)} tokens)."
        )
    yield table(
        ("", "with the tree", "without a draft"),
        [
            ("tokens per step", sure(*tokens), "1"),
            ("a step takes", taken, alone),
            ("  target pass", duration(step.verify_sec), ""),
            ("  draft passes", duration(step.draft_sec), ""),
            *([("  the rest", duration(step.overhead_sec), "")] if step.overhead_sec else []),
            ("a token takes", duration(prediction.sec_per_token), alone),
        ],
    )
    if pays and larger is not None:
        more = percent(larger.more_tokens) if larger.more_tokens >= MIN_SHARE else "no"
        yield (
            f"Why no larger tree: {larger.size} nodes would bring {more} more tokens per step, but their step "
            f"takes {percent(larger.more_time)} longer: a bigger tree gains fewer tokens than its passes cost."
        )
    elif pays:
        yield (
            "Why no larger tree: none was looked at. The profile's largest size "
            f"({profile.max_size}), --max-size, --max-depth or the vector's ranks end there; profile --sizes times "
            "larger ones."
        )
    if pays and small.size < tree.size:
        yield f"{small.size} nodes, {small.depth} deep, are within 2 % of it: {figure(small.predicted_speedup)}×."
    if vector.of_one_prompt:
        yield "Acceptance is of one prompt, which has no interval over texts."
    elif speedup.low is None:
        yield "No interval: the files do not keep the samples that they were measured from."
    yield from warnings
    missing = list(_missing(vector, profile))
    yield from missing
    if missing:
        return
    pair, sampling = options
    if pays:
        asked = ("--prompt", "def read_lines(path):", *pair, *sampling)
        yield command("generate", *asked, "--acceptance", files[0], "--profile", files[1])
    else:
        yield "A draft that is cheaper or right more often would be needed; bench measures this one."
        yield command("bench", *pair, *sampling[:2])  # of sampling a race knows the temperature alone


def _missing(vector: AcceptanceVector, profile: HardwareProfile) -> Parts:
    """Say which commands measure what the vector or the profile does not know."""
    models = ("--target", "TARGET", "--draft", "DRAFT")
    if vector.holds_for is None:
        yield "This measures how often your own draft is right:"
        yield AsItIs(" ".join(("  sequoia measure", *models, "--out vector.json")))
    if profile.modelled or profile.meta.get("target") is None or profile.meta.get("draft") is None:
        why = "modelled" if profile.modelled else "of a pair that is not named"
        yield f"The times are {why}. This measures those of your own pair on this machine:"
        yield AsItIs(" ".join(("  sequoia profile", *models, "--out profile.json")))


def lookup_parts(
    result: dict[str, Any], estimates: dict[str, dict[int, Estimate]], responses: Path, profiled: bool
) -> Parts:
    yield f"{counted(result['requests'], 'request')}, {result['tokens']:,} tokens."
    yield "Tokens per step of trees of text already seen:"
    own, shared = estimates["own"], estimates["shared"]
    rows = [
        (str(n), sure(*own[n]), "*" * (n == result["best_n"]), sure(*shared[n]), "*" * (n == result["best_n_shared"]))
        for n in own
    ]
    yield table(("n at most", "own text", "", "earlier answers too", ""), rows, words=0)
    why = "by the profile's times" if profiled else "the least with 95 % of what the largest gains"
    yield f"* The best size: {why}."
    if result["requests"] == 1:
        yield "One request has no interval over texts."
    if result["predicted_speedup"] is not None:
        speed = figure(result["predicted_speedup"])
        yield f"With n = {result['best_n']} the own text gives {speed}× the speed, by the profile's times."
    yield from result["warnings"] if profiled else result["warnings"][:-1]  # the last explains a name of the JSON
    yield "The nearest settings of servers:"
    for name, text in result["servers"].items():
        yield AsItIs(f"{name}:\n  {text}")
    if profiled:
        yield command("generate", "--draft", "none", "--prompt", "def read_lines(path):")
    else:
        yield command("lookup", "--responses", responses, "--profile", "profile.json")


def server_plan_parts(
    chains: ChainAcceptance,
    plans: Mapping[int | None, ServerPlan],
    flags: dict[str, str] | None,
    warnings: Sequence[str],
    adds: float | None,
) -> Parts:
    """Give a plan for each context, None where it is not said."""
    yield _source(chains.counts)
    rows = []
    for k in range(1, chains.longest + 1):
        low, high = (chains.low[k - 1], chains.high[k - 1]) if chains.has_interval else (None, None)
        rows.append((str(k), sure(chains.survival[k - 1], low, high), sure(*chains.tokens(k))))
    yield table(("K", "K-th accepted", "tokens per step"), rows, words=0)
    for context, plan in plans.items():
        at = "" if context is None else f" and {context:,} tokens of context"
        yield f"Speed over no draft at the same batch size{at}; costs: {plan.source}."
        for start in range(0, len(plan.batches), BATCHES_BESIDE):
            yield _speeds(plan.batches[start : start + BATCHES_BESIDE])
        yield plan.sentence(chains.longest)
    if adds is not None:
        yield f"A tree would be {adds:.2f} times as fast as the best chain, for one request at a time."
    yield from warnings
    for name, text in (flags or {}).items():
        yield AsItIs(f"{name}:\n{text}")
    if not plans:
        yield "Next: the same with --timed 0=RATE,2=RATE,4=RATE (tokens per second at those K) or --profile FILE."
    else:
        yield "Next: sequoia server-check holds this against a real server."


def doctor_parts(
    counts: ServerCounts, diagnosis: Diagnosis, over: Spread | None, lengths: Sequence[LengthPart]
) -> Parts:
    yield _source(counts)
    first, *others = diagnosis.findings
    yield f"{first.title}. {first.says}"
    for evidence in first.evidence:
        yield f"- {evidence}"
    yield f"Check next: {first.check}."
    if diagnosis.gain:
        yield diagnosis.gain
    for finding in others:
        yield f"Also {finding.title}: {'; '.join(map(str, finding.evidence))}. Check {finding.check}."
    if over is not None:
        yield str(over)
    if lengths:
        rows = [
            (f"{part.shortest:,} to {part.longest:,}", figure(part.tokens_per_step), str(part.requests))
            for part in lengths
        ]
        yield table(("prompt tokens", "tokens per step", "requests"), rows)
    yield from diagnosis.notes
    yield from counts.notes


def _speeds(batches: Sequence[BatchPlan]) -> Any:
    longest = max(len(each.speedup) for each in batches)
    rows = [
        (str(k), *(sure(*each.speedup[k], "×") if k < len(each.speedup) else "–" for each in batches))
        for k in range(1, longest)
    ]
    return table(("K", *(f"batch {each.batch}" for each in batches)), rows, words=0)


def unplanned_parts(
    counts: ServerCounts, mean: float | None, survival: Sequence[float] | None, warnings: Sequence[str]
) -> Parts:
    yield _source(counts)
    if counts.draft_tokens is not None and counts.accepted_tokens is not None:
        yield f"{counts.accepted_tokens:,} of {counted(counts.draft_tokens, 'draft token')} were accepted."
    if survival:
        yield f"Accepted up to each position: {', '.join(map(figure, survival))}."
    if mean is not None:
        yield f"{figure(mean)} tokens per step on average."
    yield "Nothing is planned:"
    yield from warnings


def _source(counts: ServerCounts) -> str:
    about = ", ".join(name for name in (counts.engine, counts.model) if name not in ("", "unknown"))
    drafts = "" if counts.shares or counts.drafts is None else f", {counted(counts.drafts, 'draft')}"
    return f"{about}: {counts.source}{drafts}." if about else f"Counts of {counts.source}{drafts}."
