"""Widgets that several pages share: choices of a source, of a way of sampling, of a verifier, of a shape."""

import mimetypes
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.errors import StreamlitPageNotFoundError

from sequoia_core.design import conditions
from sequoia_core.design.tree_search import REACH
from ui.session import core_cache, session
from ui.verifier_names import NAMES

SIZES = sorted({round(2 ** (step / 8)) for step in range(8 * core_cache.MAX_SIZE.bit_length() - 7)})
VERIFIERS = {name: NAMES[name] for name in conditions.VERIFIERS}
TOO_LONG = (
    f"Only trees up to n = {REACH} were searched: this vector has many ranks that rise and fall. Smooth it on the "
    "draft page to search larger ones."
)


def source_picker(label: str, ways: Sequence[str], *, key: str) -> str:
    """Draw the choice among some sources, the first by default, kept in the link -> the chosen one."""
    return st.segmented_control(
        label, ways, default=ways[0], required=True, key=key, bind="query-params", label_visibility="collapsed"
    )


def sampling(
    left: DeltaGenerator, right: DeltaGenerator, *, apart: str = "", default: float = 0.0, in_form: bool = True
) -> tuple[float, float]:
    """Draw one way of sampling -> (temperature, top-p), both kept in the link: the session's, or one `apart`.

    Args:
        apart: begins the names in the link of a way of sampling that is not the session's.
        in_form: leave top-p open at temperature 0, because a form does not know yet what was chosen in it.
    """
    keys = f"{apart}temperature", f"{apart}top_p"
    if not apart and session.sampling_of_another_page():
        st.session_state[keys[0]], st.session_state[keys[1]] = session.sampling()
    temperature = left.slider(
        "Temperature",
        0.0,
        2.0,
        default,
        0.1,
        key=keys[0],
        bind="query-params",
        help="Of the target. 0 is greedy: its most likely token each time. Acceptance differs by temperature.",
    )
    top_p = right.slider(
        "Top-p",
        0.1,
        1.0,
        1.0,
        0.05,
        key=keys[1],
        bind="query-params",
        disabled=temperature == 0 and not in_form,
        help="Keeps only the target's likeliest tokens that add up to this; 1 keeps everything, and so does "
        "temperature 0. What is kept is preserved exactly.",
    )
    if not apart:
        session.set_sampling(temperature, top_p)
    return temperature, top_p


def verifier(place: DeltaGenerator, *, key: str, names: Sequence[str] = tuple(VERIFIERS), **options: Any) -> str:
    """Draw the choice of a verifier, of those that have vectors of their own where no others are named -> its name."""
    return place.selectbox("Verifier", names, key=key, format_func=NAMES.__getitem__, **options)


def seed(place: DeltaGenerator, *, help: str, disabled: bool = False) -> int:
    """Draw the seed of a decode, kept in the link."""
    return place.number_input("Seed", 0, 2**31 - 1, 0, key="seed", bind="query-params", disabled=disabled, help=help)


def primary_button(
    label: str, *, disabled: bool = False, draw: Callable[..., bool] = st.button, **options: Any
) -> bool:
    """Draw a primary button whose label is readable in both themes -> whether it was pressed.

    Streamlit writes it in white, which a dark theme's primary colour is too light for. The theme keeps its orange text
    for these labels: nothing else may be written in orange.
    """
    colour = "gray" if disabled else "orange"
    return draw(f":{colour}[{label}]", type="primary", disabled=disabled, **options)


def sections(parts: Mapping[str, Callable[[], None]], *, key: str) -> None:
    """Draw the parts of a page as tabs, kept in the link; one that is closed costs nothing."""
    tabs = st.tabs(list(parts), key=key, bind="query-params", on_change="rerun")
    for tab, draw in zip(tabs, parts.values(), strict=True):
        if tab.open:
            with tab:
                draw()


def chosen_section(key: str) -> str:
    """Return which of `sections` is open, before they are drawn; empty while it is the first."""
    return st.session_state.get(key) or st.query_params.get(key, "")


def lacks_draft(what: str) -> bool:
    """Say that something ("Measuring acceptance") needs a draft where one model is alone -> whether it lacks one."""
    alone = session.pair_spec().is_alone
    if alone:
        st.info(
            f"{what} needs a draft model, and the {session.pair_name()} has none: choose one under *Change pair*.",
            icon=":material/info:",
        )
    return alone


def clicked(key: str) -> list[Any] | None:
    """Return the custom data of the point that was clicked in a chart; None where none has any."""
    points = st.session_state[key].selection.points
    return next((data for point in points if isinstance(data := point.get("customdata"), list)), None)


def download(
    label: str,
    data: str | bytes | Callable[[], bytes],
    name: str,
    *,
    key: str,
    icon: str = ":material/download:",
    help: str | None = None,
) -> None:
    """Offer a file by that name; where making it takes long, by what makes it once it is asked for."""
    kind, _ = mimetypes.guess_type(name)
    st.download_button(label, data, name, kind, key=key, icon=icon, on_click="ignore", help=help)


def page_link(place: DeltaGenerator | ModuleType, page: str, label: str, icon: str, **query: str) -> None:
    """Draw a link to another page, as its query says; its name only where this page runs without the router."""
    try:
        place.page_link(f"pages/{page}.py", label=label, icon=icon, query_params=query or None)
    except StreamlitPageNotFoundError:
        place.caption(f"{icon} {label}")


def size_and_depth_sliders(
    left: DeltaGenerator,
    right: DeltaGenerator,
    *,
    keys: tuple[str, str],
    default: tuple[int, int],
    size_help: str,
    smallest: int = 1,
) -> tuple[int, int]:
    """Draw the sliders of a tree's shape, sizes by their logarithm and as a number -> (n, d), in the link by keys.

    `size_help` ends the sentence that begins "Tokens in one target pass, ".
    """
    slid = f"{keys[0]}_slider"

    def take_over() -> None:
        st.session_state[keys[0]] = st.session_state[slid]

    sliding, exact = left.columns([3, 2], vertical_alignment="bottom")
    n = exact.number_input(
        "Exactly",
        smallest,
        core_cache.MAX_SIZE,
        default[0],
        key=keys[0],
        bind="query-params",
        label_visibility="collapsed",
    )
    sizes = sorted({n, *(size for size in SIZES if size >= smallest)})
    st.session_state[slid] = n
    sliding.select_slider(
        "Size n", sizes, key=slid, on_change=take_over, help=f"Tokens in one target pass, {size_help}"
    )
    d = right.slider(
        "Depth d, at most",
        1,
        core_cache.MAX_DEPTH,
        default[1],
        key=keys[1],
        bind="query-params",
        help="Edges on the longest path = draft passes per step. The paper's D counts levels: D = d + 1.",
    )
    return n, d
