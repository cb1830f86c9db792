"""A decode run on the live page, during and after the run: its figures, its tree at each step, and its text."""

from typing import Any

import streamlit as st

from sequoia_core import TokenTree
from sequoia_core.acceptance.what_if import PRIOR_NODES, corrected
from sequoia_core.measuring.run_summary import RunSummary
from sequoia_core.trees.replay import count_ranks
from ui.cards import draw_load_warning, draw_slower, number
from ui.jobs import job_panel, session_jobs
from ui.jobs.jobs import Job
from ui.markdown import escaped
from ui.phrases import ONE_PASS_DIGITS, count, in_parentheses, shape, times
from ui.runs import available_runs, run_list, runs
from ui.runs.runs import DecodeRequest
from ui.session import machine, predictions, session, tree_in_use
from ui.session.state import state
from ui.token_tree import Figure, live_tree
from ui.token_tree.run_timeline import run_timeline
from ui.token_tree.steering import Steering

ENDINGS = {
    "eos": "Ended at the end-of-text token.",
    "context": "Ended at the target's context limit.",
    "length": "Ended at the requested number of tokens.",
}
MOST_LIVE_NODES = 256  # the timeline of larger trees appears after the run, because its messages would slow it down
WAITING_SEC = 0.15  # polling interval while the run waits for the viewer
WATCHED_SEC = 0.5  # polling interval of a run that does not share cores with the browser
SHARED_SEC = 4.0  # polling interval of a run on the browser's cores; an update takes about 0.1 s of CPU time


def poll_sec(job: Job) -> float:
    """Return a run's polling interval in seconds; updates slow down a run on the same machine."""
    if job.info.steering.stepwise or job.cancel_event.is_set():
        return WAITING_SEC
    is_near = st.context.ip_address is None  # loopback connection: a browser on this machine, or one behind a tunnel
    return SHARED_SEC if is_near and not machine.has_gpu() else WATCHED_SEC


def draw_job(was_active: bool, drawn_every: float) -> None:
    """Draw this session's decode run so far; rerun the page if `was_active` or `drawn_every` has changed."""
    job = session_jobs.find_job("decode")
    if job is None:
        return
    active = job.active
    job_state = job.state  # read before the steps so that all steps of a finished job are drawn
    if job.position:
        st.info(f"The engine is busy. This run is number {job.position} in the queue.", icon=":material/hourglass_top:")
    elif job_state == "failed":
        earlier = f" {count(job.step_count, 'step')} before the failure: see below." if job.step_count else ""
        st.error(f"The run failed: {escaped(job.error or '')}{earlier}", icon=":material/error:")
    elif job_state == "cancelled":
        stopped = f"Stopped after {count(job.step_count, 'step')}; the decoded text remains below."
        st.warning(stopped, icon=":material/stop_circle:")
    steps = [*job.steps]
    result = job.result  # read after the steps, so that the run contains their shapes
    run = result or job.info.header()
    every = poll_sec(job)
    unread = bool(job.info.turns) and result is None  # the rendered prompt is still unknown
    epoch = f"{job.id} waiting" if unread else job.id
    doing = "stopping after this step" if job.cancel_event.is_set() else job_panel.progress_text(job)
    draw_run(
        run,
        epoch,
        steps,
        active=active,
        lead=(doing, f"{job.fraction:.0%}", False) if active else None,
        waiting=job.message or "Waiting for the engine",
        interval_sec=every,
        steering=job.info.steering if active else None,
    )
    if not active and run["steps"]:
        _offer_vector(job, run)
    if was_active and (not active or every != drawn_every):
        st.rerun()  # rerun once to change or stop polling and to enable the buttons


def _offer_vector(job: Job, run: dict[str, Any]) -> None:
    """Offer to correct the current vector with a run's acceptance, for planning trees."""
    request: DecodeRequest = job.info
    vector = predictions.vector_for(predictions.conditions(request.temperature, request.top_p, request.verifier))
    if vector is None or request.models != session.pair_spec():
        return
    run_ending = run.get("prompt_ending")
    vector_ending = vector.meta.get("prompt_ending")
    if run_ending is not None and vector_ending is not None and run_ending != vector_ending:
        st.caption(
            ":material/info: The expected and predicted values come from prompts ending in "
            f'"{escaped(f"{vector_ending}"[:80])}"; this run\'s prompt ends in "{escaped(run_ending)}".'
        )
    tree = request.tree
    if not isinstance(tree, TokenTree):
        return

    def use() -> None:
        ranks = count_ranks((tree, step["path"]) for step in run["steps"])
        source = f"{session.acceptance_source()}, corrected by a run of {count(len(run['steps']), 'step')}"
        session.set_acceptance(corrected(vector, *ranks), source, "corrected by a run")
        tree_in_use.set_size_and_depth(None)
        st.toast("Pages now use the corrected vector, and the tree page plans with it.", icon=":material/check_circle:")

    st.button(
        "Plan with this run's acceptance",
        icon=":material/school:",
        key="decode_plan",
        on_click=use,
        help="Moves each rank of the current acceptance vector towards its acceptance in this run, with the vector "
        f"weighted as {PRIOR_NODES:.0f} nodes. A single text says little about others.",
    )


def draw_finished(run: dict[str, Any], value: str, label: str) -> None:
    """Draw a finished run; `value` and `label` say whose it is."""
    draw_run(run, run["id"], run["steps"], active=False, lead=(label, value, False))


def draw_last_or_recorded() -> None:
    """Draw this session's last run; without one, a recorded run; without either, a placeholder."""
    last = state().last_run
    recording = next(iter(available_runs.recorded_runs()), None)
    if last is not None:
        draw_finished(last, "Last run", "of this session")
    elif recording is not None:
        draw_finished(recording, "Recording", "your first run replaces it")
    else:
        st.info(
            "Nothing decoded yet. Each step's tree will appear here as it is drafted and verified.",
            icon=":material/play_circle:",
        )


def linked_step(run: dict[str, Any]) -> int | None:
    """Return the 0-based step that the link names; None if the run has no such step."""
    named = st.query_params.get("step", "")
    return int(named) - 1 if named.isascii() and named.isdigit() and 1 <= int(named) <= len(run["steps"]) else None


def draw_run(
    run: dict[str, Any],
    epoch: str,
    steps: list[dict[str, Any]],
    *,
    active: bool,
    lead: Figure | None = None,
    waiting: str = "",
    interval_sec: float = 0.0,
    steering: Steering | None = None,
) -> None:
    """Draw the live tree of a run, with `lead` before its figures, and its text."""
    summary = runs.summarize(run | {"steps": steps})
    live_tree(
        key="decode_tree",
        epoch=epoch,
        run=run,
        steps=steps,
        running=active,
        figures=[*([lead] if lead else []), *_figures(summary)],
        waiting=waiting if active else "",
        interval_sec=interval_sec,
        at=None if active else linked_step(run),
        steering=steering,
    )
    if steps and not (active and len(run["shapes"][-1]) > MOST_LIVE_NODES):
        with st.expander("Timeline", icon=":material/timeline:", expanded=not active):
            run_timeline(run | {"steps": steps}, key="decode_timeline", epoch=epoch, running=active)
    if not active and steps:
        draw_slower(summary.speedup, _remedy())
        st.markdown(runs.explain_speedup(summary))
        with st.container(horizontal=True, vertical_alignment="center"):
            run_list.draw_downloads(run, key="decode_download")
            st.caption(ENDINGS.get(steps[-1]["finished"], "Ended early."))
    if steps:
        available_runs.draw_settings(run)
    draw_load_warning(run)
    _draw_streaming(run, steps)
    if not active and steps:
        with st.expander("The text alone", icon=":material/notes:", key="decode_text"):
            st.code(run["text"] or "".join(piece for step in steps for piece in step["pieces"]), language=None)


def _figures(summary: RunSummary) -> list[Figure]:
    """Return the figures on the stage's edge, each with its reference: label, value, and whether it is bad."""
    if not summary.steps:
        return []
    alone = summary.baseline_per_sec
    without = "" if alone is None else f", {alone:,.0f} without the tree"
    expected = "" if summary.expected_tokens is None else f", {summary.expected_tokens:.2f} expected"
    figures = [
        (f"tokens per step{expected}", number(summary.tokens_per_step), False),
        (f"tokens/s{without}", number(summary.tokens_per_sec, "{:,.0f}"), False),
    ]
    if summary.speedup is not None:
        predicted = summary.predicted_speedup
        interval = in_parentheses(*summary.predicted_interval, "{:.1f}") if summary.predicted_interval else ""
        beside = "" if predicted is None else f", {predicted:.2f}×{interval} predicted"
        figures.append((f"as fast{beside}", times(summary.speedup, ONE_PASS_DIGITS), summary.speedup < 1))
    return figures


def _draw_streaming(run: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """Draw the streaming rate so far; draw nothing for a run with all weights in memory."""
    rate = run.get("read_bytes_per_sec")
    verify = sum(step["seconds"][1] for step in steps)
    if rate is None or not verify:
        return
    waited = sum(step.get("read_wait_sec", 0.0) for step in steps) / verify
    st.caption(
        f":material/hard_drive: Weights streamed at {rate / 1e9:.2f} GB/s, with and without the tree; {waited:.0%} "
        f"of the target's pass time was spent waiting for them (violet in the lanes)."
    )


def _remedy() -> str:
    """Return what to do if a run was slower than plain decoding."""
    best = tree_in_use.best_shape()
    if best is None or predictions.lacks_measurement():
        return "Measure this pair, so that a tree that pays can be planned."
    if best.predicted_speedup <= 1:
        return "No tree is predicted to be faster here: decode without a draft, or with a better or smaller one."
    return (
        f"The best static tree, {shape(best.size, best.depth)}, is predicted to reach {times(best.predicted_speedup)}."
    )
