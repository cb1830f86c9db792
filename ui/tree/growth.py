"""How expected tokens grow with the size of the tree, beside plain shapes and what they cannot pass."""

from __future__ import annotations

import math

import pandas as pd
import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree, expected_tokens
from sequoia_core.design.optimal_trees import tree_limit
from sequoia_core.design.plain_trees import chain_limit
from ui import charts
from ui.session import core_cache


def section(tree: TokenTree, vector: AcceptanceVector, depth: int) -> None:
    """Draw the curves of the best tree and of plain shapes of that depth, with the tree in use marked."""
    ceiling, curves = chain_limit(vector), core_cache.growth_curves(vector, depth, core_cache.reach(tree.size))
    st.plotly_chart(
        charts.growth_figure(
            curves,
            here=(tree.size, expected_tokens(tree, vector)),
            limits={"no chain passes": ceiling, "no tree of these ranks passes": tree_limit(vector)},
            band=core_cache.growth_band(vector, depth),
        ),
        width="stretch",
        key="tree_growth",
        alt="Expected tokens per step against tree size: the best tree keeps growing where chains flatten",
    )
    limit = f"No chain passes {ceiling:.2f} tokens per step, however long"
    st.markdown(
        f"{'A chain has no limit here' if math.isinf(ceiling) else limit}, and any number of independent chains adds "
        f"at most one token to that; the best tree of depth at most {depth} gains with every node, ever more slowly."
    )
    table = pd.concat(
        pd.DataFrame({"curve": name, "size": sizes, "expected_tokens": tokens})
        for name, (sizes, tokens) in curves.items()
    )
    st.download_button(
        "Download the curves as CSV",
        table.to_csv(index=False),
        "growth.csv",
        "text/csv",
        key="tree_growth_csv",
        icon=":material/download:",
        on_click="ignore",
    )
