"""The speedup surface: the optimum with its interval, nearly equal shapes, and selecting a shape by clicking."""

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from sequoia_core import AcceptanceVector, HardwareProfile
from sequoia_core.files.extras import has
from sequoia_core.planning.plan import GOOD_SHARE, BestShape, SpeedupSurface, smallest_good_shape, suggest_more_ranks
from ui import controls
from ui.charts.style import COLOUR_BAR, MARK, SCALE, log2_ticks, marker_trace, new_figure
from ui.markdown import escaped
from ui.phrases import count, in_parentheses, shape
from ui.session import core_cache, session, tree_in_use


def surface_section(vector: AcceptanceVector, profile: HardwareProfile) -> None:
    """Draw the surface by our formula or the paper's; clicking it selects a shape."""
    st.subheader("Predicted speedup")
    paper = st.toggle(
        "Paper's formula",
        key="hardware_paper",
        bind="query-params",
        help="Speedup = G(n, d) ÷ (t(n) + d·c): every draft pass costs as much as a one-token pass, and time "
        "outside the passes is ignored. Our formula uses the width of each level and adds the rest of a step.",
    )
    surface, best, _ = core_cache.plan(vector, profile, paper)
    current = tree_in_use.current_tree()
    st.plotly_chart(
        speedup_heatmap(surface, best, here=(current.size, current.depth)),
        key="hardware_surface",
        on_select="rerun",
        selection_mode="points",
        alt=f"Predicted speedup by n and d, best {best.predicted_speedup:.2f} at {shape(best.size, best.depth)}",
    )
    if (picked := controls.clicked_data("hardware_surface")) is not None:
        draw_take_button(*map(int, picked[:2]), key="hardware_use_picked", label="Use the clicked shape")
    small = smallest_good_shape(surface)
    st.caption(spread_sentence(vector, profile, best, small) + " Click the map to select a different shape.")
    if np.isnan(surface.speedup[2:, 1:]).any():
        st.caption(f"Blank: with {count(len(vector), 'rank')}, trees this shallow cannot have as many nodes.")
    if has("servers"):
        from sequoia_extras.servers.flags import llama_server_sentence

        if (flags := llama_server_sentence(vector, profile, best.predicted_speedup)) is not None:
            st.caption(escaped(flags))
    if has("hardware_models"):
        from ui.machine import memory

        if (taken := memory.memory_sentence(session.pair_spec(), profile.dtype, best.size)) is not None:
            st.caption(taken)


def spread_sentence(vector: AcceptanceVector, profile: HardwareProfile, best: BestShape, small: BestShape) -> str:
    """Describe the optimum's interval, and a smaller tree that is nearly as good."""
    if best.size < 2:
        return "No tree is predicted to be faster than plain decoding."
    tree = core_cache.best_tree(vector, best.size, best.depth)
    speedup = core_cache.prediction(vector, profile, tree).speedup
    bounds = in_parentheses(speedup.low, speedup.high, unit="×")
    if vector.has_one_prompt:
        bounds = " (one prompt: no interval)"
    words = f"Best: {shape(best.size, best.depth)} at {best.predicted_speedup:.2f}×{bounds}."
    if small.size < best.size:
        words += f" {shape(small.size, small.depth)} already reaches {small.predicted_speedup:.2f}×."
    words += f" {more}" if (more := suggest_more_ranks(tree, vector)) else ""
    wanted = core_cache.prompts_for(tree, vector)
    known = vector.prompt_trials
    if wanted is not None and known is not None and wanted > len(known):
        words += f" An interval of ±5% takes {count(wanted, 'calibration prompt')}; this vector has {len(known)}."
    return words


def draw_take_button(size: int, depth: int, *, key: str, label: str) -> None:
    """Draw a button that makes the other pages use a tree of this shape."""
    if controls.primary_button(
        f"{label}: {shape(size, depth)}",
        icon=":material/check:",
        key=key,
        help="Sets the tree used on the Tree and Live pages.",
    ):
        tree_in_use.set_size_and_depth(size, depth)
        st.toast(f"The tree is now {shape(size, depth)}.", icon=":material/account_tree:")


MAP_HOVER = "n = %{{x}}, d = %{{y}}<br>{}× predicted<br>{} tokens per step<extra></extra>"


def speedup_heatmap(surface: SpeedupSurface, best: BestShape, *, here: tuple[int, int]) -> go.Figure:
    """Draw predicted speedup over (n, d), with a star at the best shape and lines at break-even and near the best.

    Invisible points on the map, whose `customdata` begins with n and d, let the user select a shape.

    Args:
        here: (n, d) of the current tree, marked with a ring.
    """
    sizes = np.arange(2, surface.max_size + 1)
    depths = np.arange(1, surface.max_depth + 1)
    speedup = surface.speedup[2:, 1:].T  # [depths, sizes]
    grid = {"x": sizes, "y": depths, "z": speedup}
    tokens = surface.expected_tokens[2:, 1:].T  # -inf for impossible shapes, which have no speedup and are not drawn
    heat = go.Heatmap(
        **grid,
        customdata=tokens,
        colorscale=SCALE,
        hoverongaps=False,
        colorbar=COLOUR_BAR,
        hovertemplate=MAP_HOVER.format("%{z:.2f}", "%{customdata:.2f}"),
    )
    highest = np.nanmax(speedup)
    near = f"within {1 - GOOD_SHARE:.0%} of the best"
    lines = [_outline(grid, GOOD_SHARE * highest, near, dash="dot")]
    if np.nanmin(speedup) < 1.0 < highest:
        lines.insert(0, _outline(grid, 1.0, "break-even, 1×", dash="solid"))
    name = "best: no speculation" if best.size < 2 else f"best: {shape(best.size, best.depth)}"
    marks = {name: (best.size, best.depth, "star")}
    if here != best[:2] and here[0] <= surface.max_size and here[1] <= surface.max_depth:
        marks["current tree"] = (*here, "circle-open")
    return new_figure(
        heat,
        *lines,
        _selectable_points(sizes, depths, speedup, tokens),
        *(marker_trace([n], [d], name, MARK, size=17, symbol=symbol) for name, (n, d, symbol) in marks.items()),
        x="tree size n (log scale)",
        y="depth d, draft passes per step",
        height=420,
        xaxis=log2_ticks(int(sizes[-1])) | {"showgrid": False},
        yaxis={"tick0": 1, "dtick": max(1, len(depths) // 12), "range": [0.5, depths[-1] + 0.5], "showgrid": False},
    )


def _outline(grid: dict[str, np.ndarray], level: float, name: str, *, dash: str) -> go.Contour:
    """Return the contour line at one speedup."""
    return go.Contour(
        **grid,
        showscale=False,
        hoverinfo="skip",
        name=name,
        showlegend=True,
        contours={"start": level, "end": level, "size": 1.0, "coloring": "none"},
        line={"color": MARK, "width": 1.5, "dash": dash},
    )


def _selectable_points(sizes: np.ndarray, depths: np.ndarray, speedup: np.ndarray, tokens: np.ndarray) -> go.Scatter:
    """Return invisible selectable points, because Plotly does not support selection in heat maps."""
    wanted = np.isin(sizes, np.concatenate([np.arange(2, 33), np.geomspace(32, sizes[-1], 24).round()]))
    x, y = np.meshgrid(sizes[wanted], depths)
    points = np.dstack([x, y, speedup[:, wanted], tokens[:, wanted]]).reshape(-1, 4)
    points = points[np.isfinite(points[:, 2])]
    invisible = {"marker": {"opacity": 0.0}}
    return go.Scatter(
        x=points[:, 0],
        y=points[:, 1],
        customdata=points.tolist(),
        mode="markers",
        showlegend=False,
        hovertemplate=MAP_HOVER.format("%{customdata[2]:.2f}", "%{customdata[3]:.2f}"),
        marker={"size": 1, "opacity": 0.0},
        selected=invisible,
        unselected=invisible,
    )
