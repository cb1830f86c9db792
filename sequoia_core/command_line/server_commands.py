"""Commands about speculative decoding in other people's servers: doctor, server-plan. Heavy imports are inside."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .design_words import doctor_parts, server_plan_parts, unplanned_parts
from .inputs import vector_of
from .options import READ, Entries, Json, Out, Rule, app
from .output import check_out, report

if TYPE_CHECKING:
    from ..design.acceptance import AcceptanceVector
    from ..design.profile import HardwareProfile
    from ..servers.chain_acceptance import ChainAcceptance
    from ..servers.costs import TimedSetting
    from ..servers.counts import ServerCounts
    from ..servers.plan import BatchPlan, ServerPlan

METHOD_HELP = "draft (a model), eagle3, mtp, dflash or ngram."
TIMED = "expected K=tokens per second, perhaps @batch or @batch:context"
After = Annotated[
    Path,
    typer.Option(
        "--after",
        help="Metrics, answers as JSON or a log of a server; or a saved matrix or measured vector.",
        **READ,
    ),
]
Before = Annotated[
    Path | None, typer.Option("--before", help="An earlier reading of the metrics, to be subtracted.", **READ)
]
Engine = Annotated[str, typer.Option("--engine", help="auto, vllm, llama.cpp or sglang.")]
Model = Annotated[
    str | None, typer.Option("--model", help="Which of several models that the server has, or drafters in its log.")
]
Rates = Annotated[
    str | None,
    typer.Option("--rates", help="What rates by position are: survival (of all drafts) or conditional."),
]
Profile = Annotated[
    Path | None,
    typer.Option("--profile", help="Costs: a profile, measured or modelled, or llama-bench's output.", **READ),
]
BenchDraft = Annotated[
    Path | None,
    typer.Option("--bench-draft", help="llama-bench's output of the draft, where in another file.", **READ),
]
Timed = Annotated[
    str | None,
    typer.Option(
        "--timed",
        help="Costs: tokens per second at some K, @batch: 0=70,2=110,4=118,0=200@4. K = 0 is a server started without "
        "the speculative option.",
    ),
]


@app.command("doctor")
def doctor_command(
    after: After,
    before: Before = None,
    earlier: Annotated[
        Path | None,
        typer.Option("--earlier", help="Another period to compare with, or rates published of the same draft.", **READ),
    ] = None,
    engine: Engine = "auto",
    model: Model = None,
    rates: Rates = None,
    profile: Profile = None,
    draft_profile: BenchDraft = None,
    timed: Timed = None,
    as_json: Json = False,
) -> None:
    """Say what is wrong with a server's speculative decoding, if anything, by what it counted. Loads no model."""
    from ..design.bench_profile import load_profile
    from ..servers.chain_acceptance import chain_acceptance
    from ..servers.costs import costs_of
    from ..servers.diagnosis import diagnose
    from ..servers.request_spread import by_prompt_length, spread, steady

    _check_times(profile, draft_profile)
    counts = _counts(after, before, engine, model, rates)
    then = None if earlier is None else _counts(earlier, None, engine, model)
    if earlier is None and before is not None:  # what it counted before is a period of its own
        with suppress(ValueError):  # it may hold no counters yet
            then = _counts(before, None, engine, model)
    loads = [] if timed is None else [_timed(part) for part in timed.split(",")]
    if len({load[3] for load in loads}) > 1:
        raise ValueError(f"--timed: found {str(timed)[:60]!r}, expected one context: of these counts")
    measured = [load[:3] for load in loads]
    costs = None
    known = steady(counts)
    planned = known.positions and known.drafts and not known.censored
    if planned and (profile is not None or len({k for k, _, _ in measured if k}) > 1):
        chains = chain_acceptance(known)
        settings = [each for part in _settings(timed, chains).values() for each in part]
        hardware = None if profile is None else load_profile(profile, draft_profile, needs_draft=not settings)
        costs = costs_of(hardware, settings)
    diagnosis = diagnose(counts, then, timed=measured, costs=costs)
    over, lengths = spread(counts.totals), by_prompt_length(counts.totals)
    result = _about(counts) | diagnosis.to_json() | {"requests": None if over is None else over._asdict()}
    result |= {"by_prompt_length": [row._asdict() for row in lengths], "warnings": [*diagnosis.notes, *counts.notes]}
    report(result, as_json, doctor_parts(counts, diagnosis, over, lengths))


@app.command("server-plan")
def server_plan_command(
    after: After,
    before: Before = None,
    engine: Engine = "auto",
    model: Model = None,
    rates: Rates = None,
    rule: Rule = None,
    profile: Profile = None,
    draft_profile: BenchDraft = None,
    timed: Timed = None,
    target_shape: Annotated[
        str | None,
        typer.Option("--target-shape", help="A mixture of experts: --timed grows as it does."),
    ] = None,
    batch: Annotated[str, typer.Option("--batch", help="Requests side by side, separated by commas.")] = "1",
    context: Annotated[
        str | None, typer.Option("--context", help="Tokens in the cache, separated by commas: a plan for each.")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", help=f"{METHOD_HELP} Default: what the counts name or suggest.")
    ] = None,
    new_tokens: Annotated[
        int | None, typer.Option("--new-tokens", help="Of every request, where records do not tell.", min=2, max=2**31)
    ] = None,
    acceptance: Annotated[
        Path | None, typer.Option("--acceptance", help="A vector measured here: tells what a tree would add.", **READ)
    ] = None,
    entries: Entries = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Say which draft length pays on a server, from what it counted. Loads no model."""
    # Long only by its options, which typer reads from the signature.
    from ..design.bench_profile import load_profile
    from ..design.matrix_files import matrix_bytes
    from ..design.model_shapes import find_shape
    from ..files.safe_files import write_atomic
    from ..servers.chain_acceptance import chain_acceptance
    from ..servers.costs import costs_of
    from ..servers.flags import METHODS, NGRAM, assumed_method, method_of
    from ..servers.plan import plan_server
    from ..servers.request_spread import steady

    batches = [_number("--batch", part, 1) for part in batch.split(",")]
    contexts = [] if context is None else [_number("--context", part, 0, 10**9) for part in context.split(",")]
    if method not in (None, *METHODS):
        raise ValueError(f"--method: found {method!r}, expected one of {', '.join(METHODS)}")
    _check_times(profile, draft_profile)
    check_out(out)
    vector = vector_of(acceptance, entries)
    counts = _counts(after, before, engine, model, rates, rule)
    try:
        chains = chain_acceptance(steady(counts), new_tokens=new_tokens)
    except ValueError as error:
        if out is not None:
            raise ValueError(f"--out: {error}") from error
        _report_unplanned(counts, str(error), as_json)
        return
    remarks = _remarks(counts)
    drafter = counts.drafter if method is None else ""
    if method is None and (method := method_of(drafter)) is None:
        method = assumed_method(chains.drafted_share)
        remarks.append(f"The source does not name the drafter; the settings assume --method {method}.")
    settings = _settings(timed, chains)
    free = method == NGRAM
    needs_draft = not free and any(len({each.k for each in part if each.k}) < 2 for part in settings.values() or [[]])
    hardware = None if profile is None else load_profile(profile, draft_profile, needs_draft=needs_draft)
    shape = None if target_shape is None else find_shape(target_shape)
    plans: dict[int | None, ServerPlan] = {}
    for at in contexts or settings or (None,):
        if settings and at not in settings:
            raise ValueError(f"--context: found {at:,}, expected one that --timed has: K=tokens per second@batch:{at}")
        costs = costs_of(hardware, settings.get(at, ()), drafts_free=free, target=shape, context=at)
        if costs is not None:
            plans[at] = plan_server(chains, costs, batches)
    plan = next(iter(plans.values()), None)
    if out is not None:
        write_atomic(out, matrix_bytes(chains.to_matrix()))
    adds = None if vector is None else _tree_adds(vector, hardware)
    by_context = [{"context": at, "best": each.best, "off_from": each.off_from} for at, each in plans.items()]
    result = _result(chains, plan, remarks, method, drafter) | {"tree_adds": adds, "by_context": by_context}
    people = server_plan_parts(chains, plans, result["flags"], result["warnings"], adds)
    report(result, as_json, people)


def _result(
    chains: ChainAcceptance, plan: ServerPlan | None, remarks: list[str], method: str, drafter: str
) -> dict[str, Any]:
    from ..servers.flags import flags_by_batch

    result = _about(chains.counts) | {
        "survival": chains.survival.tolist(),
        "interval": None if not chains.has_interval else [chains.low.tolist(), chains.high.tolist()],
        "acceptance": chains.to_matrix().probs[:-1, 0].tolist(),
        "tokens_per_step": chains.tokens_per_step.tolist(),
        "coverage": chains.coverage,
    }
    if plan is None:
        unknown = dict.fromkeys(("costs", "best", "off_from", "batches", "flags"))
        more = "Without costs (--profile or --timed) no length can be called the best."
        return result | unknown | {"warnings": [*chains.notes, *remarks, more]}
    return result | {
        "costs": plan.source,
        "best": plan.best,
        "off_from": plan.off_from,
        "batches": [_row(each, chains.longest) for each in plan.batches],
        "flags": flags_by_batch(chains.counts.engine, plan.best, method=method, drafter=drafter),
        "warnings": [*plan.notes, *remarks],
    }


def _counts(
    after: Path,
    before: Path | None,
    engine: str,
    model: str | None,
    rates: str | None = None,
    rule: str | None = None,
) -> ServerCounts:
    from ..files.safe_files import read_bytes
    from ..servers.readings import MAX_READING_BYTES, read_counts

    data = read_bytes(after, limit=MAX_READING_BYTES)
    earlier = None if before is None else read_bytes(before, limit=MAX_READING_BYTES)
    return read_counts(data, str(after), earlier, engine=engine, model=model, rates=rates, rule=rule)


def _about(counts: ServerCounts) -> dict[str, Any]:
    drafts = None if counts.shares else counts.drafts
    return {"engine": counts.engine, "model": counts.model, "source": counts.source, "drafts": drafts}


def _remarks(counts: ServerCounts) -> list[str]:
    """Return the doctor's verdict, unless it is healthy or unknown, and what the counts say of steps."""
    from ..servers.diagnosis import diagnose
    from ..servers.rules import HEALTHY, UNKNOWN

    diagnosis = diagnose(counts)
    verdict = diagnosis.verdict
    doubts = [] if verdict.verdict in (HEALTHY, UNKNOWN) else [f"{verdict.title}: {verdict.says} More: sequoia doctor."]
    return [*doubts, *diagnosis.notes]


def _report_unplanned(counts: ServerCounts, reason: str, as_json: bool) -> None:
    """Report what a source tells that nothing can be planned from."""
    nothing = ("acceptance", "tokens_per_step", "best", "flags")
    warnings = [reason[0].upper() + reason[1:], *counts.notes, *_remarks(counts)]
    survival = [count / (counts.drafts or 1) for count in counts.positions] or None
    result = _about(counts) | {"mean_tokens_per_step": counts.tokens_per_step, "survival": survival}
    result |= dict.fromkeys(nothing) | {"warnings": warnings}
    report(result, as_json, unplanned_parts(counts, counts.tokens_per_step, survival, warnings))


def _check_times(profile: Path | None, draft_profile: Path | None) -> None:
    if draft_profile is not None and profile is None:
        raise ValueError("--bench-draft: found it without --profile, expected the target's times there")


def _settings(text: str | None, chains: ChainAcceptance) -> dict[int | None, list[TimedSetting]]:
    """Return the timed settings by the context that they ran at, None where it is not said."""
    from ..servers.costs import timed_setting

    settings: dict[int | None, list[TimedSetting]] = {}
    for part in [] if text is None else text.split(","):
        k, rate, batch, context = _timed(part)
        try:
            settings.setdefault(context, []).append(timed_setting(k, rate, chains, batch=batch))
        except ValueError as error:
            raise ValueError(f"--timed: found {part[:40]!r} ({str(error)[:120]}), {TIMED}") from error
    if None in settings and len(settings) > 1:
        raise ValueError(
            f"--timed: found {(text or '')[:60]!r}, some speeds without a context, expected it at each or none"
        )
    return settings


def _timed(part: str) -> tuple[int, float, int, int | None]:
    k, _, rest = part.partition("=")
    rate, _, load = rest.partition("@")
    batch, _, context = load.partition(":")
    try:
        setting = int(k), float(rate), int(batch or 1), int(context) if context else None
        if not 0 < setting[1] < float("inf"):
            raise ValueError("expected a rate above 0")
    except ValueError as error:
        raise ValueError(f"--timed: found {part[:40]!r}, {TIMED}") from error
    return setting


def _number(option: str, text: str, least: int, most: int = 65_536) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise ValueError(f"{option}: found {text[:40]!r}, expected whole numbers from {least}, separated by commas")
    return value


def _row(plan: BatchPlan, present: int) -> dict[str, Any]:
    return {
        "batch": plan.batch,
        "tokens_per_sec": [each.to_json() for each in plan.tokens_per_sec],
        "speedup": [each.to_json() for each in plan.speedup],
        "best": plan.best,
        "best_interval": [plan.best_low, plan.best_high],
        "flat": plan.flat,
        "present": present,
        "present_share_of_best": plan.share_of_best(present),
        "more": plan.more,
        "helps": plan.helps,
    }


def _tree_adds(vector: AcceptanceVector, hardware: HardwareProfile | None) -> float:
    """Return the speed of the best tree ÷ that of the best chain, by a vector measured here, at batch size 1."""
    from ..design.planning import plan_tree
    from ..design.prediction import best_chain, predicted_speedup

    if hardware is None:
        raise ValueError(
            "--acceptance: found it without --profile, expected both: a tree is planned by times of passes"
        )
    chain, tree = best_chain(vector, hardware), plan_tree(vector, hardware)
    return predicted_speedup(tree, vector, hardware) / predicted_speedup(chain, vector, hardware)
