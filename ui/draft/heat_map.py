"""The heat map of a sweep's cells, and its controls.

Requires the optional package `sweeps`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from sequoia_core import HardwareProfile
from sequoia_extras.sweeps.compare import Cell, Comparison, Setting, SweepDrafter
from sequoia_extras.sweeps.recommendations import Speed, Speeds
from ui.charts.style import GREY, MARK, heat_map, new_figure
from ui.controls import clicked_data
from ui.markdown import for_chart

GAP = "–"
BLACK_TEXT_FROM = 0.45  # position on the colour scale, from 0 to 1, above which text is black


class Quantity(NamedTuple):
    """A quantity that the map can show.

    Attributes:
        value: function of a cell and its predicted speed; returns the value, or None for a gap.
        form: format string for a value.
        help: explanation shown below the map.
    """

    value: Callable[[Cell, Speed | None], float | None]
    form: str
    help: str


QUANTITIES = {
    "Predicted speedup": Quantity(
        lambda cell, speed: None if speed is None else speed.speedup.value,
        "{:.2f}×",
        "Compared with the target alone, on the selected hardware. A draft uses the tree planned for it; lookup and "
        "both use the fastest decoded size.",
    ),
    "Tokens per step": Quantity(
        lambda cell, speed: cell.tokens_per_step.value,
        "{:.2f}",
        "For a draft, its best tree of the largest size is replayed on the measured texts; lookup and both were "
        "decoded with the largest size. A larger value is not always faster, because step times differ.",
    ),
    "First guess right (p₁)": Quantity(
        lambda cell, speed: cell.first_guess,
        "{:.0%}",
        "How often the draft's first guess is accepted. Not available for lookup and both.",
    ),
    "Regret: one tree for all texts": Quantity(
        lambda cell, speed: cell.texts_regret,
        "{:.1%}",
        "Fraction of tokens per step lost by using one best tree for all texts at the same sampling setting.",
    ),
    "Regret: one tree for all temperatures": Quantity(
        lambda cell, speed: cell.temperatures_regret,
        "{:.1%}",
        "Fraction of tokens per step lost by using one best tree for all sampling settings on the same texts.",
    ),
}


def map_controls(
    comparison: Comparison, machines: Mapping[str, tuple[HardwareProfile, ...]]
) -> tuple[str, tuple[HardwareProfile, ...], Setting]:
    """Draw the select boxes for the quantity, the hardware and the setting; return their values.

    The quantity is a key of `QUANTITIES`; there are no profiles if none match the sweep.
    """
    left, middle, right = st.columns([3, 4, 3])
    quantity = left.selectbox("Show", list(QUANTITIES), key="compare_shown", bind="query-params")
    machine = middle.selectbox(
        "Hardware",
        list(machines),
        key="compare_hardware",
        placeholder="No profile matches this sweep",
        disabled=not machines,
        help="Profiles of these pairs: from the sweep (profile = true), current or shipped. Each pair "
        "needs its own profile; lookup can use any profile of its target.",
    )
    settings = {str(setting): setting for setting in comparison.settings}
    setting = right.selectbox("Recommend a draft for", list(settings), key="compare_answer", bind="query-params")
    return quantity, machines.get(machine, ()), settings[setting]


def draw_heat_map(
    comparison: Comparison, speeds: Speeds, quantity: str, at: Setting, chosen: tuple[SweepDrafter, Setting]
) -> None:
    """Draw the map at one sampling setting, framing the best cell of each column; a click selects a cell."""
    what = QUANTITIES[quantity]
    drafters = comparison.drafters
    settings = [
        each for each in comparison.settings if each.sampling == at.sampling
    ]  # a phone has no room for the columns of all settings
    values = np.full((len(drafters), len(settings)), np.nan)
    for row, column in np.ndindex(values.shape):
        key = drafters[row], settings[column]
        if (cell := comparison.cells.get(key)) is not None:
            speed = speeds[key]
            value = what.value(cell, None if isinstance(speed, str) else speed)
            values[row, column] = np.nan if value is None else value
    figure = _figure(drafters, settings, values, quantity)
    if not quantity.startswith("Regret"):
        for column, column_values in enumerate(values.T):
            if not np.isnan(column_values).all():
                _frame_cell(figure, int(np.nanargmax(column_values)), column, GREY)
    if chosen[1] in settings:
        _frame_cell(figure, drafters.index(chosen[0]), settings.index(chosen[1]), MARK)
    st.plotly_chart(
        figure,
        key="compare_map",
        on_select=lambda: _choose(drafters, settings),
        selection_mode="points",
        alt=f"{quantity} of {len(drafters)} drafters at {len(settings)} settings; –: unknown",
    )
    st.caption(f"{what.help} {at.sampling}; framed: the best of each column; –: unknown. Click a cell for details.")


def _choose(drafters: Sequence[SweepDrafter], settings: Sequence[Setting]) -> None:
    """Select the clicked cell."""
    if (point := clicked_data("compare_map")) is not None:
        row, column = map(int, point[:2])
        st.session_state["compare_drafter"] = drafters[row].name
        st.session_state["compare_setting"] = str(settings[column])


def cell_controls(comparison: Comparison, best: SweepDrafter | None, setting: Setting) -> tuple[SweepDrafter, Setting]:
    """Draw the cell selectors, initially at the recommended cell; return the selected drafter and setting."""
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


def _figure(
    drafters: Sequence[SweepDrafter],
    columns: Sequence[Setting],
    values: np.ndarray,
    quantity: str,
) -> go.Figure:
    """Draw a heat map of d x c cells labelled with their values.

    Invisible points on the map, whose `customdata` is (row, column), let the user select a cell.

    Args:
        drafters: the d rows.
        columns: the c columns.
        values: float64 [d, c]; NaN if missing.
        quantity: a key of `QUANTITIES`.
    """
    settings = [for_chart(setting.sampling) for setting in columns]
    text_names = [for_chart(setting.texts) for setting in columns]
    names = [for_chart(drafter.name) for drafter in drafters]
    cells = list(np.ndindex(values.shape))
    texts = [GAP if np.isnan(values[cell]) else QUANTITIES[quantity].form.format(values[cell]) for cell in cells]
    known = values[~np.isnan(values)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 0.0)
    bright = values > low + BLACK_TEXT_FROM * (high - low)
    colours = np.where(np.isnan(values), GREY, np.where(bright, "#000000", "#FFFFFF")).ravel().tolist()
    labels = go.Scatter(
        x=[[settings[column] for _, column in cells], [text_names[column] for _, column in cells]],
        y=[names[row] for row, _ in cells],
        showlegend=False,
        mode="markers+text",
        marker={"size": float(np.clip(560 / len(settings), 14, 44)), "symbol": "square", "opacity": 0},
        text=texts,
        textfont={"color": colours},
        customdata=cells,
        hovertext=[
            f"{names[row]}<br>{settings[column]}, {text_names[column]}<br>{quantity}: {text}"
            for (row, column), text in zip(cells, texts, strict=True)
        ],
        hoverinfo="text",
    )
    return new_figure(
        heat_map([settings, text_names], names, values, hoverinfo="skip"),
        labels,
        x="",
        y="",
        height=int(np.clip(130 + 44 * len(names), 300, 800)),
        xaxis={"showgrid": False, "showdividers": False, "range": [-0.5, len(columns) - 0.5]},
        yaxis={"type": "category", "range": [len(names) - 0.5, -0.5], "showgrid": False},
    )


def _frame_cell(figure: go.Figure, row: int, column: int, colour: str) -> None:
    line = {"color": colour, "width": 3}
    figure.add_shape(type="rect", x0=column - 0.5, x1=column + 0.5, y0=row - 0.5, y1=row + 0.5, line=line)
