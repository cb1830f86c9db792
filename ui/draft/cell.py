"""One cell of a sweep: its figures, vector, tree and prompts.

Requires the optional package `sweeps`.
"""

import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_extras.sweeps.compare import Cell, Setting, SweepDrafter
from sequoia_extras.sweeps.recommendations import Speed
from ui import controls, phrases
from ui.cards import Card, cards, number
from ui.markdown import escaped, safe_name, visible
from ui.phrases import count, interval, shape
from ui.session import session, tree_in_use


def draw_cell(cell: Cell | None, speed: Speed | str | None, drafter: SweepDrafter, setting: Setting) -> None:
    """Draw all sections for one cell."""
    if cell is None or speed is None:
        st.info(f"{escaped(drafter.name)} was not measured at {escaped(str(setting))}.", icon=":material/block:")
        return
    _figures(cell, speed)
    if cell.vector is None:
        st.caption("Lookup trees are built from the text being decoded, so there is no vector to plan a tree with.")
    else:
        _vector_buttons(cell.vector, cell, speed, f"{safe_name(drafter.name)}, {safe_name(str(setting))}")
    _prompts(cell)


def _figures(cell: Cell, speed: Speed | str) -> None:
    cards(
        _speed_card(speed),
        Card(
            "Tokens per step",
            f"{cell.tokens_per_step.value:.2f}",
            interval(*cell.tokens_per_step[1:], none=phrases.ONE_PROMPT),
            help=f"Over {count(len(cell.prompts), 'prompt')}"
            + (f", with the best tree of n = {cell.tree.size}." if cell.tree else "."),
        ),
        Card(
            "First guess right",
            number(cell.first_guess, "{:.1%}"),
            "no vector" if cell.vector is None else f"p₁ of {count(len(cell.vector), 'rank')}",
            help="p₁: how often the target accepts the draft's most likely token.",
        ),
    )


def _speed_card(speed: Speed | str) -> Card:
    if isinstance(speed, str):
        return Card("Predicted speedup", "–", "no matching times", help=f"Not predicted: {escaped(speed)}.")
    tree = speed.tree
    planned = f" With the tree planned for it: {shape(tree.size, tree.depth)}." if tree else ""
    if speed.sizes is not None:
        planned = f" With trees of at most {speed.sizes[0]} nodes, the fastest of {speed.sizes[1]} measured sizes."
    found = speed.speedup
    return Card(
        "Predicted speedup",
        f"{found.value:.2f}×",
        interval(*found[1:], none=phrases.ONE_PROMPT),
        help=f"Compared with the target alone.{planned}",
    )


def _vector_buttons(vector: AcceptanceVector, cell: Cell, speed: Speed | str, name: str) -> None:
    """Draw the buttons that make the cell's vector and tree the current ones and download the vector."""
    planned = None if isinstance(speed, str) else speed.tree
    tree = cell.tree if planned is None or planned.size < 2 else planned
    assert tree is not None
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(
            "Use this vector",
            icon=":material/check:",
            key="compare_use",
            help="Trees are then planned with it, and speeds predicted from it, on every page.",
        ):
            session.set_acceptance(vector, f"from a sweep: {name}, {count(len(cell.prompts), 'prompt')}", name)
            tree_in_use.set_size_and_depth(tree.size, tree.depth)
            st.toast("The cell's vector is now the current one.", icon=":material/check_circle:")
        if session.acceptance() == vector:
            controls.page_link(st, "tree", f"Open its tree: {shape(tree.size, tree.depth)}", ":material/account_tree:")
        controls.download_button(
            "Download the vector",
            vector.to_bytes,
            "acceptance.json",
            key="compare_vector",
        )


def _prompts(cell: Cell) -> None:
    """Draw a table of the prompts, in ascending order of tokens per step."""
    table = cell.prompts.reset_index()[["domain", "prompt", "tokens", "steps"]].rename(columns={"domain": "text"})
    table["tokens per step"] = table["tokens"] / table["steps"]
    table = table.sort_values("tokens per step", ignore_index=True)
    st.dataframe(
        table.assign(prompt=table["prompt"].map(visible)),
        hide_index=True,
        key="compare_prompts",
        column_config={
            "prompt": st.column_config.TextColumn("prompt (beginning)", width="large"),
            "tokens per step": st.column_config.NumberColumn(format="%.2f"),
        },
    )
