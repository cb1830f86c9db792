"""Figures of robustness evidence, drawn from the plain rows of `ui.exact`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ui.charts.style import BLUE, BROWN, FAINT, GREEN, GREY, OCHRE, PLUM, RUST, SERIES, bars, line, log2_ticks
from ui.charts.style import figure as new_figure
from ui.exact.wording import cell_name, outcome, sampling_label
from ui.markdown import for_chart
from ui.phrases import beside
from ui.verifier_names import COMPARED

Rows = Sequence[Mapping[str, Any]]
MARKS = {
    "sequoia": (BLUE, "circle", "solid"),
    "specinfer": (RUST, "square", "dash"),
    "topk": (GREEN, "diamond", "dot"),
    "greedy": (GREY, "star", "solid"),
    "specinfer_tree": (BROWN, "hexagon", "solid"),
    "lookup": (OCHRE, "triangle-up", "dashdot"),
    "hybrid": (PLUM, "cross", "solid"),
    "optimum": (BLUE, "circle-open", "dot"),
    "optimum_with_replacement": (RUST, "square-open", "dot"),
}
AXES = {"temperature": ("temperature", "T ="), "top_p": ("top-p", "top-p")}  # column -> its name, and before a value
APART = 0.015  # share of the axis that sets verifiers at one setting apart, so that no interval hides another
LEAF = [[0.0, "#F2EFE6"], [0.5, "#9CC9B6"], [1.0, "#1F6A52"]]  # numbers stay readable on every shade
OUTCOMES = [[0.0, "#A8481A"], [0.5, "#D9DDD9"], [1.0, "#0F7059"]]
MARK_OF = {"wins": "▲", "loses": "▼"}
NEVER = 0.5  # where a count of 0 stands on a log axis
MOST_CELLS = 18  # of a losslessness check, with room for a text each


def _of(rows: Rows, name: str, value: Any) -> list[Mapping[str, Any]]:
    return [row for row in rows if row[name] == value]


def _column(rows: Rows, name: str) -> np.ndarray:
    return np.array([np.nan if row[name] is None else row[name] for row in rows], dtype=float)


def _bars(rows: Rows, value: str, low: str, high: str) -> dict[str, Any] | None:
    """Error bars of rows; None where nothing is known of the spread."""
    return bars(*(_column(rows, name) for name in (value, low, high)))


def _series(
    rows: Rows, verifier: str, x: np.ndarray, value: str, low: str, high: str, hover: str, axis: str = "temperature"
) -> go.Scatter:
    color, symbol, dash = MARKS.get(verifier, (PLUM, "circle", "solid"))
    told = np.column_stack([_column(rows, low), _column(rows, high), _column(rows, axis)])
    marks = {"color": color, "size": 9, "symbol": symbol}
    name, values, spread = COMPARED.get(verifier, verifier), _column(rows, value), _bars(rows, value, low, high)
    curve = line(x, values, name, color, dash=dash, hover=hover, error_y=spread, customdata=told)
    return curve.update(mode="lines+markers", marker=marks)


def _along(axis: str, rows: Rows, by: str, value: str, low: str, high: str, y: str, hover: str) -> go.Figure:
    shown = sorted({row[axis] for row in rows}) or [0.0, 1.0]
    span = shown[-1] - shown[0] or 1.0
    names = [name for name in MARKS if _of(rows, by, name)]
    traces = []
    for place, name in enumerate(names):
        own = sorted(_of(rows, by, name), key=lambda row: row[axis])
        shift = 0.0 if name == "greedy" else APART * span * (place - (len(names) - 1) / 2)
        traces.append(_series(own, name, _column(own, axis) + shift, value, low, high, hover, axis))
    room = 0.06 * span if len(shown) > 1 else 0.3
    ticks = {"tickvals": shown, "ticktext": [f"{t:g}" for t in shown], "range": [shown[0] - room, shown[-1] + room]}
    return new_figure(*traces, x=f"{AXES[axis][0]} of the target", y=y, xaxis=ticks)


def tokens_figure(runs: Rows, axis: str = "temperature") -> go.Figure:
    """Draw tokens per step with 95% intervals over temperature (of one top-p) or top-p, one line per verifier."""
    hover = (
        f"%{{fullData.name}}, {AXES[axis][1]} %{{customdata[2]}}<br>%{{y:.2f}} tokens per step"
        "<br>95%: %{customdata[0]:.2f} to %{customdata[1]:.2f}"
    )
    return _along(axis, runs, "verifier", "tokens_per_step", "ci_low", "ci_high", "tokens per step", hover)


def outcomes_figure(ratios: Rows, chosen: str | None = None) -> go.Figure:
    """Draw Sequoia's tokens per step ÷ each rival's as a grid, a row each and a column per setting, by who wins.

    A click takes a cell: invisible points lie over the grid, with row and column as `customdata`.
    """
    rivals, settings = (list(dict.fromkeys(map(name, ratios))) for name in (lambda row: row["other"], sampling_label))
    found = {(rivals.index(row["other"]), settings.index(sampling_label(row))): row for row in ratios}
    won = {place: outcome(row) for place, row in found.items()}
    values = np.full((len(rivals), len(settings)), np.nan)
    for place, word in won.items():
        values[place] = {"wins": 1, "loses": -1}.get(word, 0)
    names, places = [COMPARED.get(rival, rival) for rival in rivals], list(found)
    figure = new_figure(
        go.Heatmap(
            x=settings, y=names, z=values, zmin=-1, zmax=1, colorscale=OUTCOMES, showscale=False, xgap=2, ygap=2,
            hoverinfo="skip",
        ),
        go.Scatter(
            x=[settings[column] for _, column in places],
            y=[names[row] for row, _ in places],
            mode="markers+text",
            marker={"size": 44, "symbol": "square", "opacity": 0},
            text=[f"{found[place]['value']:.2f}× {MARK_OF.get(won[place], '')}" for place in places],
            textfont={"color": ["#FFFFFF" if won[place] in MARK_OF else "#000000" for place in places]},
            customdata=places,
            hovertext=[
                f"÷ {names[place[0]]}, {settings[place[1]]}<br>{found[place]['value']:.2f}×"
                + beside(found[place]["low"], found[place]["high"])
                for place in places
            ],
            hoverinfo="text",
            showlegend=False,
        ),
        x="",
        y="",
        height=int(np.clip(110 + 46 * len(rivals), 300, 600)),
        xaxis={"type": "category", "showgrid": False, "range": [-0.5, len(settings) - 0.5]},
        yaxis={"type": "category", "showgrid": False, "range": [len(rivals) - 0.5, -0.5]},
    )  # fmt: skip
    if chosen is not None:
        at = settings.index(chosen)
        figure.add_shape(
            type="rect", x0=at - 0.5, x1=at + 0.5, y0=-0.5, y1=len(rivals) - 0.5, line={"color": OCHRE, "width": 3}
        )
    return figure


def verifier_rejection_figure(rows: Rows) -> go.Figure:
    """Draw on log-log axes how often the first k children are all rejected, per verifier; rows of one sampling."""
    traces = []
    for name in MARKS:
        own = [{**row, **_no_zero(row)} for row in _of(rows, "verifier", name)]
        if own:
            hover = (
                "%{fullData.name}, k = %{x}<br>all rejected: %{y:.4f}"
                "<br>95%: %{customdata[0]:.4f} to %{customdata[1]:.4f}"
            )
            traces.append(_series(own, name, _column(own, "rank"), "rejection", "ci_low", "ci_high", hover))
    figure = new_figure(*traces, x="children tried k (log scale)", y="P(all k rejected) (log scale)")
    figure.update_xaxes(**log2_ticks(max((row["rank"] for row in rows), default=1)))
    ticks = [digit * 10.0**power for power in range(-6, 1) for digit in (1, 1.5, 2, 3, 5, 7)]
    figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
    return figure


def _no_zero(row: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out a rejection of 0, which a log axis cannot show, and stop a lower bound of 0 at the point."""
    value = row["rejection"] if row["rejection"] > 1e-9 else None
    low = row["ci_low"] if row["ci_low"] is None or row["ci_low"] > 1e-9 else value
    return {"rejection": value, "ci_low": low}


def counts_figure(cells: Rows) -> go.Figure:
    """Draw how often each text was written and how often the target would write it, most likely first.

    The texts come from outside: they are quoted, with the characters escaped that plotly would take for markup.
    """
    shown = cells[:MOST_CELLS]
    place = np.arange(len(shown))
    names = [for_chart(cell_name(cell)) for cell in shown]
    expected, observed = _column(shown, "expected"), _column(shown, "observed")
    return new_figure(
        go.Scatter(
            x=expected,
            y=place,
            mode="markers",
            name="expected, with the 95% range of chance",
            marker={"color": GREY, "size": 15, "symbol": "line-ns-open", "line": {"width": 2}},
            error_x={
                "type": "data",
                "array": _column(shown, "expected_high") - expected,
                "arrayminus": expected - np.maximum(_column(shown, "expected_low"), NEVER),
                "color": FAINT,
                "thickness": 7,
                "width": 0,
            },
            customdata=names,
            hovertemplate="%{customdata}<br>expected %{x:.1f}<extra></extra>",
        ),
        go.Scatter(
            x=np.maximum(observed, NEVER),
            y=place,
            mode="markers",
            name="observed",
            marker={"color": BLUE, "size": 9},
            customdata=[[name, int(count)] for name, count in zip(names, observed, strict=True)],
            hovertemplate="%{customdata[0]}<br>observed %{customdata[1]}<extra></extra>",
        ),
        x="times written (log scale)",
        y="",
        height=int(130 + 26 * len(shown)),
        xaxis={"type": "log", "dtick": 1},
        yaxis={
            "tickvals": place,
            "ticktext": names,
            "range": [len(shown) - 0.4, -0.6],
            "showgrid": False,
        },
    )


def level_acceptance_figure(cells: Rows) -> go.Figure:
    """Draw acceptance by rank and depth with the parents it was counted over; a cell never seen stays empty."""
    ranks, depths = max(cell["rank"] for cell in cells), max(cell["depth"] for cell in cells)
    value, count = np.full((depths, ranks), np.nan), np.zeros((depths, ranks), dtype=int)
    at = [cell["depth"] - 1 for cell in cells], [cell["rank"] - 1 for cell in cells]
    value[at], count[at] = _column(cells, "acceptance"), _column(cells, "offered").astype(int)
    texts = [
        [f"{p:.2f}<br>of {n:,}" if n else "" for p, n in zip(*pair, strict=True)]
        for pair in zip(value, count, strict=True)
    ]
    return new_figure(
        go.Heatmap(
            x=np.arange(1, ranks + 1),
            y=np.arange(1, depths + 1),
            z=value,
            text=texts,
            textfont={"size": 12},
            texttemplate="%{text}" if ranks <= 12 else None,
            customdata=count,
            colorscale=LEAF,
            zmin=0.0,
            zmax=1.0,
            xgap=2,
            ygap=2,
            colorbar={"title": {"text": "accepted"}, "thickness": 10, "len": 0.9},
            hoverongaps=False,
            hovertemplate="depth %{y}, rank %{x}<br>accepted %{z:.3f} of %{customdata}<extra></extra>",
        ),
        x="rank k, in the order drafted",
        y="depth of the child",
        height=int(np.clip(140 + 40 * depths, 380, 900)),
        xaxis={"dtick": 1 if ranks <= 16 else 4, "showgrid": False},
        yaxis={"dtick": 1, "autorange": "reversed", "showgrid": False},
    )


def confidence_figure(bins: Rows) -> go.Figure:
    """Draw how often an offered child was accepted over the draft's probability of it, with 95% intervals."""
    seen = [row for row in bins if row["offered"]]
    return new_figure(
        line([0, 1], [0, 1], "accepted as often as the draft thinks", GREY, width=1.5, dash="dot"),
        line(
            _column(seen, "mean_draft"),
            _column(seen, "rate"),
            "measured",
            BLUE,
            mode="lines+markers",
            error_y=_bars(seen, "rate", "ci_low", "ci_high"),
            customdata=[[row["offered"], row["draft_from"], row["draft_to"]] for row in seen],
            hover="draft %{customdata[1]:.1f} to %{customdata[2]:.1f}<br>accepted %{y:.1%} of %{customdata[0]}",
        ),
        x="draft probability of the child's token",
        y="share accepted of those offered",
        xaxis={"range": [-0.02, 1.02]},
        yaxis={"range": [-0.02, 1.02]},
    )


def dynamic_trees_figure(rows: Rows) -> go.Figure:
    """Draw tokens per step ÷ the static tree's over temperature, with 95% intervals and the line of a tie.

    Rows are of one budget, each with `tree`, `temperature` and `over_static` of value, low and high.
    """
    traces = []
    for colour, name in zip(SERIES, dict.fromkeys(row["tree"] for row in rows), strict=False):
        own = [row for row in rows if row["tree"] == name]
        value, low, high = ([row["over_static"][part] for row in own] for part in ("value", "low", "high"))
        told = f"{name}, T = %{{x}}<br>%{{y:.2f}}× the static tree"
        at, spread = [row["temperature"] for row in own], bars(value, low, high)
        traces.append(line(at, value, name, colour, hover=told, mode="lines+markers", error_y=spread))
    figure = new_figure(*traces, x="temperature", y="tokens per step ÷ static tree's")
    figure.add_hline(y=1.0, line={"color": GREY, "width": 1.5, "dash": "dot"})
    return figure
