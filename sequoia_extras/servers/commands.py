"""The `doctor` and `server-plan` commands for servers. Heavy modules are imported inside functions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sequoia_core.command_line.inputs import require_extra
from sequoia_core.command_line.options import Json, Out, Rule, app
from sequoia_core.command_line.output import Verbatim, check_output_path, report

from .options import (
    EXPECTED_TIMED,
    After,
    Batches,
    Before,
    BenchDraft,
    Cells,
    Contexts,
    DraftCost,
    DraftLength,
    Earlier,
    Engine,
    Method,
    Model,
    NewTokens,
    Profile,
    Rates,
    Row,
    TargetShape,
    Timed,
    parse_draft_cost,
    parse_numbers,
    parse_timed,
)
from .words import doctor_report, plan_report, unplanned_report

if TYPE_CHECKING:
    from sequoia_core.planning.profile import HardwareProfile

    from .chain_acceptance import ChainAcceptance
    from .costs import ServerCosts, TimedSetting
    from .counts import ServerCounts
    from .plan import BatchPlan, ServerPlan
    from .readings import ReadOptions

    Settings = dict[int | None, list[TimedSetting]]


@app.command("doctor")
def doctor_command(
    after: After,
    before: Before = None,
    earlier: Earlier = None,
    engine: Engine = "auto",
    model: Model = None,
    rates: Rates = None,
    profile: Profile = None,
    draft_profile: BenchDraft = None,
    timed: Timed = None,
    as_json: Json = False,
) -> None:
    """Diagnose a server's speculative decoding from its counts, without loading a model."""
    from .chain_acceptance import chain_acceptance
    from .costs import build_costs
    from .diagnosis import diagnose
    from .readings import ReadOptions
    from .request_spread import by_prompt_length, exclude_collapse, spread
    from .speeds import find_speeds

    _check_bench_draft(profile, draft_profile)
    options = ReadOptions(engine, model, rates)
    counts = _read_files(after, before, options)
    then = None if earlier is None else _read_files(earlier, None, options._replace(rates=None))
    if earlier is None and before is not None:
        with suppress(ValueError):  # the first reading may contain no counters yet
            then = _read_files(before, None, options._replace(rates=None))
    loads = parse_timed(timed)
    if len({context for *_, context in loads}) > 1:
        raise ValueError(f"--timed: found {str(timed)[:60]!r}, expected a single context, the one of the counts")
    measured = [(k, rate, batch) for k, rate, batch, _ in loads]
    known = exclude_collapse(counts)
    plannable = known.positions and known.drafts and not known.censored
    costs = None
    if plannable and (profile is not None or len({k for k, _, _ in measured if k}) > 1):
        by_context = _timed_settings(timed, chain_acceptance(known))
        settings = [setting for part in by_context.values() for setting in part]
        costs = build_costs(
            _load_profile(profile, draft_profile, needs_draft=not settings), settings, engine=counts.engine
        )
    diagnosis = diagnose(counts, then, find_speeds(known, measured, costs))
    over = spread(counts.totals)
    lengths = by_prompt_length(counts.totals)
    result = _source(counts) | diagnosis.to_json() | {"requests": None if over is None else over._asdict()}
    result |= {"by_prompt_length": [row._asdict() for row in lengths], "warnings": [*diagnosis.notes, *counts.notes]}
    report(result, as_json, doctor_report(counts, diagnosis, over, lengths))


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
    draft_cost: DraftCost = None,
    target_shape: TargetShape = None,
    batch: Batches = "1",
    context: Contexts = None,
    method: Method = None,
    new_tokens: NewTokens = None,
    draft_length: DraftLength = None,
    out: Out = None,
    row: Row = False,
    cell: Cells = None,
    as_json: Json = False,
) -> None:
    """Find the fastest draft length for a server from its counts, without loading a model."""
    from .costs import assumed_costs
    from .fitted_acceptance import plan_acceptance
    from .flags import METHOD_NAMES, NGRAM
    from .readings import ReadOptions
    from .request_spread import exclude_collapse
    from .rows import markdown_table, parse_cells, result_row

    batches = parse_numbers("--batch", batch, 1, 65_536)
    contexts = [] if context is None else parse_numbers("--context", context, 0, 10**9)
    if method not in (None, *METHOD_NAMES):
        raise ValueError(f"--method: found {method!r}, expected one of {', '.join(METHOD_NAMES)}")
    _check_bench_draft(profile, draft_profile)
    bounds = parse_draft_cost(draft_cost, alone=timed is None and profile is None)
    check_output_path(out)
    given = parse_cells(cell or (), row=row)
    counts = _read_files(after, before, ReadOptions(engine, model, rates, rule))
    if row:
        cells = result_row(counts, parse_timed(timed), given)
        return report(cells, as_json, map(Verbatim, markdown_table(cells)))
    try:
        chains = plan_acceptance(exclude_collapse(counts), new_tokens=new_tokens, draft_length=draft_length)
        if out is not None and chains.fitted is not None:
            raise ValueError(f"found only {counts.source}, expected per-position counts to save")
    except ValueError as error:
        if out is not None:
            raise ValueError(f"--out: {error}") from error
        _report_unplanned(counts, str(error), as_json)
        return
    drafter = counts.drafter if method is None else method
    method, remarks = _choose_method(method, counts, chains.drafted_share)
    settings = _timed_settings(timed, chains)
    hardware = _load_profile(profile, draft_profile, needs_draft=method != NGRAM and _needs_draft(settings))
    plans = _plans(chains, hardware, settings, contexts, batches, method == NGRAM, target_shape, assumed_costs(*bounds))
    _save_matrix(chains, out)
    result = _result(chains, plans, remarks, method, drafter)
    report(result, as_json, plan_report(chains, plans, result["flags"], result["warnings"]))


def _needs_draft(settings: Settings) -> bool:
    """Return whether a context lacks two timed settings with different K > 0, so that a draft's times are needed."""
    lengths = [{setting.k for setting in part if setting.k} for part in settings.values()] or [set()]
    return min(map(len, lengths)) < 2


def _save_matrix(chains: ChainAcceptance, out: Path | None) -> None:
    from sequoia_core.acceptance.matrix_files import matrix_bytes
    from sequoia_core.files.safe_files import write_atomic

    if out is not None:
        write_atomic(out, matrix_bytes(chains.to_matrix()))


def _choose_method(method: str | None, counts: ServerCounts, drafted_share: float) -> tuple[str, list[str]]:
    """Return the drafting method, as requested, named in the source or assumed, and remarks."""
    from .flags import assumed_method, method_from_name

    remarks = _remarks(counts)
    method = method_from_name(method or counts.drafter)
    if method is None:
        method = assumed_method(drafted_share)
        remarks.append(f"The source does not name the drafter; the settings assume --method {method}.")
    return method, remarks


def _plans(
    chains: ChainAcceptance,
    hardware: HardwareProfile | None,
    settings: Settings,
    contexts: Sequence[int],
    batches: Sequence[int],
    drafts_free: bool,
    target_shape: str | None,
    assumed: ServerCosts,
) -> dict[int | None, ServerPlan]:
    """Return the plan for each context, with `assumed` costs if there are no times; None is an unknown context."""
    from .costs import build_costs
    from .plan import plan_server

    shape = None
    if target_shape is not None:
        shape = require_extra("model_shapes", "--target-shape", "hardware_models").find_shape(target_shape)
    plans: dict[int | None, ServerPlan] = {}
    for at in contexts or settings or (None,):
        if settings and at not in settings:
            raise ValueError(f"--context: found {at:,}, expected one from --timed (K=tokens per second@batch:{at})")
        costs = build_costs(
            hardware,
            settings.get(at, ()),
            drafts_free=drafts_free,
            target=shape,
            context=at,
            engine=chains.counts.engine,
        )
        plans[at] = plan_server(chains, costs or assumed, batches)
    return plans


def _result(
    chains: ChainAcceptance, plans: dict[int | None, ServerPlan], remarks: list[str], method: str, drafter: str
) -> dict[str, Any]:
    from .flags import flags_by_batch

    plan = next(iter(plans.values()))
    return _source(chains.counts) | {
        "survival": chains.survival.tolist(),
        "interval": [chains.low.tolist(), chains.high.tolist()] if chains.has_interval else None,
        "acceptance": None if chains.fitted is not None else chains.to_matrix().probs[:-1, 0].tolist(),
        "fitted": chains.fitted,
        "tokens_per_step": chains.tokens_per_step.tolist(),
        "mean_tokens_per_step": chains.counts.tokens_per_step,
        "coverage": chains.counts.coverage,
        "costs": plan.costs.source,
        "cost_range": plan.costs.factors,
        "best": plan.best,
        "off_from": plan.off_from,
        "batches": [_batch_json(each, chains.current) for each in plan.batches],
        "flags": flags_by_batch(chains.counts.engine, plan.best, method=method, drafter=drafter),
        "warnings": [*plan.notes, *remarks],
        "by_context": [{"context": at, "best": each.best, "off_from": each.off_from} for at, each in plans.items()],
    }


def _batch_json(plan: BatchPlan, current: int | None) -> dict[str, Any]:
    return {
        "batch": plan.batch,
        "tokens_per_sec": [each.to_json() for each in plan.tokens_per_sec],
        "speedup": [each.to_json() for each in plan.speedup],
        "best": plan.best,
        "best_interval": [plan.best_low, plan.best_high],
        "flat": plan.flat,
        "present": current,
        "present_share_of_best": plan.relative_speed(current),
        "verified": plan.verified,
        "better_draft": plan.better_draft,
    }


def _read_files(after: Path, before: Path | None, options: ReadOptions) -> ServerCounts:
    from sequoia_core.files.safe_files import read_bytes

    from .readings import MAX_READING_BYTES, read_counts

    data = read_bytes(after, limit=MAX_READING_BYTES)
    earlier = None if before is None else read_bytes(before, limit=MAX_READING_BYTES)
    return read_counts(data, str(after), earlier, options=options)


def _load_profile(profile: Path | None, draft_profile: Path | None, *, needs_draft: bool) -> HardwareProfile | None:
    from sequoia_core.planning.profile import load_profile

    return None if profile is None else load_profile(profile, draft_profile, needs_draft=needs_draft)


def _source(counts: ServerCounts) -> dict[str, Any]:
    drafts = None if counts.published else counts.drafts
    return {"engine": counts.engine, "model": counts.model, "source": counts.source, "drafts": drafts}


def _remarks(counts: ServerCounts) -> list[str]:
    """Return the doctor's verdict, unless it is healthy or unknown, and notes on the steps."""
    from .diagnosis import diagnose
    from .rules import HEALTHY, UNKNOWN

    diagnosis = diagnose(counts)
    verdict = diagnosis.verdict
    if verdict.verdict in (HEALTHY, UNKNOWN):
        return list(diagnosis.notes)
    return [f"{verdict.title}: {verdict.says} For details, run sequoia doctor.", *diagnosis.notes]


def _report_unplanned(counts: ServerCounts, reason: str, as_json: bool) -> None:
    """Report on a source from which nothing can be planned."""
    from .plan import no_plan_sentence

    warnings = [no_plan_sentence(reason), *counts.notes, *_remarks(counts)]
    survival = [count / (counts.drafts or 1) for count in counts.positions] or None
    result = _source(counts) | {"mean_tokens_per_step": counts.tokens_per_step, "survival": survival}
    result |= dict.fromkeys(("acceptance", "tokens_per_step", "best", "flags")) | {"warnings": warnings}
    report(result, as_json, unplanned_report(counts, survival, warnings))


def _check_bench_draft(profile: Path | None, draft_profile: Path | None) -> None:
    if draft_profile is not None and profile is None:
        raise ValueError("--bench-draft: found no --profile, expected one with the target's times")


def _timed_settings(text: str | None, chains: ChainAcceptance) -> Settings:
    """Return the timed settings by context; the key None stands for an unknown context."""
    from .costs import timed_setting

    settings: Settings = {}
    for k, rate, batch, context in parse_timed(text):
        try:
            settings.setdefault(context, []).append(timed_setting(k, rate, chains, batch=batch))
        except ValueError as error:
            raise ValueError(f"--timed: found K = {k} ({str(error)[:120]}), {EXPECTED_TIMED}") from error
    if None in settings and len(settings) > 1:
        raise ValueError(
            f"--timed: only some speeds in {(text or '')[:60]!r} have a context; give one for all or for none"
        )
    return settings
