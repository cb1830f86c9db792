"""Tree: which token tree yields the most tokens per target pass, and how much better is it than a chain?"""

import numpy as np
import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree, expected_tokens
from sequoia_core.design.optimal_trees import node_scores, tree_limit
from sequoia_core.design.plain_trees import chain_limit, chain_tree
from ui import charts, controls, core_cache, page_setup, session
from ui.literal import plain
from ui.tree import comparison
from ui.tree_layout import subtree_sums, visible_nodes

MAX_IMPORT = 4_096  # nodes a browser still draws
COLORS = {"Chance to be accepted": "score", "Rank": "rank", "Depth": "depth"}  # the label is what a link carries
THRESHOLDS = {"everything": 0.0, "f(v) ≥ 0.0001": 1e-4, "f(v) ≥ 0.001": 1e-3, "f(v) ≥ 0.01": 1e-2, "f(v) ≥ 0.1": 0.1}
OWN_VECTOR = "the vector in use"  # one that is not in the list: a smoothed one
FORMATS = {
    "Sequoia JSON": ("native", "tree.json"),
    "Reference growmap (.pt)": ("growmap", "growmap.pt"),
    "UMbreLLa JSON": ("umbrella", "umbrella.json"),
    "Path list (Medusa, EAGLE, TensorRT-LLM)": ("choices", "choices.json"),
    "vLLM speculative_token_tree": ("vllm", "vllm_tree.txt"),
}


def vector_control() -> None:
    """Draw the choice of vector; a link's ?vector=… wins on arrival, other pages' choice afterwards."""
    names = list(session.vectors())
    current = session.acceptance_name()
    options = names if current else [OWN_VECTOR, *names]
    if "tree_shown" in st.session_state or "vector" not in st.query_params:
        st.session_state["vector"] = current or OWN_VECTOR

    def use() -> None:
        if st.session_state["vector"] != OWN_VECTOR:
            session.use_vector(st.session_state["vector"])

    choice = st.selectbox(
        "Acceptance vector",
        options,
        key="vector",
        bind="query-params",
        on_change=use,
        help="Of the acceptance page; the tree is the best one for it. A link carries the name of a shipped vector.",
    )
    if choice not in (current, OWN_VECTOR):  # by a link
        session.use_vector(choice)


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
    n, d = controls.shape_sliders(
        left, middle, keys=("n", "depth"), default=default, size_help="the root included: n − 1 are drafted."
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
    from sequoia_core.design.tree_files import tree_from_bytes

    tree = tree_from_bytes(data, name)
    if tree.size > MAX_IMPORT:
        raise ValueError(f"{name}: found {tree.size:,} nodes, expected at most {MAX_IMPORT:,} to draw and decode with")
    return tree


def bring_tree() -> tuple[TokenTree, str] | None:
    """Read a tree of another tool and set it beside the best one of the same size and depth -> tree and file name."""
    upload = controls.file_upload(
        "Tree file",
        ("json", "pt", "txt"),
        read_tree,
        key="tree_file",
        help="Sequoia JSON, a reference growmap (.pt), UMbreLLa JSON, a list of paths (Medusa, EAGLE), or a vLLM tree.",
    )
    if upload is None:
        st.caption("Bring a tree from another tool to see what it yields with this acceptance vector.")
        return None
    if upload.error:
        st.error(f"{upload.error}. The previous tree stays in use.", icon=":material/error:")
        return None
    theirs, vector = upload.value, session.acceptance()
    mine, best = expected_tokens(theirs, vector), core_cache.best_value(vector, theirs)
    controls.card(st.container(), "Imported tree", f"{mine:.2f}", f"tokens/step, n = {theirs.size}, d = {theirs.depth}")
    if best is None:
        controls.card(st.container(), "Best of that size and depth", "none", "too large to find")
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
    return theirs, upload.name


def choose_node() -> None:
    """Show the node that was clicked in the picture."""
    points = st.session_state["tree_picture"].selection.points
    if points and "customdata" in points[0]:
        st.session_state["tree_node"] = int(points[0]["customdata"][-1])


def collapsed_nodes(tree: TokenTree) -> set[int]:
    """Return the nodes folded up by hand, in this very tree; another tree starts unfolded."""
    held, nodes = st.session_state.get("tree_folds", (None, set()))
    return nodes if held == tree else set()


def picture(tree: TokenTree, vector: AcceptanceVector) -> None:
    """Draw the tree, with what is hidden folded up, and the arithmetic of one node."""
    scores, folded = node_scores(tree, vector), collapsed_nodes(tree)
    left, middle, right = st.columns([3, 2, 1], vertical_alignment="bottom")
    color_by = left.segmented_control(
        "Colour by", list(COLORS), default="Chance to be accepted", required=True, key="tree_color", bind="query-params"
    )
    hide = middle.selectbox(
        "Show",
        list(THRESHOLDS),
        key="tree_hide",
        bind="query-params",
        help="Less likely nodes are folded into the node above them, drawn as a diamond with their number.",
    )
    if st.session_state.get("tree_node", 0) >= tree.size:
        st.session_state["tree_node"] = 0
    node = right.number_input(
        "Node",
        0,
        tree.size - 1,
        key="tree_node",
        help="Click a node, or give its number, breadth-first from the root 0.",
    )
    visible = visible_nodes(tree, scores, at_least=THRESHOLDS[hide], collapsed=folded)
    st.plotly_chart(
        charts.tree_figure(tree, vector, COLORS[color_by], visible=visible, selected=node),
        width="stretch",
        key="tree_picture",
        on_select=choose_node,
        selection_mode="points",
        alt=f"Token tree of {tree.size} nodes in {tree.depth + 1} levels, {int(visible.sum())} of them drawn",
    )
    details(tree, vector, int(node), scores, folded)


def details(tree: TokenTree, vector: AcceptanceVector, node: int, scores: np.ndarray, folded: set[int]) -> None:
    """Say what one node is and what it is worth; fold or unfold what is below it."""
    rank, children = int(tree.child_ranks[node]), len(tree.children(node))
    below = int(subtree_sums(tree, np.ones(tree.size))[node]) - 1
    worth = float(subtree_sums(tree, scores)[node])
    path = " → ".join(["root", *(str(tree.child_ranks[v]) for v in tree.path_to(node)[1:])][:26])
    chance = vector.probs[rank - 1] if 0 < rank <= len(vector) else float(rank == 0)
    text = "the last committed token" if node == 0 else f"rank {rank} at depth {tree.depths[node]}, p = {chance:.4g}"
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        st.markdown(
            f"**Node {node}** &nbsp; {path} &nbsp;·&nbsp; {text} &nbsp;·&nbsp; f(v) = {scores[node]:.4g} &nbsp;·&nbsp; "
            f"{children} children, {below} nodes below &nbsp;·&nbsp; with them worth {worth:.4g} tokens per step"
        )
        label = "Unfold" if node in folded else "Fold up"
        if st.button(label, key="tree_fold", icon=":material/unfold_less:", disabled=not children):
            st.session_state["tree_folds"] = (tree, folded ^ {node})
            st.rerun()
        if folded and st.button("Unfold all", key="tree_unfold", icon=":material/unfold_more:"):
            st.session_state["tree_folds"] = (tree, set())
            st.rerun()


def sureness(tree: TokenTree, vector: AcceptanceVector) -> str:
    """Say how far the measurement behind the vector settles the expected tokens and the best shape."""
    interval = core_cache.tokens_interval(vector, tree)
    if interval is None:
        return "The vector says nothing about its sample, so there is no interval."
    told = f"Expected tokens: {interval[0]:.2f} to {interval[1]:.2f} (95%, from the sample behind the vector)."
    hardware = session.profile()
    spread = core_cache.shape_spread(vector, hardware) if hardware is not None else None
    if spread is None:
        return told
    sizes, depths = spread.sizes, spread.depths
    return told + (
        f" Best shape for {session.profiled_machine()}: n = {spread.chosen.size}, d = {spread.chosen.depth}; measured "
        f"again it might be n = {sizes[0]} to {sizes[1]}, d = {depths[0]} to {depths[1]}, and this one would lose "
        f"at most {spread.worst_loss:.2f}× against it."
    )


def take_tree(tree: TokenTree, vector: AcceptanceVector) -> None:
    """Offer the tree in the formats of other tools, or say why one of them cannot hold it."""
    from sequoia_core.design.tree_files import VERSION_NOTES, tree_to_bytes

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
        st.warning(plain(str(error)), icon=":material/warning:")
        return
    if kind in VERSION_NOTES:
        st.caption(f":material/info: {VERSION_NOTES[kind]}")
    st.download_button(
        f"Download {name}", data, name, key="tree_download", icon=":material/download:", on_click="ignore"
    )


def nearest(tree: TokenTree) -> None:
    """Show what to type into tools that take numbers and no tree."""
    from sequoia_core.design.tree_files import nearest_parameters

    st.caption("Tools without a tree file take numbers; these come nearest, and are approximate.")
    settings = nearest_parameters(tree)
    tools = {name: values for name, values in settings.items() if isinstance(values, dict)}
    if not tools:
        st.caption(settings["note"])
        return
    lines = [f"{name}: " + ", ".join(f"{key} = {value}" for key, value in tools[name].items()) for name in tools]
    st.code("\n".join(lines), language=None, wrap_lines=True)


page_setup.setup_page("Tree")
st.title("Tree")
st.caption(
    "Which guesses are worth a place in one target pass? The sliders give the provably best tree of a size and depth."
)

vector_control()
vector = session.acceptance()
n, d = shape_controls()
table = core_cache.tokens_table(vector, core_cache.TABLE_SIZE, core_cache.MAX_DEPTH)
adopt(n, d, table)
if np.isnan(table[n, d]):
    st.warning(f"{core_cache.TOO_LONG} The last tree stays in use.", icon=":material/warning:")
elif not np.isfinite(table[n, d]):
    st.warning(
        f"No tree has {n} nodes within depth {d} when a node has at most {len(vector)} children. Raise the depth or "
        "lower the size; the last tree stays in use.",
        icon=":material/warning:",
    )
tree = session.tree()
st.markdown(
    f":material/account_tree: **In use:** {plain(session.tree_source())}, n = {tree.size}, d = {tree.depth} "
    f"&nbsp;·&nbsp; acceptance {plain(session.acceptance_source())}"
)
if session.tree_is_own():
    st.button("Back to the best tree", icon=":material/undo:", key="tree_back", on_click=back_to_best)

tokens, chain = expected_tokens(tree, vector), expected_tokens(chain_tree(tree.depth), vector)
widths = [len(level) for level in tree.levels]
next_value, predicted = core_cache.next_node_value(vector, tree.size, max(tree.depth, 1)), session.predicted(tree)
unknown = session.no_prediction(tree) or ""
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
    f"{predicted - 1:+.2f}× vs autoregressive" if predicted is not None else controls.short_reason(unknown),
    signed=predicted is not None,
    help="Expected tokens ÷ (t(n) + d·c), of the pair in use on this machine."
    + ("" if predicted is not None else f" Not known: {plain(unknown)}."),
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

st.caption(f":material/straighten: {sureness(tree, vector)}")

picture(tree, vector)
gain = f"{tokens - chain:.2f} more than" if tokens - chain > 1e-9 else "as many as"
st.markdown(
    f"Nodes go where a token is likely to be accepted: {tree.size - 1} guesses in {tree.depth} draft passes turn one "
    f"target pass into {tokens:.2f} tokens, {gain} a chain of that depth."
)

st.subheader("Growth with size")
ceiling = chain_limit(vector)
curves = core_cache.growth_curves(vector, d)
st.plotly_chart(
    charts.growth_figure(
        curves,
        here=(tree.size, tokens),
        limits={"no chain passes": ceiling, "no tree of these ranks passes": tree_limit(vector)},
        band=core_cache.growth_band(vector, d),
    ),
    width="stretch",
    key="tree_growth",
    alt="Expected tokens per step against tree size: the best tree keeps growing where chains flatten",
)
limit = (
    "A chain has no limit here" if np.isinf(ceiling) else f"No chain passes {ceiling:.2f} tokens per step, however long"
)
st.markdown(
    f"{limit}, and any number of independent chains adds at most one token to that; the best tree of depth at most {d} "
    "gains with every node, ever more slowly."
)
st.download_button(
    "Download the curves as CSV",
    "curve,size,expected_tokens\n"
    + "\n".join(
        f'"{name}",{n},{value!r}'
        for name, (sizes, values) in curves.items()
        for n, value in zip(sizes.tolist(), values.tolist(), strict=True)
    ),
    "growth.csv",
    "text/csv",
    key="tree_growth_csv",
    icon=":material/download:",
    on_click="ignore",
)

take_away, bring = st.columns(2)
with take_away.container(border=True, height="stretch"):
    st.subheader("Export")
    take_tree(tree, vector)
    nearest(tree)
with bring.container(border=True, height="stretch"):
    st.subheader("Import")
    imported = bring_tree()

st.subheader("Side by side")
comparison.section(tree, vector, imported)
