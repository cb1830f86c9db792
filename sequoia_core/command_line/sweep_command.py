"""The command sweep: a plan measured on this machine's processes or on a Dask cluster, with a live table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..files.json_models import naming
from .measured_words import dry_sweep_parts, sweep_parts
from .options import READ, Json, app
from .output import report
from .progress import LINE_SEC, span, to_stderr

if TYPE_CHECKING:
    from rich.table import Table

    from ..sweeps.run import State

SHOWN_FAULTS = 3
STATE_SEC = 1.0  # about how often a sweep tells its state


@app.command("sweep")
def sweep_command(
    plan: Annotated[Path, typer.Argument(help="What to measure, as TOML (docs/sweeps.md).", **READ)],
    out: Annotated[Path, typer.Option("--out", help="Folder of results; a sweep that was cut goes on in it.")],
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes; default: as many as cores allow.", min=1)
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", help="Use the workers of a Dask scheduler, such as tcp://host:8786.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the plan, say what is to do, and end.")] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try again what failed before.")] = False,
    as_json: Json = False,
) -> None:
    """Measure pairs, ways of sampling and kinds of text, prompt by prompt; go on where an earlier run was cut."""
    from ..sweeps.executors import DaskWorkers, LocalWorkers, check_request
    from ..sweeps.plan import read_plan
    from ..sweeps.results import Results
    from ..sweeps.run import State, missing_jobs, run_sweep

    check_request(workers, scheduler)
    with naming("--out"):
        results = Results(out)
    checked = read_plan(plan, elsewhere=scheduler is not None)
    todo = missing_jobs(checked, results, retry_failed=retry_failed)
    before, timed = todo.failed_before, sum(job.timed for job in todo.jobs)
    if dry_run:
        counts = {"jobs": len(todo.jobs), "done": 0, "failed": 0, "skipped": todo.skipped, "failed_before": len(before)}
        counts |= {"timed": timed, "pairs": len(checked.settings.pairs)}
        prompts = {domain.name: len(domain.texts) for domain in checked.domains}
        found = counts | {"settings": [list(way) for way in checked.settings.ways], "prompts": prompts}
        report(found, as_json, dry_sweep_parts(found, plan, out))
        return
    state = State(0, skipped=todo.skipped)
    if todo.jobs:
        pool: LocalWorkers | DaskWorkers
        if scheduler is None:
            pool = LocalWorkers(workers, threads=checked.settings.threads)
            if pool.note:
                to_stderr(pool.note)
        else:
            pool = DaskWorkers(scheduler, timed=timed > 0)
        try:
            with _live(as_json) as progress:
                state = run_sweep(checked, results, pool, todo=todo, progress=progress)
        finally:
            pool.close()
    for key, words in list(state.faults.items())[:SHOWN_FAULTS]:
        print(f"failed: {key}: {' '.join(words.split())[:300]}", file=sys.stderr)
    if before:
        words = " ".join(next(iter(before.values())).split())[:300]
        print(f"failed before: {len(before)} rows, such as: {words} (--retry-failed tries again)", file=sys.stderr)
    result = (
        {"jobs": state.jobs, "done": state.done, "failed": state.failed, "skipped": state.skipped}
        | {"failed_before": len(before), "rows": state.rows, "seconds": state.seconds}
        | {"work_seconds": state.work_sec, "workers": len(state.workers)}
    )
    report(result, as_json, sweep_parts(result, plan, out))
    if state.failed or before:
        raise typer.Exit(1)


@contextmanager
def _live(as_json: bool) -> Iterator[Callable[[State], None]]:
    """Give what shows the state of a sweep on stderr: a table kept up to date on a terminal, else a line at times."""
    if as_json or not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=4) as live:
        yield lambda state: live.update(_table(state))


def _lines() -> Callable[[State], None]:
    """Return what prints a line every `LINE_SEC`, also while one job takes long, and when the last one ends."""
    said_sec, over = 0.0, False

    def tell(state: State) -> None:
        nonlocal said_sec, over
        due = state.seconds - said_sec > LINE_SEC - STATE_SEC
        if not over and (due or state.fraction == 1.0):
            said_sec, over = state.seconds, state.fraction == 1.0
            to_stderr(_so_far(state))

    return tell


def _so_far(state: State) -> str:
    left = f", about {span(state.remaining_sec)} left" if state.remaining_sec else ""
    failed = f", {state.failed} failed" if state.failed else ""
    return f"{state.done + state.failed} of {state.jobs} jobs{failed}, {span(state.seconds)}{left}"


def _table(state: State) -> Table:
    """Return one line per worker, and how far the whole is."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("worker", "jobs", "seconds per job", "last one", title=_so_far(state), title_justify="left")
    for name, worker in sorted(state.workers.items()):
        table.add_row(
            escape(name), str(worker.jobs), f"{worker.seconds / max(1, worker.jobs):.1f}", escape(worker.last)
        )
    return table
