"""Plans kept on this machine: everything that a session has chosen, as a file that links name by its id."""

import logging
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import streamlit as st
from pydantic import BaseModel

from sequoia_core import TokenTree
from sequoia_core.files.json_models import validate_model
from sequoia_core.files.safe_files import json_bytes, read_bytes, read_json
from sequoia_core.models.pair_spec import PairSpec
from ui.kept import store
from ui.runs import run_store
from ui.session import session, shipped
from ui.session.core_cache import Measured
from ui.session.listing import PROFILES, VECTORS, Listing
from ui.session.state import Chosen, SessionState, state

CHOICES = ("pair", "acceptance", "original", "profile", "shape", "tree", "tree_kind")  # fields of the session's state
TEXT_KEYS = (  # of text fields, whose contents belong to a plan
    "decode_prompt", "chat_system", "template_arguments", "acceptance_own", "robustness_prompt",
)  # fmt: skip
Kind = Literal["vectors", "profiles", "variants"]
_LOG = logging.getLogger(__name__)


class ChosenRecord(BaseModel):
    """A chosen vector or profile: its name if it is shipped, otherwise the kind and id of its file."""

    source: str
    shipped: str | None = None
    kind: Kind = "vectors"
    id: str = ""


class ImportedTree(BaseModel):
    source: str
    parents: list[int]


class PlanRecord(BaseModel):
    """A session's choices; those with a default are None or empty if the default applies."""

    format: Literal["sequoia-plan"] = "sequoia-plan"
    version: Literal[1] = 1
    models: dict[str, str | None]  # fields of PairSpec
    sampling: tuple[float, float]
    acceptance: ChosenRecord | None
    original: ChosenRecord | None
    profile: ChosenRecord | None
    shape: tuple[int, int] | None
    tree: ImportedTree | None
    tree_kind: str
    run: str | None = None
    texts: dict[str, str] = {}


def keep_plan(name: str, result: str) -> str | None:
    """Keep the session's choices if they have changed, and return the plan's id; None if nothing was chosen.

    Args:
        name: what is planned for, for lists.
        result: the planned tree and its speedup, for lists.
    """
    now = state()
    for key in TEXT_KEYS:
        if key in st.session_state:
            now.texts[key] = st.session_state[key]
    offered = {"", *shipped.prompts()[:1]}
    texts = {key: text for key, text in now.texts.items() if text not in offered}
    default = SessionState()
    choices = [getattr(now, field) for field in CHOICES]
    run = None if now.last_run is None else now.last_run["id"]
    if choices == [getattr(default, field) for field in CHOICES] and run is None and not texts:
        now.plan = None
        return None
    seen = [*choices, now.sampling, run, texts, name, result]
    if now.plan is None or now.plan[1] != seen:
        now.plan = (_write(texts, run, name, result), seen)
    return now.plan[0]


def _write(texts: Mapping[str, str], run: str | None, name: str, result: str) -> str:
    now = state()
    record = PlanRecord(
        models={field: None if value is None else str(value) for field, value in asdict(now.pair).items()},
        sampling=now.sampling,
        acceptance=_record(now.acceptance, VECTORS),
        original=_record(now.original, VECTORS),
        profile=_record(now.profile, PROFILES),
        shape=now.shape,
        tree=None
        if now.tree is None
        else ImportedTree(source=now.tree.source, parents=now.tree.value.parents.tolist()),
        tree_kind=now.tree_kind,
    )
    id = store.content_id(json_bytes(record.model_dump()))  # the same while text is written and runs are made
    record.run = run
    record.texts = dict(texts)
    return store.keep("plans", json_bytes(record.model_dump()), name=name, source=result, id=id)


def _record(chosen: Chosen[Measured] | None, listing: Listing[Measured]) -> ChosenRecord | None:
    """Return a reference to a chosen vector or profile, after keeping its file unless it is shipped."""
    if chosen is None:
        return None
    name = next((name for name, value in listing.values().items() if value is chosen.value), None)
    if name in listing.shipped():
        return ChosenRecord(source=chosen.source, shipped=name)
    kind: Kind = "variants" if name is None else listing.kind
    id = _content_id(chosen.value)
    if not store.path_of(kind, id).exists():
        store.keep(kind, chosen.value.to_bytes(), name=name or "", source=chosen.source)
    return ChosenRecord(source=chosen.source, kind=kind, id=id)


@lru_cache(maxsize=32)
def _content_id(value: Any) -> str:
    return store.content_id(value.to_bytes())  # takes tens of milliseconds for a vector with its calibration


def load_plan(id: str) -> None:
    """Switch the session to a kept plan; raise ValueError if it was not kept or has been deleted."""
    record = validate_model(PlanRecord, read_json(read_bytes(store.path_of("plans", id))))
    now = state()
    now.pair = PairSpec(**record.models)
    session.set_sampling(*record.sampling)
    st.session_state["temperature"], st.session_state["top_p"] = record.sampling
    now.acceptance = _chosen(record.acceptance, VECTORS)
    now.original = _chosen(record.original, VECTORS)
    now.profile = _chosen(record.profile, PROFILES)
    now.shape = record.shape
    now.shape_to_show = True
    tree = record.tree
    now.tree = None if tree is None else Chosen(TokenTree(np.array(tree.parents)), tree.source)
    now.tree_kind = record.tree_kind
    now.last_run = run_store.find_run(record.run) if record.run else None
    now.texts = {key: text for key, text in record.texts.items() if key in TEXT_KEYS}
    st.session_state.update(now.texts)


def _chosen(record: ChosenRecord | None, listing: Listing[Measured]) -> Chosen[Measured] | None:
    """Return a chosen vector or profile; None if nothing was chosen or its file has been deleted."""
    if record is None:
        return None
    if record.shipped is not None:
        value = listing.shipped().get(record.shipped)
        return None if value is None else Chosen(value, record.source)
    try:
        value = listing.load(store.path_of(record.kind, record.id))
    except (OSError, ValueError) as error:
        _LOG.warning("a part of the plan cannot be read: %s", error)
        return None
    listed = next((chosen for chosen in listing.own.values() if chosen.value == value), None)
    return listed or Chosen(value, record.source)
