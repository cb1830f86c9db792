"""How expected tokens grow with the size of the tree, beside plain shapes and what they cannot pass."""

from __future__ import annotations

import math

import pandas as pd
import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree, expected_tokens
from sequoia_core.design.growth import theorem_bound
from sequoia_core.design.optimal_trees import tree_limit
from sequoia_core.design.plain_trees import chain_limit, chains_limit
from ui import charts
from ui.session import core_cache
from ui.tree import measured_growth


def section(tree: TokenTree, vector: AcceptanceVector, depth: int) -> None:
    """Draw the curves of the best tree and of plain shapes of that depth, the tree in use and what was measured."""
    reach = core_cache.reach(tree.size)
    ceiling, curves = chain_limit(vector), core_cache.growth_curves(vector, depth, reach)
    bound = theorem_bound(vector, max_size=reach, depth=core_cache.MAX_DEPTH)
    study = measured_growth.study_of(vector)
    points = [] if study is None else study["points"]
    st.plotly_chart(
        charts.growth_figure(
            curves,
            here=(tree.size, expected_tokens(tree, vector)),
            limits={
                "no chain passes": ceiling,
                "no number of chains passes": chains_limit(vector),
                "no tree of these ranks passes": tree_limit(vector),
            },
            band=core_cache.growth_band(vector, depth),
            bound=bound,
            points=points,
        ),
        width="stretch",
        key="tree_growth",
        alt="Tokens per step against tree size, expected and measured: the best tree grows on where chains flatten",
    )
    limit = f"No chain passes {ceiling:.2f} tokens per step, however long"
    st.markdown(
        f"{'A chain has no limit here' if math.isinf(ceiling) else limit}, and any number of independent chains adds "
        f"at most one token to that; the best tree of depth at most {depth} gains with every node, ever more slowly."
    )
    if bound is not None:
        st.caption(
            ":material/functions: The theorem's lower bound is what complete trees of k children yield where the first "
            f"k are all rejected with a chance of k⁻ᵇ. Here b = {bound[0]:.2f}, the largest that holds for every k "
            "measured; the bound grows as b · log n ÷ log log n, without end."
        )
    measured_growth.section(vector, study)
    table = pd.concat(
        [
            *(
                pd.DataFrame({"curve": name, "size": sizes, "expected_tokens": tokens})
                for name, (sizes, tokens) in curves.items()
            ),
            pd.DataFrame(points).rename(columns={"kind": "curve", "predicted": "expected_tokens"}),
        ]
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
