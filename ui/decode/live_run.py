"""A decode on the page while it runs and afterwards: its figures, its tree step by step, its text."""

from typing import Any

import streamlit as st

from sequoia_core import TokenTree
from sequoia_core.design.what_if import PRIOR_NODES, corrected, count_ranks
from sequoia_core.studies.run_summary import RunSummary
from ui.cards import Card, cards, number
from ui.jobs import job_panel, session_jobs
from ui.jobs.jobs import Job
from ui.markdown import escaped
from ui.phrases import beside, count
from ui.runs import kept_runs, run_list, runs
from ui.runs.runs import DecodeRequest
from ui.session import machine, predictions, session, tree_in_use
from ui.token_tree import live_tree
from ui.token_tree.steering import Steering

ENDINGS = {
    "eos": "Ended at the end-of-text token.",
    "context": "Ended at the target's context limit.",
    "length": "Ended at the number of tokens asked for.",
}
WAITING_SEC = 0.15  # between two looks at a run that waits for its reader
WATCHED_SEC = 0.5  # at one that computes elsewhere than the browser does
SHARED_SEC = 4.0  # at one on the cores that the browser draws with: a look costs it about 0.1 s of computing


def poll_sec(job: Job) -> float:
    """Return how long to wait between two looks at a run, in seconds: a page that is watched slows what it shows."""
    if job.info.steering.stepwise or job.cancel_event.is_set():
        return WAITING_SEC
    is_near = st.context.ip_address is None  # over the loopback: this machine's browser, or one behind a tunnel
    return SHARED_SEC if is_near and not machine.has_gpu() else WATCHED_SEC


def draw_job(was_active: bool, drawn_every: float) -> None:
    """Draw this session's decode as far as it is; runs the page again once `was_active` or `drawn_every` changed."""
    job = session_jobs.job("decode")
    if job is None:
        return
    active, state = job.active, job.state  # read before the steps, so that an ended job is drawn complete
    if job.position:
        st.info(f"The engine is busy. This run is number {job.position} in line.", icon=":material/hourglass_top:")
    elif active:
        doing = "Stopping after this step" if job.cancel_event.is_set() else job_panel.progress_text(job)
        st.caption(f":material/sync: {job.fraction:.0%} · {doing}")  # a bar glides, at 60 pictures a second
    elif state == "failed":
        kept = f" {count(job.step_count, 'step')} before it: kept below." if job.step_count else ""
        st.error(f"The run failed: {escaped(job.error or '')}{kept}", icon=":material/error:")
    elif state == "cancelled":
        stopped = f"Stopped after {count(job.step_count, 'step')}; what was decoded stays below."
        st.warning(stopped, icon=":material/stop_circle:")
    steps, found = job.steps_since(0), job.result  # in this order, each once: the run holds the shapes of its steps
    run, every = found or job.info.header(), poll_sec(job)
    unread = bool(job.info.turns) and found is None  # what a conversation's prompt is, is known when it is read
    epoch = f"{job.id} waiting" if unread else job.id
    if steps:
        kept_runs.say_made_with(run)
    draw_run(
        run,
        epoch,
        steps,
        active=active,
        waiting=job.message or "Waiting for the engine",
        interval_sec=every,
        lean=active and not job.info.steering.stepwise,
        steering=job.info.steering if active else None,
    )
    if not active and run["steps"]:
        _offer_vector(job, run)
    if was_active and (not active or every != drawn_every):
        st.rerun()  # once, to end or change the polling and give the buttons back


def _offer_vector(job: Job, run: dict[str, Any]) -> None:
    """Offer to correct the vector in use by what a run showed of it, so that trees are planned from that."""
    request: DecodeRequest = job.info
    vector = predictions.vector_for(predictions.conditions(request.temperature, request.top_p, request.verifier))
    if vector is None or request.models != session.pair_spec():
        return
    asked, measured = run.get("prompt_ending"), vector.meta.get("prompt_ending")
    if asked is not None and measured is not None and asked != measured:
        st.caption(
            f':material/info: Expected and predicted come from prompts that ended "{escaped(f"{measured}"[:80])}"; '
            f'this run\'s ended "{escaped(asked)}".'
        )
    tree = request.tree
    if not isinstance(tree, TokenTree):
        return

    def use() -> None:
        ranks = count_ranks((tree, step["path"]) for step in run["steps"])
        source = f"{session.acceptance_source()}, corrected by a run of {count(len(run['steps']), 'step')}"
        session.set_acceptance(corrected(vector, *ranks), source, "corrected by a run")
        tree_in_use.set_size_and_depth(None)
        st.toast("The corrected vector is in use: the tree page plans from it.", icon=":material/check_circle:")

    st.button(
        "Plan from what this run showed",
        icon=":material/school:",
        key="decode_plan",
        on_click=use,
        help="Each rank of the acceptance vector in use moves towards the share that this run accepted of it: the "
        f"vector counts as {PRIOR_NODES:.0f} nodes of the run. One text says little about another.",
    )


def draw_linked(run: dict[str, Any]) -> None:
    """Draw a run that the link names."""
    st.caption(f":material/link: {escaped(kept_runs.title(run))}")
    kept_runs.say_made_with(run)
    draw_run(run, run["id"], run["steps"], active=False)


def draw_last_or_recorded() -> None:
    """Draw this session's last run, else the recorded one, else what to expect here."""
    last = session.last_run()
    recording = next(iter(kept_runs.recorded()), None)
    if last is not None:
        st.caption(":material/history: The last run of this session.")
        kept_runs.say_made_with(last)
        draw_run(last, last["id"], last["steps"], active=False)
    elif recording is not None:
        st.caption(f":material/movie: A recording ({escaped(runs.made_with(recording))}). Your first run replaces it.")
        draw_run(recording, recording["id"], recording["steps"], active=False)
    else:
        st.info(
            "Nothing decoded yet. Each step's tree appears here as it is drafted and verified.",
            icon=":material/play_circle:",
        )


def linked_step(run: dict[str, Any]) -> int | None:
    """Return the step of a run that the link names, from 0; None where it names none that there is."""
    named = st.query_params.get("step", "")
    return int(named) - 1 if named.isascii() and named.isdigit() and 1 <= int(named) <= len(run["steps"]) else None


def draw_run(
    run: dict[str, Any],
    epoch: str,
    steps: list[dict[str, Any]],
    *,
    active: bool,
    waiting: str = "",
    interval_sec: float = 0.0,
    lean: bool = False,
    steering: Steering | None = None,
) -> None:
    """Draw the live tree of a run, its figures and its text."""
    summary = runs.summary_of(run | {"steps": steps})
    live_tree(
        key="decode_tree",
        epoch=epoch,
        run=run,
        steps=steps,
        running=active,
        waiting=waiting if active else "",
        interval_sec=interval_sec,
        lean=lean,
        at=None if active else linked_step(run),
        steering=steering,
    )
    if not active and steps:
        with st.container(horizontal=True, vertical_alignment="center"):
            run_list.downloads(run, key="decode_download")
            st.caption(ENDINGS.get(steps[-1]["finished"], "Ended early."))
    if not lean:
        _cards(summary)
    elif summary.speedup is not None:  # cards would take the browser much of what a look takes it
        speed = number(summary.tokens_per_sec, "{:,.0f}")
        st.caption(f"{speed} tokens per second so far, {summary.speedup:.2f}× as fast as without the tree.")
    _draw_streaming(run, steps)
    if not active and steps:
        st.markdown(runs.explain(summary))
        with st.expander("The text alone", icon=":material/notes:", key="decode_text"):
            st.code(run["text"] or "".join(piece for step in steps for piece in step["pieces"]), language=None)


def _draw_streaming(run: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """Say how the weights came in during the steps so far; nothing for a run with all of them in memory."""
    rate, verify = run.get("read_bytes_per_sec"), sum(step["seconds"][1] for step in steps)
    if rate is None or not verify:
        return
    waited = sum(step.get("read_wait_sec", 0.0) for step in steps) / verify
    st.caption(
        f":material/hard_drive: Weights streamed at {rate / 1e9:.2f} GB/s, with the tree and without it; "
        f"{waited:.0%} of the target's passes was waiting for them (violet in the lanes)."
    )


def _between(summary: RunSummary, prediction: float) -> str:
    """Write the prediction with its interval where there is one; short enough for a card."""
    interval = summary.predicted_interval
    return f"{prediction:.2f}×{'' if interval is None else beside(*interval, '{:.1f}')}"


def _cards(summary: RunSummary) -> None:
    """Draw what was measured, each number beside what it compares with."""
    expected, alone, prediction = summary.expected_tokens, summary.baseline_per_sec, summary.predicted_speedup
    cards(
        Card(
            "Tokens per step",
            number(summary.tokens_per_step),
            "" if expected is None else f"expected {expected:.2f}",
            help="Committed tokens ÷ target passes, bonus tokens counted. Expected: F of this tree.",
        ),
        Card(
            "Tokens per second",
            number(summary.tokens_per_sec, "{:,.0f}"),
            "autoregressive not measured" if alone is None else f"autoregressive {alone:,.0f}",
            help="Both measured in this job, taking turns step by step, on the same model and sampler: all tokens "
            "over the seconds of all steps. Reading the prompt is excluded on both sides.",
        ),
        Card(
            "Speedup",
            number(summary.speedup, "{:.2f}×"),
            "" if prediction is None else f"predicted {_between(summary, prediction)}",
            help="Tokens per second with the tree ÷ without it (1.00×).",
        ),
        Card(
            "Accepted share",
            number(summary.drafted_share, "{:.0%}"),
            f"{count(summary.tokens, 'token')}, {count(summary.steps, 'step')}",
            help="Share of the text that was drafted and that the target accepted; the rest are bonus tokens.",
        ),
    )
