"""How expected tokens grow with the size of the tree, beside plain shapes and what they cannot pass."""

import math

import pandas as pd
import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.design.growth import theorem_bound
from sequoia_core.design.optimal_trees import expected_tokens, tree_limit
from sequoia_core.design.plain_trees import chain_limit, chains_limit, k_ary_limit
from ui import charts, controls
from ui.session import core_cache
from ui.tree import measured_growth


def section(tree: TokenTree, vector: AcceptanceVector, depth: int) -> None:
    """Draw the curves of the best tree and of plain shapes of that depth, the tree in use and what was measured."""
    reach, tokens = core_cache.reach(tree.size), core_cache.tokens_per_step(vector, tree).value
    ceiling, several = chain_limit(vector), chains_limit(vector)
    curves = core_cache.growth_curves(vector, depth, reach)
    bound = theorem_bound(vector, max_size=reach, depth=depth)
    study = measured_growth.study_of(vector)
    points = [] if study is None else study["points"]
    st.plotly_chart(
        charts.growth_figure(
            curves,
            here=(tree.size, tokens),
            limits={
                "limit of one chain:": ceiling,
                "limit of independent chains:": several,
                "limit of binary trees:": k_ary_limit(vector, 2),
                "limit of all trees:": tree_limit(vector),
            },
            band=core_cache.growth_band(vector, depth),
            bound=bound,
            points=points,
        ),
        width="stretch",
        key="tree_growth",
        alt="Tokens per step against tree size, expected and measured: the best tree grows on where chains flatten",
    )
    limit = f"By this vector no chain passes {ceiling:.2f} tokens per step, however long"
    reached = max((point["tokens_per_step"] for point in points if point["kind"] == "chains"), default=0.0)
    st.markdown(
        f"{'A chain has no limit here' if math.isinf(ceiling) else limit}, and any number of independent chains adds "
        f"at most one token to that; the best tree of depth at most {depth} gains with every node, ever more slowly."
    )
    if reached > several:
        st.caption(
            f":material/info: As decoded, chains reach {reached:.2f}, above the vector's {several:.2f}: it takes "
            "acceptance at neighbouring positions to be independent, which it is not, and the prompts are a sample."
        )
    if abs(expected_tokens(tree, vector) - tokens) > 0.005:
        st.caption(
            f":material/info: Curves take positions to be independent, by which this tree yields "
            f"{expected_tokens(tree, vector):.2f}; along the texts behind the vector it yields {tokens:.2f}."
        )
    if bound is not None:
        st.caption(
            f":material/functions: The theorem's lower bound is what complete trees of k children, at most {depth} "
            f"deep, yield where the first k are all rejected with a chance of k⁻ᵇ. Here b = {bound[0]:.2f}, the "
            "largest that holds for every k measured. With no limit on depth it would grow as b · log n ÷ log log n, "
            f"without end if that law held beyond the {len(vector)} ranks measured."
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
    controls.download(
        "Download the curves as CSV",
        table.to_csv(index=False),
        "growth.csv",
        key="tree_growth_csv",
    )
