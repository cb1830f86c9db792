"""Export and import of trees in the formats of other tools."""

import streamlit as st

from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree
from sequoia_core.trees.optimal import describe_unmeasured_ranks
from ui import controls, uploads
from ui.markdown import escaped
from ui.session import core_cache, session, tree_in_use

TREE_FILE_FORMATS = {
    "Sequoia JSON": ("native", "tree.json"),
    "Reference growmap (.pt)": ("growmap", "growmap.pt"),
    "UMbreLLa JSON": ("umbrella", "umbrella.json"),
    "Path list (Medusa, EAGLE-1)": ("choices", "choices.json"),
    "vLLM speculative_token_tree": ("vllm", "vllm_tree.txt"),
    "GraphML (yEd, Gephi, Cytoscape)": ("graphml", "tree.graphml"),
    "DOT (Graphviz)": ("dot", "tree.dot"),
    "Node-link JSON (networkx, D3)": ("node-link", "tree-node-link.json"),
}


def export_section(tree: TokenTree, vector: AcceptanceVector) -> None:
    """Draw the tree's download button, or the reason why the selected format cannot represent the tree."""
    from sequoia_core.trees.tree_files import VERSION_NOTES, tree_to_bytes

    choice = st.selectbox(
        "Format",
        TREE_FILE_FORMATS,
        key="tree_format",
        help="Path lists use 0-based ranks. vLLM takes a branching factor per level, so most trees are rejected.",
    )
    file_format, name = TREE_FILE_FORMATS[choice]
    try:
        data = tree_to_bytes(tree, file_format, vector)
    except ValueError as error:
        st.warning(escaped(str(error)), icon=":material/warning:")
        return
    if file_format in VERSION_NOTES:
        st.caption(f":material/info: {VERSION_NOTES[file_format]}")
    controls.download_button(f"Download {name}", data, name, key="tree_download")


@core_cache.cached(8, "Growing trees…")
def _engine_settings(vector: AcceptanceVector, hardware: HardwareProfile) -> str:
    from sequoia_extras.dynamic_trees.engine_settings import plan_beams, settings_text

    return settings_text(plan_beams(vector, hardware))


def engines_section(vector: AcceptanceVector) -> None:
    """Show settings for engines that grow trees themselves. Requires the optional package `dynamic_trees`."""
    if (hardware := session.profile()) is not None:
        st.code(_engine_settings(vector, hardware), language=None, wrap_lines=True)


def import_section() -> None:
    """Draw the import of a tree, which becomes a row of the table of methods."""
    upload = uploads.tree_upload(key="tree_file")
    if upload is None:
        st.caption("Import a tree from another tool to see its expected tokens with this acceptance vector.")
        return
    if upload.value is None:
        st.error(f"{upload.error}. The previous tree is kept.", icon=":material/error:")
        return
    if upload.is_new:
        st.rerun()  # draws the row
    tree = upload.value
    if (unknown := describe_unmeasured_ranks(tree, session.acceptance())) is not None:
        st.warning(unknown, icon=":material/warning:")
    st.caption("The table of methods above has it as a row.")
    if st.button(
        "Use the imported tree",
        icon=":material/check:",
        key="tree_use_import",
        disabled=tree == tree_in_use.current_tree(),
    ):
        tree_in_use.use_tree(tree, f"your file {upload.name}")
        st.rerun()
