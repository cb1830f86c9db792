"""Tree: which token tree yields the most tokens per target pass, and how much better is it than a chain?"""

import numpy as np
import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree, expected_tokens
from sequoia_core.construction import chain_limit, chain_tree
from ui import cached, charts, controls, session

MAX_IMPORT = 4_096  # nodes a browser still draws
COLORS = {"Chance to be accepted": "score", "Rank": "rank", "Depth": "depth"}  # the label is what a link carries
FORMATS = {
    "Sequoia JSON": ("native", "tree.json"),
    "Reference growmap (.pt)": ("growmap", "growmap.pt"),
    "UMbreLLa JSON": ("umbrella", "umbrella.json"),
    "Path list (Medusa, EAGLE, TensorRT-LLM)": ("choices", "choices.json"),
    "vLLM speculative_token_tree": ("vllm", "vllm_tree.txt"),
}


def best_for_hardware() -> None:
    """Let the shape follow the acceptance vector and the profile again."""
    session.set_shape(None)


def shape_controls() -> tuple[int, int]:
    """Draw the sliders, kept in step with the shape other pages choose; a link's ?n=…&depth=… wins when it is valid."""
    plan = session.best()
    default = session.FALLBACK_SHAPE if plan is None else (plan.size, max(plan.depth, 1))
    linked = {"n", "depth"} & {*st.query_params, *st.session_state}
    if session.take_shape_to_show() or not linked:
        st.session_state["n"], st.session_state["depth"] = session.shape()
    left, middle, right = st.columns([3, 3, 2], vertical_alignment="bottom")
    # the key is the name in the link, hence no page prefix
    n = left.slider(
        "Size n",
        1,
        cached.MAX_SIZE,
        default[0],
        key="n",
        bind="query-params",
        help="Tokens in one target pass, the root included: n − 1 are drafted.",
    )
    d = middle.slider(
        "Depth d, at most",
        1,
        cached.MAX_DEPTH,
        default[1],
        key="depth",
        bind="query-params",
        help="Edges on the longest path = draft passes per step. The paper's D counts levels: D = d + 1.",
    )
    right.button(
        "Best for this hardware",
        icon=":material/auto_fix_high:",
        key="tree_best",
        on_click=best_for_hardware,
        disabled=session.profile() is None,
        width="stretch",
        help="The shape with the highest predicted speedup for the vector and the hardware profile in use.",
    )
    return n, d


def adopt(n: int, d: int, table: np.ndarray) -> None:
    """Use the shape the sliders show once they have moved to one that exists; an imported tree stays until then."""
    moved = (n, d) != st.session_state.get("tree_shown", session.shape())
    st.session_state["tree_shown"] = (n, d)
    if moved and (n, d) != session.shape() and np.isfinite(table[n, d]):
        session.set_shape(n, d, show=False)


def back_to_best() -> None:
    """Leave the imported tree for the best one of the shape that the sliders show."""
    session.set_shape(*session.shape())


def read_tree(data: bytes, name: str) -> TokenTree:
    """Read a tree file of any known format that is small enough to be drawn."""
    from sequoia_core.formats import tree_from_bytes

    tree = tree_from_bytes(data, name)
    if tree.size > MAX_IMPORT:
        raise ValueError(f"{name}: found {tree.size:,} nodes, expected at most {MAX_IMPORT:,} to draw and decode with")
    return tree


def bring_tree() -> None:
    """Read a tree of another tool and set it beside the best one of the same size and depth."""
    upload = controls.file_upload(
        "Tree file",
        ("json", "pt", "txt"),
        read_tree,
        key="tree_file",
        help="Sequoia JSON, a reference growmap (.pt), UMbreLLa JSON, a list of paths (Medusa, EAGLE), or a vLLM tree.",
    )
    if upload is None:
        st.caption("Bring a tree from another tool to see what it yields with this acceptance vector.")
        return
    if upload.error:
        st.error(f"{upload.error}. The previous tree stays in use.", icon=":material/error:")
        return
    theirs, vector = upload.value, session.acceptance()
    mine, best = expected_tokens(theirs, vector), cached.best_value(vector, theirs.size, theirs.depth)
    controls.card(st.container(), "Imported tree", f"{mine:.2f}", f"tokens/step, n = {theirs.size}, d = {theirs.depth}")
    if best is None:
        controls.card(st.container(), "Best of that size and depth", "none", "too wide or too large to find")
    elif best - mine < 1e-9:
        controls.card(st.container(), "Best of that size and depth", f"{best:.2f}", "the imported tree is optimal")
    else:
        controls.card(
            st.container(),
            "Best of that size and depth",
            f"{best:.2f}",
            f"{best / mine - 1:+.1%} on the imported",
            signed=True,
        )
    if st.button(
        "Use the imported tree", icon=":material/check:", key="tree_use_import", disabled=theirs == session.tree()
    ):
        session.set_tree(theirs, f"your file {upload.name}")
        st.rerun()


def no_prediction() -> str:
    """Say why no speedup can be predicted for the tree in use."""
    hardware = session.profile()
    return "no hardware profile" if hardware is None else f"the profile ends at n = {hardware.max_size}"


def take_tree(tree: TokenTree, vector: AcceptanceVector) -> None:
    """Offer the tree in the formats of other tools, or say why one of them cannot hold it."""
    from sequoia_core.formats import tree_to_bytes

    choice = st.selectbox(
        "Format",
        FORMATS,
        key="tree_format",
        help="Path lists have 0-based ranks. vLLM takes one branching factor per level, so most trees are refused.",
    )
    kind, name = FORMATS[choice]
    try:
        data = tree_to_bytes(tree, kind, vector)
    except ValueError as error:
        st.warning(str(error), icon=":material/warning:")
        return
    st.download_button(
        f"Download {name}", data, name, key="tree_download", icon=":material/download:", on_click="ignore"
    )


session.setup_page("Tree")
st.title("Tree")
st.caption(
    "Which guesses are worth a place in one target pass? The sliders give the provably best tree of a size and depth."
)

vector = session.acceptance()
n, d = shape_controls()
table = cached.tokens_table(vector, cached.TABLE_SIZE, cached.MAX_DEPTH)
adopt(n, d, table)
if not np.isfinite(table[n, d]):
    st.warning(
        f"No tree has {n} nodes within depth {d} when a node has at most {len(vector)} children. Raise the depth or "
        "lower the size; the last tree stays in use.",
        icon=":material/warning:",
    )
tree = session.tree()
st.markdown(
    f":material/account_tree: **In use:** {session.tree_source()}, n = {tree.size}, d = {tree.depth} &nbsp;·&nbsp; "
    f"acceptance {session.acceptance_source()}"
)
if session.tree_is_own():
    st.button("Back to the best tree", icon=":material/undo:", key="tree_back", on_click=back_to_best)

tokens, chain = expected_tokens(tree, vector), expected_tokens(chain_tree(tree.depth), vector)
widths = [len(level) for level in tree.levels]
next_value, predicted = cached.next_node_value(vector, tree.size, max(tree.depth, 1)), session.predicted(tree)
first, second = st.columns(3), st.columns(3)
controls.card(
    first[0],
    "Expected tokens per step",
    f"{tokens:.2f}",
    f"{tokens - 1:+.2f} vs 1.00 autoregressive",
    signed=True,
    help="F(T): the sum over nodes of the chance to be accepted, the bonus token counted.",
)
controls.card(
    first[1],
    "Chain of the same depth",
    f"{chain:.2f}",
    f"the tree yields {tokens / chain - 1:+.0%}" if tokens - chain > 1e-9 else "as much as this tree",
    help=f"One guess per level, {tree.depth} deep: as many draft passes, fewer tokens to verify.",
)
controls.card(
    first[2],
    "Predicted speedup",
    "unknown" if predicted is None else f"{predicted:.2f}×",
    f"{predicted - 1:+.2f}× vs autoregressive" if predicted is not None else no_prediction(),
    signed=predicted is not None,
    help="Expected tokens ÷ (t(n) + d·c) on the profiled hardware.",
)
controls.card(
    second[0],
    "Draft passes per step",
    f"{tree.depth}",
    f"the paper's D = {tree.depth + 1} levels",
    help="The depth d, in edges; the deepest level needs no draft pass of its own.",
)
controls.card(
    second[1],
    "Widest level",
    f"{max(widths)} of {tree.size} nodes",
    f"level {widths.index(max(widths))} of {tree.depth}",
    help="Nodes of each level, root first: " + ", ".join(map(str, widths)) + ".",
)
controls.card(
    second[2],
    "The next node adds",
    "–" if next_value is None else f"{next_value:.3f}",
    "no place for it" if next_value is None else f"tokens/step, at n = {tree.size + 1}",
    help="G(n + 1, d) − G(n, d): worth it only while the target verifies one more token for less.",
)

color_by = st.segmented_control(
    "Colour by", list(COLORS), default="Chance to be accepted", required=True, key="tree_color", bind="query-params"
)
st.plotly_chart(
    charts.tree_figure(tree, vector, COLORS[color_by]),
    width="stretch",
    key="tree_picture",
    alt=f"Token tree of {tree.size} nodes in {tree.depth + 1} levels, widest level {max(widths)}",
)
gain = f"{tokens - chain:.2f} more than" if tokens - chain > 1e-9 else "as many as"
st.markdown(
    f"Nodes go where a token is likely to be accepted: {tree.size - 1} guesses in {tree.depth} draft passes turn one "
    f"target pass into {tokens:.2f} tokens, {gain} a chain of that depth."
)

st.subheader("Growth with size")
ceiling = chain_limit(vector)
st.plotly_chart(
    charts.growth_figure(cached.growth_curves(vector, d), here=(tree.size, tokens), ceiling=ceiling),
    width="stretch",
    key="tree_growth",
    alt="Expected tokens per step against tree size: the best tree keeps growing where chains flatten",
)
limit = (
    "A chain has no limit here" if np.isinf(ceiling) else f"No chain passes {ceiling:.2f} tokens per step, however long"
)
st.markdown(f"{limit}; the best tree of depth at most {d} gains with every node, ever more slowly.")

take_away, bring = st.columns(2)
with take_away.container(border=True, height="stretch"):
    st.subheader("Export")
    take_tree(tree, vector)
with bring.container(border=True, height="stretch"):
    st.subheader("Import")
    bring_tree()
