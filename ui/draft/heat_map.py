"""The map of all cells: what it shows, on which hardware, and which cell is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import streamlit as st

from ui import charts
from ui.charts.compare import GAP
from ui.controls import clicked

if TYPE_CHECKING:
    from sequoia_core import HardwareProfile
    from sequoia_core.sweeps.compare import Cell, Comparison, Drafter, Setting
    from sequoia_core.sweeps.which_pays import Speed, Speeds


class Quantity(NamedTuple):
    """What a map can show.

    Attributes:
        of: a cell and what is predicted of it -> the value; None for a gap.
        form: how a value is written.
        help: what the map says below itself.
    """

    of: Callable[[Cell, Speed | None], float | None]
    form: str
    help: str


QUANTITIES = {
    "Predicted speedup": Quantity(
        lambda cell, speed: None if speed is None else speed.speedup.value,
        "{:.2f}×",
        "Over the target alone, on the chosen hardware: of a draft with the tree planned for it, of lookup and both "
        "with the fastest of the sizes that were decoded.",
    ),
    "Tokens per step": Quantity(
        lambda cell, speed: cell.tokens_per_step.value,
        "{:.2f}",
        "Of a draft with its best tree of the largest size, replayed along the measured texts; of lookup and both as "
        "decoded with the largest. Larger is not faster: steps differ in what they cost.",
    ),
    "First guess right (p₁)": Quantity(
        lambda cell, speed: cell.first_guess,
        "{:.0%}",
        "How often the draft's first guess is the accepted one. Lookup and both have no such number.",
    ),
    "Regret: one tree for all texts": Quantity(
        lambda cell, speed: cell.texts_regret,
        "{:.1%}",
        "Share of the tokens per step lost by the best tree for all texts together, at the same way of sampling.",
    ),
    "Regret: one tree for all temperatures": Quantity(
        lambda cell, speed: cell.temperatures_regret,
        "{:.1%}",
        "Share of the tokens per step lost by the best tree for all ways of sampling together, on the same texts.",
    ),
}


class Shown(NamedTuple):
    """The settings of the controls.

    Attributes:
        quantity: a name of `QUANTITIES`.
        profiles: of the chosen hardware; none where nothing fits.
        setting: which the answer is for.
    """

    quantity: str
    profiles: tuple[HardwareProfile, ...]
    setting: Setting


def controls(comparison: Comparison, machines: Mapping[str, tuple[HardwareProfile, ...]]) -> Shown:
    """Draw what to show, on which hardware, and for which way of sampling and kind of text to answer."""
    left, middle, right = st.columns([3, 4, 3])
    quantity = left.selectbox("Show", list(QUANTITIES), key="compare_shown", bind="query-params")
    machine = middle.selectbox(
        "Hardware",
        list(machines),
        key="compare_hardware",
        placeholder="No times fit this sweep",
        disabled=not machines,
        help="Times that were measured with these pairs: in the sweep itself (profile = true), the profile in use, or "
        "shipped ones. Each pair needs its own; for lookup any of its target's serves.",
    )
    settings = {str(setting): setting for setting in comparison.settings}
    setting = right.selectbox("Which draft pays at", list(settings), key="compare_answer", bind="query-params")
    return Shown(quantity, machines.get(machine, ()), settings[setting])


def draw(comparison: Comparison, speeds: Speeds, quantity: str, at: Setting, chosen: tuple[Drafter, Setting]) -> None:
    """Draw the map of one way of sampling, the best of each column framed; a click chooses a cell."""
    what = QUANTITIES[quantity]
    drafters = comparison.drafters
    settings = [each for each in comparison.settings if each.sampling == at.sampling]  # all would not fit a phone
    values = np.full((len(drafters), len(settings)), np.nan)
    texts = [[GAP] * len(settings) for _ in drafters]
    for (drafter, setting), cell in comparison.cells.items():
        if setting not in settings:
            continue
        speed = speeds[drafter, setting]
        value = what.of(cell, None if isinstance(speed, str) else speed)
        if value is not None:
            place = drafters.index(drafter), settings.index(setting)
            values[place], texts[place[0]][place[1]] = value, what.form.format(value)
    columns = [] if quantity.startswith("Regret") else list(enumerate(values.T))
    figure = charts.compare_figure(
        [drafter.name for drafter in drafters],
        [(setting.sampling, setting.texts) for setting in settings],
        values,
        texts,
        title=quantity,
        chosen=(drafters.index(chosen[0]), settings.index(chosen[1])) if chosen[1] in settings else None,
        best=[(int(np.nanargmax(column)), i) for i, column in columns if not np.isnan(column).all()],
    )
    st.plotly_chart(
        figure,
        width="stretch",
        key="compare_map",
        on_select=lambda: _choose(drafters, settings),
        selection_mode="points",
        alt=f"{quantity} of {len(drafters)} drafters at {len(settings)} settings; –: not known",
    )
    st.caption(f"{what.help} {at.sampling}; framed: the best of a column; –: not known. Click a cell.")


def _choose(drafters: Sequence[Drafter], settings: Sequence[Setting]) -> None:
    """Take the cell that was clicked."""
    if (place := clicked("compare_map")) is not None:
        row, column = map(int, place[:2])
        st.session_state["compare_drafter"] = drafters[row].name
        st.session_state["compare_setting"] = str(settings[column])


def cell_controls(comparison: Comparison, best: Drafter | None, setting: Setting) -> tuple[Drafter, Setting]:
    """Draw the choice of a cell, the answer's at first -> its drafter and setting."""
    drafters = {drafter.name: drafter for drafter in comparison.drafters}
    settings = {str(each): each for each in comparison.settings}
    left, right = st.columns(2)
    first = comparison.drafters[0] if best is None else best
    drafter = left.selectbox(
        "Drafter", list(drafters), list(drafters).index(first.name), key="compare_drafter", bind="query-params"
    )
    at = right.selectbox(
        "At", list(settings), list(settings).index(str(setting)), key="compare_setting", bind="query-params"
    )
    return drafters[drafter], settings[at]
