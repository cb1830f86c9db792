"""A sweep, run as a job by the engine's worker, which waits while a separate process measures. No Streamlit.

Requires the optional package `sweeps`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ui.jobs.jobs import JobContext

if TYPE_CHECKING:
    from sequoia_extras.sweeps.plan import SweepPlan
    from sequoia_extras.sweeps.run import SweepState


@dataclass(frozen=True, slots=True)
class Swept:
    """The folder that contains a sweep's rows, and the sweep's progress when it ended or was cancelled."""

    folder: str
    state: SweepState


def sweep_work(plan: SweepPlan, folder: str, *, retry_failed: bool = False) -> Callable[[JobContext], Swept]:
    """Return the job that measures a plan's missing rows; finished rows are kept if it is cancelled."""

    def work(context: JobContext) -> Swept:
        from sequoia_extras.sweeps.executors import LocalWorkers
        from sequoia_extras.sweeps.results import Results
        from sequoia_extras.sweeps.run import missing_jobs, run_sweep

        def report(state: SweepState) -> None:
            context.store_partial(Swept(folder, state))
            last = next((f": {last}" for last in state.workers.values()), "")
            context.progress(state.fraction, f"{state.done + state.failed} of {state.jobs} jobs{last}")

        workers = LocalWorkers(1, threads=plan.settings.threads)
        try:
            todo = missing_jobs(plan, results := Results(folder), retry_failed=retry_failed)
            state = run_sweep(plan, results, workers, todo=todo, progress=report, cancel=context.cancel)
        finally:
            workers.close()
        return Swept(folder, state)

    return work
