"""Widgets that several pages share: uploads, choices of a source, sampling and shape, and rows of figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.errors import StreamlitPageNotFoundError

from sequoia_core.design import conditions
from sequoia_core.design.bounded_search import REACH
from sequoia_core.design.tree import TokenTree
from ui import core_cache
from ui.literal import plain, safe_name
from ui.verifier_names import NAMES

T = TypeVar("T")
VERIFIERS = {name: NAMES[name] for name in conditions.VERIFIERS}
MAX_TREE = 4_096  # nodes that a browser still draws
TREE_TYPES = ("json", "pt", "txt")
TOO_LONG = (
    f"Only trees up to n = {REACH} were searched: this vector has many ranks that rise and fall. Smooth it on the "
    "acceptance page to search larger ones."
)


@dataclass(frozen=True, slots=True)
class Upload(Generic[T]):
    """One uploaded file: its value or the one-line cause why not, and whether this run is the first to see it.

    Name and cause are safe to write into markdown.
    """

    name: str
    value: T | None
    error: str | None
    is_new: bool


def file_upload(
    label: str, types: Sequence[str], loads: Callable[[bytes, str], T], *, key: str, help: str
) -> Upload[T] | None:
    """Draw an uploader and read its file once.

    Args:
        types: extensions accepted, without dots.
        loads: reads (content, name); raises ValueError for a file it cannot use.

    Returns:
        None while nothing is uploaded.
    """
    file = st.file_uploader(label, type=list(types), key=key, help=help)
    if file is None:
        st.session_state.pop(f"{key}_read", None)
        return None
    seen = st.session_state.get(f"{key}_read")
    if seen is not None and seen[0] == file.file_id:
        return Upload(*seen[1:], is_new=False)
    value, error = None, None
    try:
        value = loads(file.getvalue(), file.name)
    except ValueError as caught:
        error = plain(" ".join(str(caught).split()))
    name = safe_name(file.name)
    st.session_state[f"{key}_read"] = (file.file_id, name, value, error)
    return Upload(name, value, error, is_new=True)


def tree_upload(*, key: str) -> Upload[TokenTree] | None:
    """Draw an uploader for a tree file of any known format that is small enough to be drawn and decoded with."""
    return file_upload(
        "Tree file",
        TREE_TYPES,
        _read_tree,
        key=key,
        help="Sequoia JSON, a reference growmap (.pt), UMbreLLa JSON, a list of paths (Medusa, EAGLE), or a vLLM tree.",
    )


def _read_tree(data: bytes, name: str) -> TokenTree:
    from sequoia_core.design.tree_files import tree_from_bytes

    tree = tree_from_bytes(data, name)
    if tree.size > MAX_TREE:
        raise ValueError(f"{name}: found {tree.size:,} nodes, expected at most {MAX_TREE:,} to draw and decode with")
    return tree


def source_picker(label: str, ways: Sequence[str], *, key: str) -> str:
    """Draw where something comes from, the first way chosen and kept in the link -> the way."""
    return st.segmented_control(
        label,
        ways,
        default=ways[0],
        required=True,
        key=key,
        bind="query-params",
        label_visibility="collapsed",
    )


def sampling(
    left: DeltaGenerator,
    right: DeltaGenerator,
    *,
    keys: tuple[str, str],
    default: float = 0.0,
    warmest: float = 2.0,
    in_form: bool = True,
) -> tuple[float, float]:
    """Draw one way of sampling -> (temperature, top-p), both kept in the link.

    Args:
        keys: of the two sliders, which are their names in the link.
        default, warmest: of the temperature.
        in_form: leave top-p open at temperature 0, because a form does not know yet what was chosen in it.
    """
    temperature = left.slider(
        "Temperature",
        0.0,
        warmest,
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
    return temperature, top_p


def verifier(place: DeltaGenerator, *, key: str, **options: Any) -> str:
    """Draw the choice of a verifier -> its name in the core."""
    return place.selectbox("Verifier", VERIFIERS, key=key, format_func=VERIFIERS.get, **options)


@dataclass(frozen=True, slots=True)
class Card:
    """One number with what it compares with.

    Args:
        against: short enough for a quarter of the page, about 24 characters.
        signed: `against` begins with + or −, shown as better or worse.
    """

    label: str
    value: str
    against: str
    help: str | None = None
    signed: bool = False


def cards(*row: Card) -> list[DeltaGenerator]:
    """Draw one row of figures -> the places they stand in, for what belongs below each."""
    places = st.columns(len(row))
    for place, card in zip(places, row, strict=True):
        draw_card(place, card)
    return places


def draw_card(place: DeltaGenerator, card: Card) -> None:
    """Draw one figure in a place of its own."""
    place.metric(
        card.label,
        card.value,
        card.against,
        border=True,
        height="stretch",
        help=card.help,
        delta_color="normal" if card.signed else "off",
        delta_arrow="auto" if card.signed else "off",
    )


def page_link(place: DeltaGenerator, page: str, label: str, icon: str) -> None:
    """Draw a link to another page; its name only where this page runs without the router."""
    try:
        place.page_link(f"pages/{page}.py", label=label, icon=icon)
    except StreamlitPageNotFoundError:
        place.caption(f"{icon} {label}")


def number(value: float | None, form: str = "{:.2f}") -> str:
    """Write a figure: a dash while there is none, ∞ where it has no bound."""
    if value is None:
        return "–"
    return "∞" if math.isinf(value) else form.format(value)


def short_reason(reason: str) -> str:
    """Return why a figure is missing where that fits a card, else that it was not measured here; safe in markdown."""
    return plain(reason) if len(reason) <= 28 else "not measured here"


def shape_sliders(
    left: DeltaGenerator,
    right: DeltaGenerator,
    *,
    keys: tuple[str, str],
    default: tuple[int, int],
    size_help: str,
    smallest: int = 1,
) -> tuple[int, int]:
    """Draw the sliders of a tree's shape -> (n, d), both kept in the link.

    Args:
        keys: of the size and of the depth slider, which are their names in the link.
        size_help: ends the sentence that begins "Tokens in one target pass, ".
    """
    n = left.slider(
        "Size n",
        smallest,
        core_cache.MAX_SIZE,
        default[0],
        key=keys[0],
        bind="query-params",
        help=f"Tokens in one target pass, {size_help}",
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
