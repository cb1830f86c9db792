"""A race during and after it: the methods' lanes, their ranking, and whether all wrote the same text."""

from __future__ import annotations

import json
from typing import Any

import streamlit as st

from ui.cards import draw_load_warning, draw_slower
from ui.jobs import job_panel, session_jobs
from ui.markdown import escaped
from ui.race.entrants import AUTOREGRESSIVE, ELSEWHERE, method_titles
from ui.race.race_job import Race
from ui.race.track import describe_lane, describe_speedup, draw_lanes, with_figures
from ui.runs import available_runs
from ui.runs.runs import DecodeRequest
from ui.session import shipped

POLL_SEC = 1.0  # a race takes some seconds; an update costs little, because only changed lanes are redrawn
HOW_PX = 120  # the last column, which is cut so that the others fit on the page


def draw_race(was_active: bool) -> None:
    """Draw this session's race, running or finished, or else the recorded one; rerun the page when it ends."""
    job = session_jobs.find_job("race")
    race: Race = (job and job.result) or Race((AUTOREGRESSIVE, *method_titles()))
    if job is not None and job.active:
        running = next((name for name in race.names if job.message.startswith(f"{name}, round")), "")
        draw_lanes([describe_lane(race, name) for name in race.names], running=running, epoch=job.id)
        # Text rather than a progress bar, whose animation would slow down the race.
        st.caption(f":material/sync: {job.fraction:.0%} · {job_panel.progress_text(job)}")
        return
    if was_active:
        st.rerun()
    if job is not None and job.state == "failed":
        st.error(f"Race failed: {escaped(job.error or '')}", icon=":material/error:")
    if job is None or not race.results:
        _draw_recorded(race)
        return
    ordered = sorted(race.results, key=lambda name: race.results[name].median_step_sec)
    lanes = [describe_lane(race, name) for name in ordered]
    draw_lanes(lanes, verdict=_verdict(race, ordered), epoch=job.id)
    if job.state == "cancelled":
        st.warning("Stopped. The methods that finished are shown.", icon=":material/stop_circle:")
    _draw_results(race, ordered, job.info)


def _draw_results(race: Race, ordered: list[str], common: DecodeRequest) -> None:
    """Draw remarks on a finished race, and a table of its methods."""
    if len(ordered) > 1:
        fastest = next(name for name in ordered if name != race.names[0])
        speedup = race.results[race.names[0]].median_step_sec / race.results[fastest].median_step_sec
        draw_slower(speedup, "Plain decoding was the fastest method on this prompt: speculation does not pay here.")
    draw_load_warning(*race.runs.values())
    _draw_text_comparison(race, common)
    available_runs.draw_settings(*race.runs.values())
    if any(run["tree_source"].endswith(ELSEWHERE) for run in race.runs.values()):
        st.caption(
            "Planned elsewhere: with the times of a different pair, dtype or machine. This race does not show how well "
            "a plan for this machine performs."
        )
    st.dataframe(
        [_row(name, race) for name in ordered],
        hide_index=True,
        key="race_table",
        column_config={
            "predicted": st.column_config.NumberColumn(format="%.3g×"),
            "tokens/step": st.column_config.NumberColumn(format="%.2f"),
            "tokens/s": st.column_config.NumberColumn(format="%.0f"),
            "how": st.column_config.TextColumn(width=HOW_PX),
        },
    )
    st.caption(
        "Times are medians over the rounds, and × is the median time of the autoregressive method ÷ the method's, with "
        "its range. A method is first if every round took less time than all rounds of the others, which happens in "
        "one of ten races of equally fast methods. The replay shows each method's first round, "
        "scaled to its median time. That round is saved as a run: the *Runs* tab shows runs step by step and compares "
        "two of them."
    )


def _verdict(race: Race, ordered: list[str]) -> str:
    """Name the fastest method, and the methods that are level with it."""
    from sequoia_core.measuring.race import level_with_fastest

    if any(len(result.step_sec) == 1 for result in race.results.values()):
        return f"Fastest in one round: {ordered[0]}"
    _, *level = level_with_fastest(race.results)
    return f"{'Level' if level else 'First'} on this prompt: {', '.join([ordered[0], *level])}"


def _draw_recorded(empty: Race) -> None:
    """Draw the shipped race if there is one; otherwise the lanes of one in which no method has run."""
    path = shipped.ASSETS / "runs" / "race.json"
    if not path.exists():
        draw_lanes([describe_lane(empty, name) for name in empty.names], epoch="")
        return
    record = json.loads(path.read_text(encoding="utf-8"))
    first, *_ = record["methods"]
    lanes = [with_figures(lane, first["ends"][-1], lane["ends"][-1:]) for lane in record["methods"]]
    lanes.sort(key=lambda lane: lane["ends"][-1])
    draw_lanes(lanes, verdict=f"{lanes[0]['name']} was the fastest.", epoch="recorded")
    st.caption(f"A recorded race, shown until you start one: {record['label']}.")


def _draw_text_comparison(race: Race, common: DecodeRequest) -> None:
    if len(race.results) < 2:
        return
    if common.temperature > 0:
        st.markdown(
            "The texts differ because each method draws different random numbers; all follow the target's distribution."
        )
        return
    first, *_ = race.results
    if not race.differences:
        st.success(
            "All methods wrote the same text, as they must at temperature 0; only the times differ.",
            icon=":material/check_circle:",
        )
    else:
        st.warning(
            f"At temperature 0, every method should write what {first} wrote; {', '.join(race.differences)} did not. "
            + " ".join(escaped(f"{name}: {words}.") for name, words in race.differences.items()),
            icon=":material/warning:",
        )


def _row(name: str, race: Race) -> dict[str, Any]:
    """Return a method's table row, omitting unknown values."""
    run = race.runs[name]
    result = race.results[name]
    row = {
        "method": name,
        "×": describe_speedup(race.results[race.names[0]].median_step_sec, result.step_sec),
        "predicted": run["predicted_speedup"],
        "tokens/step": sum(result.tokens) / sum(result.steps),
        "tokens/s": result.tokens[0] / result.median_step_sec,
        "seconds": round(result.median_step_sec, 3),
        "steps": result.steps[0],
        "how": run["tree_source"].partition(": ")[2],
    }
    return {key: value for key, value in row.items() if value is not None}
