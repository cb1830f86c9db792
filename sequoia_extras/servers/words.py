"""Text output of the server commands: functions that yield sentences and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sequoia_core.command_line.formatting import format_interval, format_number, plural, table
from sequoia_core.command_line.output import Verbatim

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .chain_acceptance import ChainAcceptance
    from .counts import ServerCounts
    from .diagnosis import Diagnosis
    from .plan import BatchPlan, ServerPlan
    from .request_spread import LengthPart, Spread

    Lines = Iterator[RenderableType]

BATCH_COLUMNS = 2  # number of columns that fit in 60 characters


def plan_report(
    chains: ChainAcceptance,
    plans: Mapping[int | None, ServerPlan],
    flags: dict[str, str],
    warnings: Sequence[str],
) -> Lines:
    """Yield the plan for each context; the key None stands for an unknown context."""
    yield _source(chains.counts)
    rows = [
        (str(k), format_interval(*survived), format_interval(*chains.tokens(k)))
        for k, survived in enumerate(chains.survived, start=1)
    ]
    yield table(("K", "K-th accepted", "tokens per step"), rows, words=0)
    for context, plan in plans.items():
        at = "" if context is None else f" and a context of {context:,} tokens"
        yield f"Speed relative to no draft at the same batch size{at}; costs: {plan.costs.source}."
        for start in range(0, len(plan.batches), BATCH_COLUMNS):
            yield _speed_table(plan.batches[start : start + BATCH_COLUMNS], ranged=plan.ranged)
        yield plan.sentence(chains.current)
    yield from warnings
    for name, text in flags.items():
        yield Verbatim(f"{name}:\n{text}")
    if any(plan.ranged for plan in plans.values()):
        yield "To narrow this down, add --timed 0=RATE,2=RATE,4=RATE (tokens per second at those K)."


def _speed_table(batches: Sequence[BatchPlan], *, ranged: bool) -> Any:
    def cell(plan: BatchPlan, k: int) -> str:
        if k >= len(plan.speedup):
            return "–"
        return plan.speed_range(k) if ranged else format_interval(*plan.speedup[k], "×")

    longest = max(len(plan.speedup) for plan in batches)
    rows = [(str(k), *(cell(plan, k) for plan in batches)) for k in range(1, longest)]
    return table(("K", *(f"batch {plan.batch}" for plan in batches)), rows, words=0)


def doctor_report(
    counts: ServerCounts, diagnosis: Diagnosis, over: Spread | None, lengths: Sequence[LengthPart]
) -> Lines:
    """Yield the verdict with its evidence, the other findings, and the variation across requests."""
    yield _source(counts)
    if diagnosis.tokens_per_step is not None:
        k = f" at K = {len(counts.positions)}" if counts.positions else ""
        yield f"{diagnosis.tokens_per_step:.2f} tokens per step{k}."
    first, *others = diagnosis.findings
    yield f"{first.title}. {first.says}"
    for evidence in first.evidence:
        yield f"- {evidence}"
    yield f"Check next: {first.check}."
    if diagnosis.gain:
        yield diagnosis.gain
    for finding in others:
        yield f"Also: {finding.title} ({'; '.join(map(str, finding.evidence))}). Check {finding.check}."
    if over is not None:
        yield str(over)
    if lengths:
        rows = [
            (f"{part.shortest:,} to {part.longest:,}", format_number(part.tokens_per_step), str(part.requests))
            for part in lengths
        ]
        yield table(("prompt tokens", "tokens per step", "requests"), rows)
    yield from diagnosis.notes
    yield from counts.notes


def unplanned_report(counts: ServerCounts, survival: Sequence[float] | None, warnings: Sequence[str]) -> Lines:
    """Yield a summary of a source from which nothing can be planned."""
    yield _source(counts)
    if counts.draft_tokens is not None and counts.accepted_tokens is not None:
        yield f"{counts.accepted_tokens:,} of {plural(counts.draft_tokens, 'draft token')} were accepted."
    if survival:
        yield f"Share of drafts accepted up to each position: {', '.join(map(format_number, survival))}."
    if counts.tokens_per_step is not None:
        yield f"{format_number(counts.tokens_per_step)} tokens per step on average."
    yield from warnings


def _source(counts: ServerCounts) -> str:
    about = ", ".join(name for name in (counts.engine, counts.model) if name not in ("", "unknown"))
    drafts = "" if counts.published or counts.drafts is None else f", {plural(counts.drafts, 'draft')}"
    return f"{about}: {counts.source}{drafts}." if about else f"Source: {counts.source}{drafts}."


def audit_report(result: Mapping[str, Any], out: Path | None) -> Lines:
    """Yield the verdict and the number of requests sent."""
    yield result["verdict"]
    if result["lossless"] is False and result["p_value"] is not None:
        yield f"{result['false_alarm']:.0%} of lossless servers get this verdict by chance: run the audit again."
    drafts = "" if result["drafts"] is None else f", {plural(result['drafts'], 'draft')}"
    yield f"{plural(result['requests'], 'request')}, {plural(result['prompts'], 'prompt')}{drafts}."
    if out is None:
        yield "The result was not saved: use --out FILE to save it."
