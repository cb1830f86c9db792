"""Tree: which token tree yields the most tokens per target pass, and how much better is it than a chain?"""

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sequoia_core import AcceptanceVector, TokenTree
from sequoia_core.design.growth import next_node_value
from sequoia_core.design.optimal_trees import expected_tokens, ranks_not_measured
from sequoia_core.design.plain_trees import GUESSED_CHAIN, chain_tree
from ui import controls, menu, page_setup
from ui.cards import Card, cards, draw_card
from ui.markdown import escaped
from ui.measuring import state_chip
from ui.phrases import between, count, interval, shape
from ui.session import core_cache, predictions, session, tree_in_use, tree_kinds
from ui.tree import comparison, dynamic, files, growth, picture, regret

OWN_VECTOR = "the vector in use"  # one that is not in the list: a smoothed one


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
        help="Of the draft page; the tree is the best one for it. A link carries the name of a shipped vector.",
    )
    if choice not in (current, OWN_VECTOR):  # by a link
        session.use_vector(choice)


def best_for_hardware() -> None:
    """Let the shape follow the acceptance vector and the profile again; say so where that changes nothing."""
    before = tree_in_use.current()
    tree_in_use.set_size_and_depth(None)
    if before == tree_in_use.current():
        st.toast("Nothing to change: this tree is the best already.", icon=":material/check_circle:")


def size_and_depth_controls(left: DeltaGenerator, middle: DeltaGenerator, right: DeltaGenerator) -> tuple[int, int]:
    """Draw the sliders, kept in step with the shape other pages choose; a link's ?n=…&depth=… wins when it is valid."""
    plan = tree_in_use.best()
    default = tree_in_use.FALLBACK_SIZE_AND_DEPTH if plan is None else (plan.size, max(plan.depth, 1))
    linked = {"n", "depth"} & {*st.query_params, *st.session_state}
    if tree_in_use.pop_size_and_depth_to_show() or not linked:
        st.session_state["n"], st.session_state["depth"] = tree_in_use.shape()
    # the key is the name in the link, hence no page prefix
    n, d = controls.size_and_depth_sliders(
        left, middle, keys=("n", "depth"), default=default, size_help="the root included: n − 1 are drafted."
    )
    right.button(
        "Best for the profile",
        icon=":material/auto_fix_high:",
        key="tree_best",
        on_click=best_for_hardware,
        disabled=session.profile() is None,
        width="stretch",
        help="The shape with the highest predicted speedup for the vector and the hardware profile in use.",
    )
    return n, d


def use_size_and_depth(n: int, d: int, table: np.ndarray) -> None:
    """Use the shape of the sliders once they have moved to one that exists; an imported tree stays until then."""
    moved = (n, d) != st.session_state.get("tree_shown", tree_in_use.shape())
    st.session_state["tree_shown"] = (n, d)
    if moved and (n, d) != tree_in_use.shape() and np.isfinite(table[n, d]):
        tree_in_use.set_size_and_depth(n, d, show=False)


def speedup_card(tree: TokenTree) -> Card:
    """Say what speedup is predicted of the tree for what is planned for, or why none is."""
    found, state, hardware = predictions.supposed(tree), predictions.state(), session.profile()
    help = "Tokens per step × seconds of a plain token ÷ seconds of a step."
    if (unsaid := predictions.if_of_pair(tree)) is not None:
        return Card("Predicted speedup", f"{unsaid.speedup.value:.2f}×", f"if on the {session.pair_name()}", help=help)
    if found is None:
        ends = 0 if hardware is None or tree.size <= hardware.max_size else hardware.max_size
        return Card("Predicted speedup", "–", f"times end at n = {ends:,}" if ends else state.name, help=help)
    sure = found.speedup
    against = interval(sure.low, sure.high, unit="×", none=f"{sure.value - 1:+.2f}× vs autoregressive")
    return Card("Predicted speedup", f"{sure.value:.2f}×", against, help=help)


def sureness(tree: TokenTree, vector: AcceptanceVector) -> str:
    """Say how far the measurement behind the vector settles the expected tokens and the best shape."""
    tokens, hardware = core_cache.tokens_per_step(vector, tree), session.profile()
    if vector.of_one_prompt:
        return "The vector was measured on one prompt, so there is no interval over texts."
    if tokens.interval is None:
        return "The vector says nothing about its sample, so there is no interval."
    sentence = f"Expected tokens: {between(*tokens.interval)} (95%, from the sample behind the vector)."
    if abs((independent := expected_tokens(tree, vector)) - tokens.value) > 0.005:
        sentence += f" If positions were independent: {independent:.2f}."
    spread = None if hardware is None else core_cache.size_and_depth_spread(vector, hardware)
    if spread is None:
        return sentence
    best = spread.chosen
    again = f"n = {between(*spread.sizes, '{}')}, d = {between(*spread.depths, '{}')}"
    changes = "hardly change it" if spread.worst_loss < 0.05 else f"gain at most {spread.worst_loss:.2f}×"
    return (
        f"{sentence} Best shape for {escaped(predictions.profiled_machine())}: {shape(best.size, best.depth)}. "
        f"Measuring again would {changes} ({again})."
    )


page_setup.setup_page("Tree")
left, resting = st.columns([1, 1], vertical_alignment="bottom")
left.title("Tree")
st.caption("Which guesses are worth a place in one pass? The sliders give the provably best tree of a size and depth.")

first, *others = st.columns([3, 5, 3, 4], vertical_alignment="bottom")
with first:
    vector_control()
vector = session.acceptance()
n, d = size_and_depth_controls(*others)
table = core_cache.tokens_table(vector, core_cache.reach(n))
use_size_and_depth(n, d, table)
if np.isnan(table[n, d]):
    st.warning(f"{controls.TOO_LONG} The last tree stays in use.", icon=":material/warning:")
elif not np.isfinite(table[n, d]):
    st.warning(
        f"No tree has {count(n, 'node')} within depth {d} when a node has at most "
        f"{count(len(vector), 'child', 'children')}. Raise the depth or lower the size; the last tree stays in use.",
        icon=":material/warning:",
    )
tree = tree_in_use.current()
if (unknown := ranks_not_measured(tree, vector)) is not None:
    st.warning(unknown, icon=":material/warning:")
tokens, chain = (core_cache.tokens_per_step(vector, each).value for each in (tree, chain_tree(tree.depth)))
left, middle, right = st.columns([3, 2, 2])
with left:
    at_least = picture.threshold_control()
draw_card(
    middle,
    Card(
        "Expected tokens per step",
        f"{tokens:.2f}",
        f"{tokens - 1:+.2f} vs 1.00 autoregressive",
        signed=True,
        help="What a step yields along the texts behind the vector, the bonus token counted; speedups are made of it. "
        "Where the vector keeps no texts: F(T), the sum over nodes of the chance to be accepted.",
    ),
)
draw_card(right, speedup_card(tree))
with resting:
    state_chip.draw()
    if tree_in_use.is_guessed():
        words = f"Decode with a chain of {GUESSED_CHAIN}"
        controls.page_link(st.container(), "decode", words, ":material/play_arrow:")
reach = max(tree.depth if tree_in_use.is_own() else tree_in_use.shape()[1], 1)
next_value = next_node_value(table, size=tree.size, depth=reach)
parent = None if next_value is None else picture.next_node(tree, vector, reach)
picture.draw(tree, vector, at_least, None if parent is None or next_value is None else (parent, next_value))
st.markdown(
    f":material/account_tree: **Current:** {escaped(tree_in_use.source())}, {shape(tree.size, tree.depth)} "
    f"&nbsp;·&nbsp; acceptance {escaped(session.acceptance_source())}"
)
if tree_in_use.is_own():
    design = tree_in_use.set_size_and_depth
    st.button(
        "Back to the best tree", icon=":material/undo:", key="tree_back", on_click=design, args=tree_in_use.shape()
    )
st.markdown(
    f"{count(tree.size, 'node')} = last token + {count(tree.size - 1, 'guess', 'guesses')}, checked in one target pass."
)
widths = [len(level) for level in tree.levels]
cards(
    Card(
        "Chain of the same depth",
        f"{chain:.2f}",
        f"the tree yields {tokens / chain - 1:+.0%}" if abs(tokens - chain) > 0.005 else "as much as this tree",
    ),
    Card(
        "Draft passes per step",
        f"{tree.depth}",
        f"the paper's D = {tree.depth + 1} levels",
        help="The depth d, in edges; the deepest level needs no draft pass of its own.",
    ),
    Card(
        "Widest level",
        count(max(widths), "node"),
        f"of {tree.size:,}, level {widths.index(max(widths))} of {tree.depth}",
        help="Nodes of each level, root first: " + ", ".join(map(str, widths)) + ".",
    ),
    Card(
        "The next node adds",
        "–" if next_value is None else f"{next_value:.3f}",
        "no place for it" if next_value is None else f"tokens/step, at n = {tree.size + 1:,}",
        help="G(n + 1, d) − G(n, d): worth it only while the target verifies one more token for less.",
    ),
)
st.caption(f":material/straighten: {sureness(tree, vector)}")

kind = dynamic.kind_control()
if kind != tree_kinds.STATIC:
    dynamic.section(kind)
    dynamic.last_run()


def export() -> None:
    """Draw the tree in use as files, and as numbers for tools without a tree file."""
    left, right = st.columns(2)
    with left:
        files.draw_export(tree, vector)
    with right:
        files.draw_numbers(tree)


def compare() -> None:
    """Draw another tree beside the one in use: a plain shape, another vector's, or one from a file."""
    with st.expander("Import a tree", icon=":material/upload_file:", expanded=True, key="tree_import"):
        imported = files.draw_import()
    comparison.section(tree, vector, imported)


controls.sections(
    {
        "Growth": lambda: growth.section(tree, vector, d),
        "Export": export,
        "Compare": compare,
        "One tree for all?": regret.section,
    },
    key="tree_section",
)
menu.draw_next("Tree")
