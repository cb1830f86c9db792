"""The server's result as a row of a table with other servers' results, and to copy."""

import json

import streamlit as st

from sequoia_core.files.safe_files import json_bytes
from sequoia_extras.servers.chain_acceptance import ChainAcceptance
from sequoia_extras.servers.counts import ServerCounts
from sequoia_extras.servers.rows import COLUMNS, GIVEN_COLUMNS, Timed, acceptance_text, markdown_table, result_row
from ui import controls
from ui.session import shipped

NUMBERS = {"tokens_per_step": "tokens per step", "speedup": "speedup"}  # column -> label


def draw_comparison(counts: ServerCounts, chains: ChainAcceptance | None = None, timed: Timed = ()) -> None:
    """Draw the table, the inputs for cells that the counts do not tell, and the row to copy."""
    st.subheader("Compare with other servers")
    row = result_row(counts, timed, {}, chains)
    table = st.container()
    with st.expander("Complete and copy your row", icon=":material/table_rows:", key="server_row"):
        unknown = [name for name in GIVEN_COLUMNS if row[name] is None]
        for column, name in zip(st.columns(max(len(unknown), 1)), unknown, strict=False):
            row[name] = column.text_input(name.capitalize(), key=f"server_cell_{name}", max_chars=80).strip() or None
        st.code("\n".join(markdown_table(row)), language="markdown", wrap_lines=True)
        controls.download_button("Save as JSON", json_bytes(row), "server-row.json", key="server_row_json")
    shared = shipped.ASSETS / "servers" / "rows.jsonl"
    rows = [json.loads(line) for line in shared.read_text().splitlines()] if shared.is_file() else []
    table.dataframe(
        [
            {"": "this server" if each is row else ""} | each | {"acceptance": acceptance_text(each)}
            for each in [row, *rows]
        ],
        key="server_rows",
        hide_index=True,
        placeholder="",
        column_order=dict.fromkeys(["", "model", "k", *NUMBERS, *COLUMNS]),
        column_config={
            "": st.column_config.TextColumn(width=90),
            "k": "K",
            **{name: st.column_config.NumberColumn(label, format="%.2f") for name, label in NUMBERS.items()},
        },
    )
    table.caption(
        "Tokens per step are as the server counts them, including those that the end of an answer cuts off. Acceptance "
        "depends on the texts; speeds of different machines, loads and texts are not comparable."
    )
