"""The stage of the first page: one answer written twice, without a draft and with a token tree; or the chain's film."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ui import scenarios
from ui.runs import kept_runs
from ui.session import core_cache, session
from ui.token_tree import two_ways

if TYPE_CHECKING:
    from ui.jobs.jobs import Job

RECORDED_IN = "demo-pair-disk"  # the scenario of the recorded run


def draw(chain: Job | None) -> None:
    """Show the film of the chain while it runs, else the two ways; the component is the same, so its page stays."""
    film = None if chain is None or chain.result is None else _film(chain)
    told = _ways() if film is None or film["over"] == "done" else {}
    if told or film is not None:
        two_ways.two_ways(told | {"waits": chain is not None and chain.active}, film, key="overview_ways")


def _film(chain: Job) -> dict[str, Any] | None:
    """Return what the browser needs of the chain; None before its first frame."""
    found, active = chain.result, chain.active
    if not found.film.frames:
        return None
    run = found.runs[-1] if found.runs else None
    decoding = None if run is None else {
        "number": len(found.runs), "prompt": run["prompt"], "text": run["text"], "speedup": found.summary.speedup
    }  # fmt: skip
    over = "" if active else chain.state
    return {"id": chain.id, "over": over, "decoding": decoding} | found.film.told()


def _ways() -> dict[str, Any]:
    """Describe the session's last greedy run beside its baseline, else the recorded one; nothing where none ships."""
    run = session.last_run()
    if run is not None and run["baseline"] and run["temperature"] == 0 and run["steps"]:
        origin, vector, profile = "Your last run", session.acceptance(), session.profile()
    else:
        run, origin = next(iter(kept_runs.recorded()), None), "Recorded on two cores of an AMD EPYC"
        parts = (scenarios.parts(one) for one in scenarios.known().values() if one.name == RECORDED_IN)
        vector, profile = next(parts, (None, None))
    if run is None:
        return {}
    drafts = [] if profile is None else core_cache.supposed_drafts(vector, profile)
    place = f" on {run['offload']}" if run.get("offload") else ""
    label = f"{origin}: {run['target']}{place}, {run['draft']}."
    return two_ways.about(run, drafts, label=label)
