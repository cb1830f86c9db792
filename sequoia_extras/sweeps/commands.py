"""The `sweep` command: run a plan with local processes or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sequoia_core.command_line.formatting import next_command, plural, table
from sequoia_core.command_line.options import EXISTING_FILE, Json, app
from sequoia_core.command_line.output import Verbatim, report
from sequoia_core.command_line.progress import format_span, print_to_stderr, show_progress
from sequoia_core.files.json_models import prefix_errors

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .executors import DaskWorkers, LocalWorkers
    from .plan import SweepPlan
    from .results import Results
    from .run import SweepState, Todo

    Parts = Iterator[RenderableType]

MAX_SHOWN_FAULTS = 3
PLAN_HELP = "Sweep plan in TOML (see sequoia_extras/sweeps/reference.md)."
SCHEDULER_HELP = "Use the workers of a Dask scheduler, such as tcp://host:8786."


@app.command("sweep")
def sweep_command(
    plan: Annotated[Path, typer.Argument(help=PLAN_HELP, **EXISTING_FILE)],
    out: Annotated[Path, typer.Option("--out", help="Folder for the results; an interrupted sweep continues in it.")],
    workers: Annotated[
        int | None, typer.Option("--workers", help="Number of processes; default: use all cores.", min=1)
    ] = None,
    scheduler: Annotated[str | None, typer.Option("--scheduler", help=SCHEDULER_HELP)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the plan, report the remaining jobs, and exit.")
    ] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Retry prompts that failed before.")] = False,
    as_json: Json = False,
) -> None:
    """Measure pairs at several sampling settings and on several kinds of text; continue an interrupted sweep."""
    from .executors import check_workers
    from .plan import read_plan
    from .results import Results
    from .run import SweepState, missing_jobs

    check_workers(workers, scheduler)
    with prefix_errors("--out"):
        results = Results(out)
    checked = read_plan(plan, elsewhere=scheduler is not None)
    todo = missing_jobs(checked, results, retry_failed=retry_failed)
    before = todo.failed_before
    if dry_run:
        found = _dry_run_result(checked, todo)
        report(found, as_json, dry_sweep_parts(found, plan, out))
        return
    state = SweepState(0, skipped=todo.skipped)
    if todo.jobs:
        pool = _open_workers(checked, todo, workers, scheduler)
        try:
            state = _run(checked, results, pool, todo, as_json)
        finally:
            pool.close()
    for key, fault in list(state.faults.items())[:MAX_SHOWN_FAULTS]:
        print_to_stderr(f"failed: {key}: {' '.join(fault.split())[:300]}")
    if before:
        fault = " ".join(next(iter(before.values())).split())[:300]
        print_to_stderr(f"failed before: {len(before)} rows, for example: {fault} (use --retry-failed to try again)")
    result = {
        "jobs": state.jobs,
        "done": state.done,
        "failed": state.failed,
        "skipped": state.skipped,
        "failed_before": len(before),
        "rows": state.rows,
        "seconds": state.seconds,
        "work_seconds": state.work_sec,
        "workers": len(state.workers),
    }
    report(result, as_json, sweep_parts(result, plan, out))
    if state.failed or before:
        raise typer.Exit(1)


def _dry_run_result(plan: SweepPlan, todo: Todo) -> dict[str, Any]:
    return {
        "jobs": len(todo.jobs),
        "done": 0,
        "failed": 0,
        "skipped": todo.skipped,
        "failed_before": len(todo.failed_before),
        "timed": sum(job.timed for job in todo.jobs),
        "pairs": len(plan.settings.pairs),
        "settings": [list(sampling) for sampling in plan.settings.samplings],
        "prompts": {domain.name: len(domain.texts) for domain in plan.domains},
    }


def _open_workers(
    plan: SweepPlan, todo: Todo, workers: int | None, scheduler: str | None
) -> LocalWorkers | DaskWorkers:
    from .executors import DaskWorkers, LocalWorkers

    if scheduler is not None:
        return DaskWorkers(scheduler, timed=any(job.timed for job in todo.jobs))
    pool = LocalWorkers(workers, threads=plan.settings.threads)
    if pool.note:
        print_to_stderr(pool.note)
    return pool


def _run(plan: SweepPlan, results: Results, pool: LocalWorkers | DaskWorkers, todo: Todo, as_json: bool) -> SweepState:
    from .run import run_sweep

    with show_progress(as_json) as progress:

        def show(state: SweepState) -> None:
            failed = f", {state.failed} failed" if state.failed else ""
            progress(state.fraction, f"{state.done + state.failed} of {state.jobs} jobs{failed}")

        return run_sweep(plan, results, pool, todo=todo, progress=show)


def sweep_parts(result: Mapping[str, Any], plan: Path, out: Path) -> Parts:
    existing = f"; {plural(result['skipped'], 'row')} existed already" if result["skipped"] else ""
    yield (
        f"{result['done']} of {plural(result['jobs'], 'job')} done, {result['failed']} failed, in "
        f"{format_span(result['seconds'])}: {plural(result['rows'], 'row')} written{existing}."
    )
    if result["failed"] or result["failed_before"]:
        yield next_command("sweep", plan, "--out", out, "--retry-failed")
    else:
        yield Verbatim(
            f"Next: open {out} on the Draft page under Which draft?, or read it in Python "
            "(sequoia_extras/sweeps/reference.md)."
        )


def dry_sweep_parts(result: Mapping[str, Any], plan: Path, out: Path) -> Parts:
    prompts = ", ".join(f"{name} {count}" for name, count in result["prompts"].items())
    yield (
        f"{plural(result['jobs'], 'job')} to run, {result['timed']} of them timed one at a time; "
        f"{result['skipped']:,} rows already exist or failed before ({result['failed_before']:,} failed)."
    )
    yield f"{plural(result['pairs'], 'pair')}; prompts: {prompts}."
    yield table(("temperature", "top-p"), [[f"{value:g}" for value in each] for each in result["settings"]], words=0)
    yield next_command("sweep", plan, "--out", out)
