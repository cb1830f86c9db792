"""Which draft pays, at which temperature, on which kind of text? A sweep measured them all."""

import streamlit as st

from sequoia_core.sweeps.which_pays import which_pays
from ui.draft import cell, heat_map, sweep_here, sweep_races, sweep_source
from ui.markdown import escaped
from ui.session import sweeps


def section() -> None:
    """Draw a sweep's map of which draft pays, and offer to run one."""
    st.caption(
        "Which draft pays, at which temperature, on which kind of text? Each cell is one drafter that a sweep measured."
    )
    top = st.container()  # the answer: on a phone the first that is seen
    folder = sweep_source.section()
    view = st.container()
    sweep_here.section()
    if folder is None:
        return
    with view:
        try:
            sweep = sweeps.read(folder)
        except ValueError as error:
            st.error(escaped(str(error)), icon=":material/error:")
            return
        comparison = sweep.comparison
        if len(comparison.drafters) == 1:
            st.info(
                f"One drafter was measured, {escaped(comparison.drafters[0].name)}: add pairs, lookup or both to the "
                "plan, and run it into the same folder, to see which one pays.",
                icon=":material/info:",
            )
        shown = heat_map.controls(comparison, sweeps.machines(sweep))
        speeds = sweeps.speeds(folder, shown.profiles, shown.setting)
        answers = which_pays(comparison, speeds, shown.setting)
        for answer in answers:
            top.markdown(f":material/arrow_forward: **{escaped(answer.words)}** {escaped(answer.beside)}")
        picture = st.container()
        chosen = heat_map.cell_controls(comparison, next((a.best for a in answers if a.best), None), shown.setting)
        with picture:
            heat_map.draw(comparison, speeds, shown.quantity, shown.setting, chosen)
        speeds = sweeps.speeds(folder, shown.profiles, chosen[1])  # its interval
        cell.draw(comparison.cells.get(chosen), speeds.get(chosen), *chosen)
        sweep_races.draw(sweep.races)
        for note in comparison.notes:
            st.caption(f":material/info: {escaped(note)}.")
