"""The first thing a newcomer sees: one answer written twice, without a draft and with a token tree."""

from __future__ import annotations

from ui import scenarios
from ui.runs import kept_runs, runs
from ui.session import core_cache, session
from ui.token_tree import two_ways

RECORDED_IN = "demo-pair-disk"  # the scenario of the recorded run


def draw() -> None:
    """Play the session's last greedy run beside its baseline, else the recorded one; nothing where none ships."""
    run = session.last_run()
    if run is not None and run["baseline"] and run["temperature"] == 0 and run["steps"]:
        origin, vector, profile = "your last run", session.acceptance(), session.profile()
    else:
        run, origin = next(iter(kept_runs.recorded()), None), "recorded on two cores of an AMD EPYC"
        parts = (scenarios.parts(one) for one in scenarios.known().values() if one.name == RECORDED_IN)
        vector, profile = next(parts, (None, None))
    if run is None:
        return
    drafts = [] if profile is None else core_cache.supposed_drafts(vector, profile)
    place = f", target read from {run['offload']}" if run.get("offload") else ""
    two_ways.two_ways(run, drafts, label=f"{origin}: {runs.pair_of(run)}{place}", key="overview_ways")
