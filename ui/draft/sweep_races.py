"""What a sweep raced: measured speeds beside the predicted one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

if TYPE_CHECKING:
    import pandas as pd


def draw(races: pd.DataFrame) -> None:
    """Draw a table of races; nothing where a sweep raced none."""
    if races.empty:
        return
    from sequoia_core.sweeps.compare import Setting

    st.subheader("Raced by the clock")
    way = ["temperature", "top_p", "domain"]
    beside = ["device", "prompts"]
    methods = [name for name in races.columns if name not in ("pair", *way, *beside)]
    ways = [str(Setting(*each)) for each in races[way].itertuples(index=False)]
    st.dataframe(
        races[["pair", *methods, *beside]].assign(at=ways),
        hide_index=True,
        width="stretch",
        key="compare_races",
        column_order=["pair", "at", *methods, *beside],
        column_config={name: st.column_config.NumberColumn(name.replace("_", " "), format="%.2f×") for name in methods},
    )
    st.caption(
        "Tokens per second of each way of decoding over those of the target alone, reading prompts counted. "
        "*predicted* is what *sequoia*, the tree planned from the acceptance measured on the race's other prompts, was "
        "expected to reach."
    )
