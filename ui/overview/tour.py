"""The animation on the start page: the chain's film, or one answer decoded with and without a token tree."""

from typing import Any

from sequoia_core import AcceptanceVector, HardwareProfile
from sequoia_core.files.extras import has
from ui.jobs.jobs import Job
from ui.runs import available_runs
from ui.session import core_cache, session, shipped
from ui.session.state import state
from ui.token_tree import two_ways

RECORDED_SCENARIO = "smollm2-disk"


def draw_tour(chain: Job | None) -> None:
    """Draw the chain's film while it runs, otherwise the comparison, in the same component."""
    film = None if chain is None or chain.result is None else _film(chain)
    comparison = _comparison() if film is None or film["over"] == "done" else {}
    if comparison or film is not None:
        two_ways.two_ways(comparison | {"waits": chain is not None and chain.active}, film, key="overview_ways")


def _film(chain: Job) -> dict[str, Any] | None:
    """Return the chain's film and state for the browser; None before the first frame."""
    result = chain.result
    if not result.film.frames:
        return None
    decoding = None
    if result.runs:
        run = result.runs[-1]
        decoding = {name: run[name] for name in ("prompt", "text")}
        decoding |= {"number": len(result.runs), "speedup": result.summary.speedup}
    over = "" if chain.active else chain.state
    return {"id": chain.id, "over": over, "decoding": decoding} | result.film.to_json()


def _comparison() -> dict[str, Any]:
    """Return data on the session's last greedy run and its baseline, or else a recorded run; empty without either."""
    run = state().last_run
    if run is not None and run["baseline"] and run["temperature"] == 0 and run["steps"]:
        origin = "Your last run"
        vector = session.acceptance()
        profile = session.profile()
    else:
        run = next(iter(available_runs.recorded_runs()), None)
        origin = "Recorded on two cores of an AMD EPYC"
        vector, profile = _recorded_scenario() if has("hardware_models") else (None, None)
    if run is None:
        return {}
    drafts = [] if profile is None else core_cache.supposed_drafts(vector, profile)
    tier = f" on {run['offload']}" if run.get("offload") else ""
    label = f"{origin}: {run['target']}{tier}, {run['draft']}."
    return two_ways.comparison_data(run, drafts, label=label)


def _recorded_scenario() -> tuple[AcceptanceVector | None, HardwareProfile | None]:
    """Return the vector and the profile of the recorded run's scenario; both are None if it is not shipped."""
    known = shipped.scenarios(shipped.ASSETS)
    return next((shipped.load_scenario(one) for one in known if one.name == RECORDED_SCENARIO), (None, None))
