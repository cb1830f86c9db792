"""A race that is over: its replay, who came when, and whether all wrote the same text."""

from __future__ import annotations

from typing import Any

import streamlit as st

from ui import kept_runs, runs
from ui.cards import Card, cards
from ui.race.entrants import AUTOREGRESSIVE
from ui.race_job import Lane, Race
from ui.race_track import race_track
from ui.runs import DecodeRequest


def draw(race: Race, common: DecodeRequest, *, epoch: str) -> None:
    """Draw the replay, the figures of the winner, and a table of all lanes."""
    kept_runs.say_made_with(*(lane.run for lane in race.lanes))
    ordered = race.by_finish
    winner, alone = ordered[0], next((lane for lane in race.lanes if lane.name == AUTOREGRESSIVE), None)
    row = [Card("Winner", winner.name, f"of {len(ordered)} lanes", help="The fewest seconds in steps.")]
    row.append(Card("Tokens per second", f"{winner.tokens_per_sec:.0f}", _against(alone, "autoregressive {:.0f}")))
    if alone is not None:
        row.append(
            Card(
                "Speedup",
                f"{alone.seconds / winner.seconds:.2f}×",
                "vs 1.00× autoregressive",
                help="Seconds of the autoregressive lane ÷ seconds of the winner, for equally many tokens.",
            )
        )
    if len(ordered) > 1:
        gap = ordered[1].seconds - winner.seconds
        row.append(Card("Lead", f"{1000 * gap:.0f} ms", f"before {ordered[1].name}", help="At the finish line."))
    cards(*row)
    race_track(race, key="race_track", epoch=epoch)
    _say_whether_equal(race, common)
    st.dataframe(
        [_row(lane, alone) for lane in ordered],
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
    st.caption("Every lane is a run: the runs page shows it step by step and compares two of them.")


def _against(alone: Lane | None, form: str) -> str:
    return "" if alone is None else form.format(alone.tokens_per_sec)


def _say_whether_equal(race: Race, common: DecodeRequest) -> None:
    if len(race.lanes) < 2:
        return
    if common.temperature > 0:
        st.markdown(
            "Texts differ because each lane draws its own random numbers; all follow the target's distribution exactly."
        )
    elif race.is_one_text:
        st.success(
            "All lanes wrote the same text, as they must at temperature 0: only the time differs.",
            icon=":material/check_circle:",
        )
    else:
        odd = [lane.name for lane in race.lanes if lane.tokens != race.lanes[0].tokens]
        st.warning(
            f"At temperature 0 every lane should write what {race.lanes[0].name} wrote; {', '.join(odd)} did not. In a "
            "short number format near-ties may round the other way in passes of another width.",
            icon=":material/warning:",
        )


def _row(lane: Lane, alone: Lane | None) -> dict[str, Any]:
    """Return what is known of a lane; a prediction only where there is one."""
    summary = runs.summary_of(lane.run)
    row = {
        "lane": lane.name,
        "how": lane.run["tree_source"].partition(": ")[2],
        "seconds": round(lane.seconds, 3),
        "tokens per second": lane.tokens_per_sec,
        "tokens per step": summary.tokens_per_step,
        "steps": summary.steps,
        "speedup": None if alone is None else alone.seconds / lane.seconds,
        "predicted": lane.run["predicted_speedup"],
    }
    return {name: value for name, value in row.items() if value is not None}
