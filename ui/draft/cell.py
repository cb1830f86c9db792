"""One cell: its figures, its vector and tree to use, its prompts, and files of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from ui import controls, phrases, record_files
from ui.cards import Card, cards, number
from ui.markdown import escaped, safe_name, visible
from ui.phrases import count, interval, shape
from ui.session import session, tree_in_use

if TYPE_CHECKING:
    import pandas as pd

    from sequoia_core import AcceptanceVector
    from sequoia_core.sweeps.compare import Cell, Drafter, Setting
    from sequoia_core.sweeps.which_pays import Speed


def draw(cell: Cell | None, speed: Speed | str | None, drafter: Drafter, setting: Setting) -> None:
    """Draw everything about one cell."""
    if cell is None or speed is None:
        st.info(f"{escaped(drafter.name)} was not measured at {escaped(str(setting))}.", icon=":material/block:")
        return
    _figures(cell, speed)
    if cell.vector is None:
        st.caption("Lookup trees come from the text under way, so there is no vector to plan a tree from.")
    else:
        _use(cell.vector, cell, speed, drafter, setting)
    _prompts(cell, drafter, setting)


def _figures(cell: Cell, speed: Speed | str) -> None:
    cards(
        _speed_card(speed),
        Card(
            "Tokens per step",
            f"{cell.tokens_per_step.value:.2f}",
            interval(*cell.tokens_per_step[1:], none=phrases.ONE_PROMPT),
            help=f"Over {count(len(cell.prompts), 'prompt')}"
            + (f", with the best tree of n = {cell.tree.size}." if cell.tree else ", as decoded."),
        ),
        Card(
            "First guess right",
            number(cell.first_guess, "{:.1%}"),
            "no vector" if cell.vector is None else f"p₁ of {count(len(cell.vector), 'rank')}",
            help="p₁: how often the target takes the draft's most wanted token.",
        ),
        _regret_card(cell),
    )


def _speed_card(speed: Speed | str) -> Card:
    if isinstance(speed, str):
        return Card("Predicted speedup", "–", "no times that fit", help=f"Not predicted: {escaped(speed)}.")
    tree = speed.tree
    planned = f" With the tree planned for it: {shape(tree.size, tree.depth)}." if tree else ""
    if speed.sizes is not None:
        planned = f" With trees of at most {speed.sizes[0]} nodes, the fastest of {speed.sizes[1]} sizes decoded."
    found = speed.speedup
    return Card(
        "Predicted speedup",
        f"{found.value:.2f}×",
        interval(*found[1:], none=phrases.ONE_PROMPT),
        help=f"Over the target alone.{planned}",
    )


def _regret_card(cell: Cell) -> Card:
    help = "Tokens per step lost by one tree for all texts, or all ways of sampling, instead of this cell's own."
    regrets = {"one tree for all texts": cell.texts_regret, "for all temperatures": cell.temperatures_regret}
    known = [(words, regret) for words, regret in regrets.items() if regret is not None]
    if not known:
        return Card("Regret", "–", "no tree is shared", help=help)
    more = "".join(f" {words}: {regret:.1%}." for words, regret in known[1:])
    return Card("Regret", f"{known[0][1]:.1%}", known[0][0], help=f"{help}{more}")


def _use(vector: AcceptanceVector, cell: Cell, speed: Speed | str, drafter: Drafter, setting: Setting) -> None:
    """Offer the cell's vector and tree to the other pages."""
    planned = None if isinstance(speed, str) else speed.tree
    tree = cell.tree if planned is None or planned.size < 2 else planned
    assert tree is not None
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(
            "Use this vector",
            icon=":material/check:",
            key="compare_use",
            help="On every page: the tree page plans it, decoding expects it.",
        ):
            name = f"{safe_name(drafter.name)}, {safe_name(str(setting))}"
            session.set_acceptance(vector, f"of a sweep: {name}, {count(len(cell.prompts), 'prompt')}", name)
            tree_in_use.set_size_and_depth(tree.size, tree.depth)
            st.toast("The vector is in use.", icon=":material/check_circle:")
        if session.acceptance() == vector:
            controls.page_link(st, "tree", f"Open its tree: {shape(tree.size, tree.depth)}", ":material/account_tree:")
        controls.download(
            "Download the vector",
            vector.to_bytes,
            "acceptance.json",
            key="compare_vector",
        )


def _prompts(cell: Cell, drafter: Drafter, setting: Setting) -> None:
    """Draw the prompts, those with the fewest tokens per step first."""
    table = prompt_table(cell)
    shown = table.assign(prompt=[visible(text) for text in table["prompt"]])
    st.dataframe(
        shown,
        hide_index=True,
        width="stretch",
        key="compare_prompts",
        column_config={
            "prompt": st.column_config.TextColumn("prompt (its beginning)", width="large"),
            "tokens per step": st.column_config.NumberColumn(format="%.2f"),
        },
    )
    controls.download(
        "Download the prompts as CSV",
        record_files.to_csv(table.to_dict("records"), {"drafter": drafter.name} | setting._asdict()),
        "prompts.csv",
        key="compare_csv",
    )


def prompt_table(cell: Cell) -> pd.DataFrame:
    """Return a row for each prompt."""
    table = cell.prompts.reset_index()[["domain", "prompt", "tokens", "steps"]].rename(columns={"domain": "text"})
    table["tokens per step"] = table["tokens"] / table["steps"]
    return table.sort_values("tokens per step", ignore_index=True)
