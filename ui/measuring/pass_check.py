"""A few passes timed at the start of a session, which show whether this machine is as fast as its profile says."""

from ui.jobs import session_jobs
from ui.jobs.engine_queue import EngineQueue, engine_queue
from ui.jobs.jobs import JobContext
from ui.session import model_pairs, predictions, session
from ui.session.state import state

REST_PERCENT = 25.0  # use of all cores below which the machine is at rest
REST_SEC = 0.5
REST_TRIES = 16


def start_check() -> None:
    """Start the check of the current profile, unless it was made, the engine is busy, or models would be loaded."""
    hardware = session.profile()
    spec = session.pair_spec()
    if hardware is None or spec.is_alone or not predictions.is_for_this_machine(hardware):
        return
    key = predictions.profile_key(hardware)
    at_hand = spec.offload is None and (spec.is_demo or model_pairs.loaded_pair() == spec)
    queue = engine_queue()
    if key in state().pass_times or not at_hand or not queue.is_idle():
        return
    state().pass_times[key] = 0.0  # the check is made only once, even if it fails

    def work(job: JobContext) -> float:
        from sequoia_core.measuring.step_timers import pass_time_ratio

        pair = job.pair(spec)
        return pass_time_ratio(pair, hardware, cancel=job.cancel) if _wait_for_rest(queue) else 0.0

    session_jobs.add_job("check", queue.submit("Checking the speed", work, info=key))


def _wait_for_rest(queue: EngineQueue) -> bool:
    """Wait until the page has been drawn, which slows passes tenfold on a small machine; return False if it takes long.

    The wait ends early if another job is waiting for the engine.
    """
    import psutil

    return any(psutil.cpu_percent(REST_SEC) < REST_PERCENT for _ in range(REST_TRIES) if not queue.has_waiting())
