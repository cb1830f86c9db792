"""A sweep as a job for the engine's worker, which waits while a process of its own measures; no Streamlit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ui.jobs.jobs import JobContext

if TYPE_CHECKING:
    from sequoia_core.sweeps.plan import Plan
    from sequoia_core.sweeps.run import State


@dataclass(frozen=True, slots=True)
class Swept:
    """A sweep that ended or was cancelled: where its rows are, and how far it came."""

    folder: str
    state: State


def sweep_work(plan: Plan, folder: str, *, retry_failed: bool = False) -> Callable[[JobContext], Swept]:
    """Return the work of measuring the missing rows of a plan; what was finished stays when it is cancelled."""

    def work(context: JobContext) -> Swept:
        from sequoia_core.sweeps.executors import LocalWorkers
        from sequoia_core.sweeps.results import Results
        from sequoia_core.sweeps.run import missing_jobs, run_sweep

        def tell(state: State) -> None:
            context.keep(Swept(folder, state))
            last = next((f": {worker.last}" for worker in state.workers.values()), "")
            context.progress(state.fraction, f"{state.done + state.failed} of {state.jobs} jobs{last}")

        workers = LocalWorkers(1, threads=plan.settings.threads)
        try:
            todo = missing_jobs(plan, results := Results(folder), retry_failed=retry_failed)
            state = run_sweep(plan, results, workers, todo=todo, progress=tell, cancel=context.cancel)
        finally:
            workers.close()
        return Swept(folder, state)

    return work
