"""The section that recommends a draft for each temperature and kind of text.

Requires the optional package `sweeps`.
"""

import pandas as pd
import streamlit as st

from sequoia_extras.sweeps.compare import Setting
from sequoia_extras.sweeps.recommendations import recommend_drafts
from ui.cards import draw_error
from ui.draft import cell, heat_map, sweep_run
from ui.markdown import escaped
from ui.session import sweeps


def which_draft_section() -> None:
    """Draw a sweep's recommendation and heat map, and offer to run a sweep."""
    st.caption(
        "Which draft is fastest, at which temperature, and on which kind of text? Each cell is one drafter at one "
        "setting."
    )
    top = st.container()  # on a phone, the recommendation comes first
    folder = sweep_run.sweep_source_controls()
    view = st.container()
    sweep_run.run_sweep_section()
    if folder is None:
        return
    with view:
        try:
            sweep = sweeps.read_sweep(folder)
        except ValueError as error:
            draw_error(error)
            return
        comparison = sweep.comparison
        if len(comparison.drafters) == 1:
            st.info(
                f"Only one drafter was measured, {escaped(comparison.drafters[0].name)}: to compare several, add "
                "pairs, lookup or both to the plan and run it with the same folder.",
                icon=":material/info:",
            )
        quantity, profiles, setting = heat_map.map_controls(comparison, sweeps.matching_profiles(sweep))
        speeds = sweeps.predict_speeds(folder, profiles, setting)
        answers = recommend_drafts(comparison, speeds, setting)
        for answer in answers:
            top.markdown(f":material/arrow_forward: **{escaped(answer.summary)}** {escaped(answer.details)}")
        picture = st.container()
        chosen = heat_map.cell_controls(comparison, next((a.best for a in answers if a.best), None), setting)
        with picture:
            heat_map.draw_heat_map(comparison, speeds, quantity, setting, chosen)
        speeds = sweeps.predict_speeds(folder, profiles, chosen[1])  # these predictions have intervals
        cell.draw_cell(comparison.cells.get(chosen), speeds.get(chosen), *chosen)
        _draw_races(sweep.races)
        for note in comparison.notes:
            st.caption(f":material/info: {escaped(note)}.")


def _draw_races(races: pd.DataFrame) -> None:
    """Draw the table of races, or nothing if there are none."""
    if races.empty:
        return
    st.subheader("Measured races")
    setting = ["temperature", "top_p", "domain"]
    conditions = ["device", "prompts"]
    methods = [name for name in races.columns if name not in ("pair", *setting, *conditions)]
    labels = [str(Setting(*each)) for each in races[setting].itertuples(index=False)]
    st.dataframe(
        races[["pair", *methods, *conditions]].assign(at=labels),
        hide_index=True,
        key="compare_races",
        column_order=["pair", "at", *methods, *conditions],
        column_config={name: st.column_config.NumberColumn(name.replace("_", " "), format="%.2f×") for name in methods},
    )
    st.caption(
        "Tokens per second of each method ÷ those of the target alone, including prompt processing. *predicted* is the "
        "speedup predicted for *sequoia*, the tree planned with the acceptance measured on different prompts."
    )
