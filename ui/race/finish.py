"""A race that is over: its replay, who came when, and whether all wrote the same text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import streamlit as st

from ui.cards import Card, cards
from ui.markdown import escaped
from ui.phrases import count
from ui.race.entrants import AUTOREGRESSIVE, ELSEWHERE
from ui.race.race_job import Race
from ui.race.track import LEVEL, draw_methods, race_track
from ui.runs import kept_runs
from ui.runs.runs import DecodeRequest
from ui.session import shipped

if TYPE_CHECKING:
    from ui.jobs.jobs import Job


def draw(race: Race, common: DecodeRequest, *, epoch: str) -> None:
    """Draw the replay, the figures of the winner, and a table of all methods."""
    kept_runs.say_made_with(*race.runs.values())
    ordered = sorted(race.results, key=lambda name: race.results[name].sec_per_token)
    winner, alone = race.results[ordered[0]], race.results.get(AUTOREGRESSIVE)
    level = _level(race, ordered)
    place = ("First on this prompt", ordered[0], f"of {count(len(ordered), 'method')}")
    if level:
        place = ("Level on this prompt", count(len(level) + 1, "method"), " and ".join([*ordered[:1], *level]))
    words = "The fewest seconds in steps. One prompt does not decide: *Draft*, Which draft?, compares over many."
    row = [Card(*place, help=words)]
    against = "" if alone is None else f"autoregressive {1 / alone.sec_per_token:,.0f}"
    row.append(Card("Tokens per second", f"{1 / winner.sec_per_token:,.0f}", against))
    if alone is not None:
        row.append(
            Card(
                "Speedup",
                f"{alone.sec_per_token / winner.sec_per_token:.2f}×",
                "vs 1.00× autoregressive",
                help="Seconds of the autoregressive method ÷ seconds of the first, for equally many tokens.",
            )
        )
    if len(ordered) > 1 and not level:
        gap = sum(race.results[ordered[1]].step_sec) - sum(winner.step_sec)
        row.append(Card("Lead", f"{1000 * gap:.0f} ms", f"before {ordered[1]}", help="At the finish line."))
    cards(*row)
    if any(name.endswith(ELSEWHERE) for name in ordered):
        st.caption(
            ":material/info: What was planned elsewhere follows times of another pair, dtype or machine: how a plan "
            "for this machine does, this race does not tell."
        )
    race_track(race, key="race_track", epoch=epoch)
    _say_whether_equal(race, common)
    st.dataframe(
        [_row(name, race) for name in ordered],
        width="stretch",
        hide_index=True,
        key="race_table",
        column_config={
            "tokens per second": st.column_config.NumberColumn(format="%.0f"),
            "tokens per step": st.column_config.NumberColumn(format="%.2f"),
            "speedup": st.column_config.NumberColumn(format="%.2f×"),
            "predicted": st.column_config.NumberColumn(format="%.2f×"),
        },
    )
    st.caption("Every method leaves a run: *Runs* shows it step by step and compares two of them.")


def draw_running(job: Job) -> None:
    """Draw the methods that have finished beside those that wait."""
    if job.result is not None:
        race_track(job.result, key="race_track", epoch=job.id)


def draw_recorded() -> None:
    """Replay the race that ships, where there is one."""
    path = shipped.ASSETS / "runs" / "race.json"
    if not path.exists():
        st.info("No race yet. It takes a few seconds; the replay appears here.", icon=":material/flag:")
        return
    record = json.loads(path.read_text(encoding="utf-8"))
    st.caption(f"A recorded race, until you start one: {record['label']}.")
    draw_methods(record["methods"], [], key="race_track", epoch="recorded")


def _level(race: Race, ordered: list[str]) -> list[str]:
    """Return which others took no longer than chance makes of one prompt."""
    seconds = {name: sum(race.results[name].step_sec) for name in ordered}
    return [name for name in ordered[1:] if seconds[name] <= (1 + LEVEL) * seconds[ordered[0]]]


def _say_whether_equal(race: Race, common: DecodeRequest) -> None:
    if len(race.results) < 2:
        return
    if common.temperature > 0:
        st.markdown(
            "Texts differ because each method draws its own random numbers; all follow the target's distribution."
        )
        return
    first, *_ = race.results
    if not race.differences:
        st.success(
            "All methods wrote the same text, as they must at temperature 0: only the time differs.",
            icon=":material/check_circle:",
        )
    else:
        st.warning(
            f"At temperature 0 every method should write what {first} wrote; {', '.join(race.differences)} did not. "
            + " ".join(escaped(f"{name}: {words}.") for name, words in race.differences.items()),
            icon=":material/warning:",
        )


def _row(name: str, race: Race) -> dict[str, Any]:
    """Return what is known of a method; a speedup and a prediction only where there is one."""
    result, run, alone = race.results[name], race.runs[name], race.results.get(AUTOREGRESSIVE)
    row = {
        "method": name,
        "speedup": None if alone is None else alone.sec_per_token / result.sec_per_token,
        "predicted": run["predicted_speedup"],
        "tokens per second": 1 / result.sec_per_token,
        "tokens per step": sum(result.tokens) / sum(result.steps),
        "seconds": round(sum(result.step_sec), 3),
        "steps": sum(result.steps),
        "how": run["tree_source"].partition(": ")[2],
    }
    return {key: value for key, value in row.items() if value is not None}
