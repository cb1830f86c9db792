"""Overview: where the user's results stand, and one button that runs the whole chain on the model pair."""

from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.errors import StreamlitPageNotFoundError

from sequoia_core import expected_tokens
from ui import controls, page_setup, runs, session, work
from ui.jobs import Job
from ui.literal import plain

POLL_SEC = 0.4
FALLBACK_PROMPTS = [
    "import os\n\n\ndef list_files(folder):\n    ",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        ",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    ",
    "with open(path) as handle:\n    for line in handle:\n        ",
    "import json\n\n\ndef load_config(path):\n    ",
]
STAGE_ICONS = {
    "done": ":green[:material/check_circle:]",
    "now": ":blue[:material/pending:]",
    "open": ":gray[:material/radio_button_unchecked:]",
    "stopped": ":orange[:material/stop_circle:]",
}


def standing() -> None:
    """Draw one card per question: the key figure in use and the page that answers it."""
    vector, best, tree, last = session.acceptance(), session.best(), session.tree(), session.last_run()
    unmeasured = session.vector_faults()
    missing = [*unmeasured, *session.profile_faults()]
    places = st.columns(4)
    controls.card(
        places[0],
        "First guess accepted",
        "–" if unmeasured else f"{vector.probs[0]:.0%}",
        "not measured on this pair" if unmeasured else plain(vector.holds_for.sampling),
        help="p1, the chance that the draft's first guess is the one accepted. "
        + (
            f"Not known here: {plain('; '.join(unmeasured))}."
            if unmeasured
            else f"{plain(session.acceptance_source())}."
        ),
    )
    link(places[0], "acceptance", "Is the draft right?", ":material/checklist:")
    controls.card(
        places[1],
        "Expected tokens",
        "–" if unmeasured else f"{expected_tokens(tree, vector):.2f}",
        f"n = {tree.size}, d = {tree.depth}",
        help=f"Per target pass, with the {plain(session.tree_source())}. Autoregressive decoding yields 1.00.",
    )
    link(places[1], "tree", "Which tree is best?", ":material/account_tree:")
    controls.card(
        places[2],
        "Predicted speedup",
        "–" if missing else f"{best.predicted_speedup:.2f}×",
        controls.short_reason("; ".join(missing)) if missing else f"best: n = {best.size}, d = {best.depth}",
        help="Against autoregressive decoding of the same target (1.00×). "
        + (f"Not known here: {plain('; '.join(missing))}." if missing else f"{plain(session.profile_source())}."),
    )
    link(places[2], "hardware", "What pays here?", ":material/memory:")
    summary = None if last is None or last["target"] != session.conditions().target else summary_of(last)
    speedup = None if summary is None else summary.speedup
    controls.card(
        places[3],
        "Measured speedup",
        "–" if speedup is None else f"{speedup:.2f}×",
        "nothing decoded yet" if summary is None else f"over {summary.tokens} tokens",
        help="Tokens per second with the tree ÷ without it, from the last run of this session.",
    )
    link(places[3], "decode", "Does the prediction hold?", ":material/play_circle:")


def link(place: DeltaGenerator, page: str, label: str, icon: str) -> None:
    """Draw a link to another page; its name only where this page runs without the router."""
    try:
        place.page_link(f"pages/{page}.py", label=label, icon=icon)
    except StreamlitPageNotFoundError:
        place.caption(f"{icon} {label}")


def summary_of(run: dict[str, Any]) -> runs.RunSummary:
    """Return the figures of a finished run."""
    return runs.summarize(
        run["steps"],
        baseline=run["baseline"],
        expected_tokens=run["expected_tokens"],
        predicted_speedup=run["predicted_speedup"],
    )


def start_chain() -> None:
    """Submit the whole chain on the chosen pair: some shipped prompts to measure on, one more to decode."""
    prompts = session.shipped_prompts()
    if len(prompts) <= work.CHAIN_PROMPTS:
        prompts = FALLBACK_PROMPTS
    chain = work.chain_work(prompts[: work.CHAIN_PROMPTS + 1], models=session.pair_spec())
    controls.start_job("chain", "Whole chain", chain, info=session.pair_name())


def adopt(job: Job) -> None:
    """Put what the chain found where the other pages look, with the tree following it."""
    found = job.result
    if found is None:
        return
    if found.acceptance is not None:
        session.set_acceptance(found.acceptance, f"measured here on the {job.info}, temperature 0", "measured, T = 0")
    if found.profile is not None:
        session.set_profile(found.profile, f"measured here on the {job.info}")
        session.set_shape(None)
    if found.run is not None and found.run["steps"]:
        session.set_last_run(found.run)


def show_chain(was_active: bool) -> None:
    """Draw the chain's stages and progress; redrawn while it runs."""
    job = session.job("chain")
    if job is None:
        return
    active = job.active
    if active:
        left = "" if job.eta_sec is None else f" · about {job.eta_sec:.0f} s left"
        text = f"Waiting for the engine: {job.position} in line" if job.position else f"{plain(job.message)}{left}"
        with st.container(horizontal=True, vertical_alignment="center"):
            st.progress(job.fraction, text=text or "Starting")
            if st.button("Cancel", icon=":material/stop:", key="chain_cancel", disabled=job.cancel_event.is_set()):
                job.cancel()
    elif job.state == "failed":
        st.error(f"The chain failed: {plain(job.error or '')}", icon=":material/error:")
    elif job.state == "cancelled":
        st.warning("Stopped. What was finished before is in use.", icon=":material/stop_circle:")
    stage_list(job, active=active)
    if was_active and not active:
        st.rerun()


def stage_list(job: Job, *, active: bool) -> None:
    """Draw the named stages with their state."""
    over = job.state == "done"
    for place, stage in zip(st.columns(len(work.CHAIN_STAGES)), work.CHAIN_STAGES, strict=True):
        if over or job.fraction >= stage.high:
            state = "done"
        elif job.fraction >= stage.low and job.state != "queued":
            state = "now" if active else "stopped"
        else:
            state = "open"
        place.markdown(f"{STAGE_ICONS[state]} {stage.name}")


def show_result(run: dict[str, Any]) -> None:
    """Draw what the chain found, each number beside what it compares with, and where to see how."""
    summary = summary_of(run)
    places = st.columns(3)
    if summary.speedup is not None:
        controls.card(
            places[0],
            "Measured speedup",
            f"{summary.speedup:.2f}×",
            f"{summary.speedup - 1:+.2f}× vs autoregressive",
            signed=True,
            help="Tokens per second with the tree ÷ without it, same model, cache, sampler and length.",
        )
        controls.card(
            places[1],
            "Predicted speedup",
            f"{summary.predicted_speedup:.2f}×",
            f"measured is {summary.speedup / summary.predicted_speedup:.0%} of it",
            help="Expected tokens ÷ (t(n) + d·c), from the acceptance and the profile just measured.",
        )
    if summary.tokens_per_step is not None:
        controls.card(
            places[2],
            "Tokens per step",
            f"{summary.tokens_per_step:.2f}",
            f"expected {summary.expected_tokens:.2f}",
            help="Committed tokens ÷ target passes. Expected: F of the planned tree.",
        )
    st.markdown(runs.explain(summary))
    link(st.container(), "decode", "Watch this run step by step", ":material/play_circle:")


page_setup.setup_page("Overview")
job = session.job("chain")
ended = session.take_ended("chain")
if ended is not None:
    adopt(ended)
st.title("Sequoia Studio")
st.markdown(
    "Measure how often your draft model is right, get the provably best token tree for your hardware, see the "
    "predicted speedup, then decode for real and see whether the prediction held."
)
running = job is not None and job.active
if st.button(
    f"Run the whole chain on the {session.pair_name()}",
    type="primary",
    icon=":material/rocket_launch:",
    key="chain_start",
    disabled=running,
    help="Measures acceptance on 8 prompts, profiles this machine, plans the best tree and decodes 128 tokens with and "
    "without it. Takes about half a minute on a laptop.",
):
    start_chain()
if job is not None:
    st.fragment(show_chain, run_every=POLL_SEC if running else None)(running)
    if job.state == "done":
        show_result(job.result.run)
st.subheader("Where you stand")
standing()
