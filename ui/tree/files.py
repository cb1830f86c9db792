"""Trees as files of other tools: out, as numbers for tools without a tree file, and in."""

import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.design.optimal_trees import best_value_within_reach, expected_tokens, ranks_not_measured
from ui import controls, uploads
from ui.cards import Card, draw_card
from ui.markdown import escaped
from ui.phrases import shape
from ui.session import core_cache, session, tree_in_use

FORMATS = {
    "Sequoia JSON": ("native", "tree.json"),
    "Reference growmap (.pt)": ("growmap", "growmap.pt"),
    "UMbreLLa JSON": ("umbrella", "umbrella.json"),
    "Path list (Medusa, EAGLE-1)": ("choices", "choices.json"),
    "vLLM speculative_token_tree": ("vllm", "vllm_tree.txt"),
    "GraphML (yEd, Gephi, Cytoscape)": ("graphml", "tree.graphml"),
    "DOT (Graphviz)": ("dot", "tree.dot"),
    "Node-link JSON (networkx, D3)": ("node-link", "tree-node-link.json"),
}


def draw_export(tree: TokenTree, vector: AcceptanceVector) -> None:
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
        st.warning(escaped(str(error)), icon=":material/warning:")
        return
    if kind in VERSION_NOTES:
        st.caption(f":material/info: {VERSION_NOTES[kind]}")
    controls.download(f"Download {name}", data, name, key="tree_download")


def draw_numbers(tree: TokenTree) -> None:
    """Show what to type into tools that take numbers and no tree."""
    from sequoia_core.design.tree_files import nearest_parameters

    settings = nearest_parameters(tree)
    st.caption(settings["note"])
    tools = {name: values for name, values in settings.items() if isinstance(values, dict)}
    if not tools:
        return
    lines = [f"{name}: " + ", ".join(f"{key} = {value}" for key, value in tools[name].items()) for name in tools]
    st.code("\n".join(lines), language=None, wrap_lines=True)


def draw_import() -> tuple[TokenTree, str] | None:
    """Read a tree of another tool and set it beside the best one of the same size and depth -> tree and file name."""
    upload = uploads.tree_upload(key="tree_file")
    if upload is None:
        st.caption("Bring a tree from another tool to see what it yields with this acceptance vector.")
        return None
    if upload.value is None:
        st.error(f"{upload.error}. The previous tree stays in use.", icon=":material/error:")
        return None
    theirs, vector = upload.value, session.acceptance()
    mine, best = expected_tokens(theirs, vector), best_value_within_reach(theirs, vector)
    if (unknown := ranks_not_measured(theirs, vector)) is not None:
        st.warning(unknown, icon=":material/warning:")
    place, tokens = st.container(), core_cache.tokens_per_step(vector, theirs).value
    draw_card(place, Card("Imported tree", f"{tokens:.2f}", f"tokens/step, {shape(theirs.size, theirs.depth)}"))
    draw_card(place, _best_card(mine, best))
    if st.button(
        "Use the imported tree",
        icon=":material/check:",
        key="tree_use_import",
        disabled=theirs == tree_in_use.current(),
    ):
        tree_in_use.use(theirs, f"your file {upload.name}")
        st.rerun()
    return theirs, upload.name


def _best_card(mine: float, best: float | None) -> Card:
    """Set an imported tree's tokens against the best of its size and depth; None where that is too large to find."""
    label = "Best of that size and depth"
    if best is None:
        return Card(label, "none", "too large to find")
    if best - mine < 1e-9:
        return Card(label, "no more", "the imported tree is optimal")
    return Card(label, f"{best / mine - 1:+.1%}", "by f(v), on the imported")
