"""Recent results on the start page, and the list of everything that is kept."""

import streamlit as st

from sequoia_core.files.safe_files import data_folder
from ui import controls
from ui.kept import store
from ui.markdown import escaped, quoted, visible
from ui.phrases import clock_time, count, size
from ui.plan import kept_plan

KIND_WORDS = {
    "runs": "run",
    "vectors": "acceptance",
    "profiles": "machine",
    "plans": "plan",
    "variants": "edited vector",
}
LIMITS = {0: "Nothing", 10: "The last 10 of each kind", store.DEFAULT_LIMIT: "The last 50 of each kind"}
RECENT = 4  # runs, and plans, on the start page


def draw_recent() -> None:
    """Draw links to the last runs and plans, and the list of everything that is kept."""
    kept = store.entries()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown("**Recent**", width="content")
        words = count(len(kept), "result") if kept else "nothing"
        with st.popover(f"Kept on this machine: {words}", icon=":material/inventory_2:", type="tertiary"):
            _draw_kept(kept)
    runs, plans = st.columns(2)
    with runs:
        for entry in [entry for entry in kept if entry.kind == "runs"][:RECENT]:
            label = f"{escaped(quoted(entry.source))} · {escaped(entry.name)}, {clock_time(entry.time)}"
            controls.page_link(st.container(), "decode", label, ":material/play_circle:", run=entry.id)
    with plans:
        named = {(entry.name, entry.source): entry for entry in reversed(kept) if entry.kind == "plans"}
        for entry in [*reversed(named.values())][:RECENT]:
            st.button(
                f"{escaped(entry.name)} → {escaped(entry.source)}",
                icon=":material/account_tree:",
                key=f"recent_{entry.id}",
                type="tertiary",
                on_click=_use_plan,
                args=(entry.id,),
            )


def _use_plan(id: str) -> None:
    try:
        kept_plan.load_plan(id)
    except ValueError as error:
        st.toast(escaped(str(error)), icon=":material/error:")


def _draw_kept(kept: list[store.Result]) -> None:
    """Draw how many results are kept, their list, and buttons that delete them."""
    st.selectbox(
        "Keep",
        list(LIMITS),
        index=list(LIMITS).index(store.limit()) if store.limit() in LIMITS else None,
        key="kept_limit",
        format_func=LIMITS.__getitem__,
        on_change=lambda: store.set_limit(st.session_state["kept_limit"]),
        help="Runs, acceptance vectors, profiles and plans are files on this machine, and nothing is sent anywhere. "
        "With “Nothing”, results are lost when their tab is closed; files that exist stay until you delete them.",
    )
    st.caption(f"{size(sum(entry.size for entry in kept))} in `{data_folder()}`")
    if not kept:
        return
    rows = [
        {
            "kind": KIND_WORDS[entry.kind],
            "name": visible(entry.name or entry.source),
            "when": clock_time(entry.time),
            "size": size(entry.size),
        }
        for entry in kept
    ]
    picked = st.dataframe(
        rows, hide_index=True, height=260, key=f"kept_{len(rows)}", on_select="rerun", selection_mode="multi-row"
    )
    chosen = [kept[row] for row in picked.selection.rows if row < len(kept)]
    st.button(
        f"Delete {count(len(chosen or kept), 'result')}",
        icon=":material/delete:",
        key="kept_delete",
        on_click=_delete,
        args=(chosen or kept,),
    )


def _delete(chosen: list[store.Result]) -> None:
    for entry in chosen:
        store.delete(entry.kind, entry.id)
