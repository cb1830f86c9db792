"""Expected tokens by tree size, compared with chains, with recorded measurements.

Requires the optional package `evaluation`.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.acceptance.conditions import Conditions
from sequoia_core.files.safe_files import read_json
from sequoia_core.trees.optimal import expected_tokens
from sequoia_core.trees.plain import chain_limit, k_ary_limit, tree_limit
from ui.cards import number
from ui.charts.style import BLUE, GREEN, RUST, error_bars, line_trace, log2_ticks, marker_trace, new_figure
from ui.markdown import escaped
from ui.phrases import count
from ui.session import core_cache, shipped

STYLES = ((BLUE, "solid"), (GREEN, "dash"), (RUST, "dot"))  # of the best tree, k chains and one chain
MEASURED = {"static": BLUE, "chains": GREEN}  # kinds of trees with measured points, in the colour of their curve
TOKENS_HOVER = "n = %{x}<br>%{y:.2f} tokens per step"


def growth_section(tree: TokenTree, vector: AcceptanceVector, depth: int) -> None:
    """Plot the curves for the best tree and chains, with the current tree and measured points."""
    independent = expected_tokens(tree, vector)
    curves = core_cache.growth_curves(vector, depth, core_cache.table_size(tree.size))
    study = find_study(vector)
    points = study["points"] if study else []
    st.plotly_chart(
        growth_figure(curves, here=(tree.size, independent), points=points),
        key="tree_growth",
        alt="Tokens per step against tree size: the best tree keeps gaining where chains flatten",
    )
    tokens = core_cache.tokens_per_step(tree, vector).value
    st.markdown(
        f"The curves assume independent positions, for which this tree yields {independent:.2f} tokens per step; along "
        f"the texts behind the vector it yields {tokens:.2f}. Of any size, one chain yields at most "
        f"{number(chain_limit(vector))}, a binary tree {number(k_ary_limit(vector, 2))}, and a tree of all measured "
        f"ranks {number(tree_limit(vector))}."
    )
    if study is not None:
        settings = study["settings"]
        st.caption(
            f":material/label: Points: recorded on {escaped(settings['recorded'])} on the demo pair, "
            f"{Conditions.from_json(settings['conditions']).sampling}, {count(settings['prompts'], 'prompt')} × "
            f"{settings['max_new_tokens']} tokens, d ≤ {settings['max_depth']}; 95% intervals over prompts. "
            f"With d = {settings['max_depth']}, the curves have the same limit."
        )


def find_study(vector: AcceptanceVector) -> dict[str, Any] | None:
    """Return the shipped measurements for the vector's pair and settings; None without them or if they are damaged."""
    path = shipped.ASSETS / "runs" / "growth.json"
    if vector.holds_for is None or not path.exists():
        return None
    with suppress(ValueError, KeyError, TypeError):
        content = read_json(path.read_bytes())
        for study in content["studies"]:
            if not Conditions.from_json(study["settings"]["conditions"]).differences(vector.holds_for):
                return study | {"settings": study["settings"] | {"recorded": content["settings"]["date"]}}
    return None


def growth_figure(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    here: tuple[int, float],
    points: Sequence[Mapping[str, Any]] = (),
) -> go.Figure:
    """Draw expected and measured tokens per step by tree size.

    Args:
        curves: sizes, int [k], and expected tokens, float [k], of the best tree, k chains and one chain, by name.
        here: (n, F) of the current tree, which is marked.
        points: measurements, as rows of `GrowthPoint`.
    """
    traces = [
        line_trace(*curve, name, colour, width=3, dash=dash, hover=f"{name}<br>{TOKENS_HOVER}")
        for (name, curve), (colour, dash) in zip(curves.items(), STYLES, strict=True)
    ]
    for kind, colour in MEASURED.items():
        rows = [point for point in points if point["kind"] == kind]
        tokens, low, high = ([row[part] for row in rows] for part in ("tokens_per_step", "low", "high"))
        measured = marker_trace(
            [row["size"] for row in rows],
            tokens,
            "measured",
            colour,
            hover=f"measured<br>{TOKENS_HOVER}",
            error_y=error_bars(tokens, low, high),
            showlegend=kind == "static" and bool(rows),
        )
        traces.append(measured)
    hover = f"this tree<br>{TOKENS_HOVER}"
    traces.append(marker_trace([here[0]], [here[1]], "this tree", BLUE, size=13, symbol="diamond", hover=hover))
    return new_figure(
        *traces,
        x="tree size n (log scale)",
        y="F(T): tokens per step if positions are independent",
        height=480,
        xaxis=log2_ticks(max(int(sizes[-1]) for sizes, _ in curves.values())),
        yaxis={"rangemode": "tozero"},
    )
