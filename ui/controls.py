"""Widgets shared by several pages: sources, sampling, verifiers, shapes, tabs, links and downloads."""

import mimetypes
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.errors import StreamlitPageNotFoundError

from sequoia_core.acceptance import conditions
from sequoia_core.trees.optimal import SEARCHABLE_SIZE
from ui.session import core_cache, session
from ui.verifier_names import VERIFIER_NAMES

SLIDER_SIZES = sorted({round(2 ** (step / 8)) for step in range(8 * core_cache.MAX_TREE_SIZE.bit_length() - 7)})
VERIFIER_CHOICES = {name: VERIFIER_NAMES[name] for name in conditions.MEASURED_VERIFIERS}
SEARCH_LIMIT_NOTE = (
    f"Only trees up to n = {SEARCHABLE_SIZE} were searched, because this vector has many ranks and is not monotone. "
    "To search larger trees, smooth it on the draft page."
)


def source_picker(label: str, options: Sequence[str], *, key: str) -> str:
    """Draw a selector for a source, kept in the URL, and return the selected source; the default is the first."""
    return st.segmented_control(
        label, options, default=options[0], required=True, key=key, bind="query-params", label_visibility="collapsed"
    )


def sampling_controls(
    left: DeltaGenerator, right: DeltaGenerator, *, apart: str = "", default: float = 0.0
) -> tuple[float, float]:
    """Draw the temperature and top-p controls, kept in the URL, and return their values.

    Args:
        apart: prefix of the URL parameters for settings that are separate from the session's.
    """
    temperature_key = f"{apart}temperature"
    top_p_key = f"{apart}top_p"
    if not apart and session.claim_sampling_controls():
        temperature, top_p = session.sampling()
        st.session_state[temperature_key] = temperature
        st.session_state[top_p_key] = top_p
    temperature = left.slider(
        "Temperature",
        0.0,
        2.0,
        default,
        0.1,
        key=temperature_key,
        bind="query-params",
        help="The target's temperature. At 0, decoding is greedy: always the most likely token. Acceptance depends on "
        "it.",
    )
    top_p = right.slider(
        "Top-p",
        0.1,
        1.0,
        1.0,
        0.05,
        key=top_p_key,
        bind="query-params",
        disabled=temperature == 0 and not apart,
        help="Keeps only the target's most likely tokens whose probabilities add up to this value; 1 keeps all of "
        "them. The resulting distribution is preserved exactly. Has no effect at temperature 0.",
    )
    if not apart:
        session.set_sampling(temperature, top_p)
    return temperature, top_p


def verifier_control(
    container: DeltaGenerator, *, key: str, names: Sequence[str] = tuple(VERIFIER_CHOICES), **options: Any
) -> str:
    """Show a select box for the verifier, by default among those with acceptance vectors, and return its name."""
    return container.selectbox("Verifier", names, key=key, format_func=VERIFIER_NAMES.__getitem__, **options)


def seed_control(container: DeltaGenerator, *, help: str, disabled: bool = False) -> int:
    """Draw the seed control, kept in the URL, and return the seed."""
    return container.number_input(
        "Seed", 0, 2**31 - 1, 0, key="seed", bind="query-params", disabled=disabled, help=help
    )


def primary_button(
    label: str, *, disabled: bool = False, draw: Callable[..., bool] = st.button, **options: Any
) -> bool:
    """Draw a primary button that is readable in both themes; return whether it was pressed.

    Streamlit's white label lacks contrast on the dark theme's primary colour. The theme's orange text colour is
    reserved for these labels.
    """
    colour = "gray" if disabled else "orange"
    return draw(f":{colour}[{label}]", type="primary", disabled=disabled, **options)


def draw_tabs(parts: Mapping[str, Callable[[], None]], *, key: str) -> None:
    """Draw a page's parts as tabs; the open tab is kept in the URL, and only its contents are run."""
    tabs = st.tabs(list(parts), key=key, bind="query-params", on_change="rerun")
    for tab, draw in zip(tabs, parts.values(), strict=True):
        if tab.open:
            with tab:
                draw()


def choice_list(
    label: str,
    titles: Mapping[str, str],
    chosen: str | None,
    use: Callable[[str | None], None],
    *,
    key: str,
    help: str,
) -> None:
    """Draw a scrolling list of choices by name; `use` gets the new choice, or None for the first, which is the default.

    `chosen` is None if the current choice is not listed.
    """
    st.session_state[key] = chosen

    def choose() -> None:
        name = st.session_state[key]
        use(None if name == next(iter(titles)) else name)

    with st.container(height=260, border=False):
        st.radio(label, list(titles), key=key, format_func=titles.__getitem__, on_change=choose, help=help)


def open_tab(key: str) -> str:
    """Return the open tab's name before `draw_tabs` draws it; empty for the first tab."""
    return st.session_state.get(key) or st.query_params.get(key, "")


def warn_without_draft(what: str) -> bool:
    """Warn that `what`, such as "Measuring", needs a draft if the session has none; return whether it has none."""
    alone = session.pair_spec().is_alone
    if alone:
        st.info(
            f"{what} needs a draft model, and the {session.pair_name()} has none. Select one in the bar above.",
            icon=":material/info:",
        )
    return alone


def clicked_data(key: str) -> list[Any] | None:
    """Return the custom data of the point clicked in a chart; None if none was clicked."""
    points = st.session_state[key].selection.points
    return next((data for point in points if isinstance(data := point.get("customdata"), list)), None)


def download_button(
    label: str,
    data: str | bytes | Callable[[], bytes],
    name: str,
    *,
    key: str,
    icon: str = ":material/download:",
    help: str | None = None,
) -> None:
    """Draw a download button; a function as `data` creates the file on request."""
    mime_type, _ = mimetypes.guess_type(name)
    st.download_button(label, data, name, mime_type, key=key, icon=icon, on_click="ignore", help=help)


def page_link(container: DeltaGenerator | ModuleType, page: str, label: str, icon: str, **query: str) -> None:
    """Draw a link to another page, or only its label if the current page runs without the router."""
    try:
        container.page_link(f"pages/{page}.py", label=label, icon=icon, query_params=query or None)
    except StreamlitPageNotFoundError:
        container.caption(f"{icon} {label}")


def size_and_depth_sliders(
    left: DeltaGenerator,
    right: DeltaGenerator,
    *,
    keys: tuple[str, str],
    default: tuple[int, int],
    size_help: str,
    smallest: int = 1,
) -> tuple[int, int]:
    """Draw the controls for a tree's size (a logarithmic slider and a number field) and depth; return (n, d).

    `size_help` completes the sentence "Tokens in one target pass, ".
    """
    slider_key = f"{keys[0]}_slider"

    def copy_slider() -> None:
        st.session_state[keys[0]] = st.session_state[slider_key]

    slider_column, exact = left.columns([3, 2], vertical_alignment="bottom")
    n = exact.number_input(
        "Exactly",
        smallest,
        core_cache.MAX_TREE_SIZE,
        default[0],
        key=keys[0],
        bind="query-params",
        label_visibility="collapsed",
    )
    sizes = sorted({n, *(size for size in SLIDER_SIZES if size >= smallest)})
    st.session_state[slider_key] = n
    slider_column.select_slider(
        "Size n", sizes, key=slider_key, on_change=copy_slider, help=f"Tokens in one target pass, {size_help}"
    )
    d = right.slider(
        "Maximum depth d",
        1,
        core_cache.MAX_TREE_DEPTH,
        default[1],
        key=keys[1],
        bind="query-params",
        help="Edges on the longest path = draft passes per step. The paper's D counts levels: D = d + 1.",
    )
    return n, d
