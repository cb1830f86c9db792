"""The section without a draft: replay recorded answers with lookup trees, without loading a model.

Requires the optional package `dynamic_trees`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import plotly.graph_objects as go
import streamlit as st

from sequoia_core import HardwareProfile
from sequoia_core.acceptance.bootstrap import Estimate
from sequoia_core.files.model_names import DEMO_PAIR, model_folder
from sequoia_core.files.response_logs import responses_from_bytes
from sequoia_extras.dynamic_trees.lookup_replay import LookupReplay
from ui import controls, uploads
from ui.cards import Card, cards
from ui.charts.style import BLUE, RUST, estimate_traces, log2_ticks, new_figure
from ui.jobs import job_panel, replays
from ui.jobs.replays import Replayed
from ui.markdown import escaped
from ui.phrases import count
from ui.session import session
from ui.session.state import state

WORTHWHILE = 1.1  # minimum useful speedup or gain from earlier answers; less is lost in timing noise


def choose_tokenizer() -> tuple[Path, str]:
    """Return a tokenizer folder and its owner: the current target or, if that has no tokenizer, the demo pair."""
    target = session.pair_spec().target
    folder = None if target is None else model_folder(target)
    if folder is not None and (Path(folder) / "tokenizer.json").is_file():
        return Path(folder), "the current target"
    return DEMO_PAIR / "target", "the demo pair"


def replay_section() -> None:
    """Draw the log selector and the result of replaying the log."""
    st.caption(
        "How much time would lookup in earlier text save without a draft model? Recorded answers are replayed step by "
        "step with the trees that decoding would have used; no model is loaded."
    )
    source = controls.source_picker("Which log", ["Shipped example", "Upload"], key="replay_log")
    if source == "Shipped example":
        found = replays.example_replay()
        if found is None:
            st.info("The example is missing from this installation: upload a log.", icon=":material/upload_file:")
    else:
        upload = uploads.file_upload(
            "Recorded answers",
            ("jsonl", "json"),
            responses_from_bytes,
            key="replay_file",
            help="JSON lines or a JSON list in request order, containing prompt and response, prompt_ids and "
            "token_ids, messages with role and content, or the requests and answers of an OpenAI-compatible server.",
        )
        active = job_panel.is_active("replay")
        if upload is not None and upload.error is not None:
            st.error(upload.error, icon=":material/error:")
        elif upload is not None and upload.value is not None:
            path, owner = choose_tokenizer()
            if any(request.is_text for request in upload.value):
                st.caption(f":material/translate: Text is encoded with the tokenizer of {owner}.")
            if controls.primary_button(
                f"Replay {count(len(upload.value), 'request')}",
                icon=":material/replay:",
                key="replay_start",
                disabled=active,
            ):
                job_panel.start_job("replay", "Replay", replays.replay_work(upload.value, upload.name, path))
        job_panel.draw_job("replay")
        found = state().replay
        if found is None and not active:
            st.info("Upload a log and replay it to see what lookup trees would do for it.", icon=":material/replay:")
    if found is not None:
        _draw_replay(found)


def _draw_replay(found: Replayed) -> None:
    """Draw what lookup trees would have done for a log."""
    profile = session.profile()
    if profile is None:
        st.info("Speeds need a hardware profile: measure one on the Machine page.", icon=":material/timer:")
        return
    report = found.report
    replays = {"this text": report.isolated, "and earlier answers": report.shared}
    left_out = f" The last {found.left_out:,} were omitted: the log has too many tokens." if found.left_out else ""
    accuracy = (
        "Exact: the log contains the target's token ids, so every step is known."
        if found.exact
        else "An estimate: the text was tokenized again, and the original tokens may differ."
    )
    st.caption(
        f":material/receipt_long: Replayed: {escaped(found.name)}; {count(found.requests, 'request')}, "
        f"{count(report.isolated.tokens.sum(), 'token')}. {accuracy}{left_out}"
    )
    gains = {name: _gains(replay, profile) for name, replay in replays.items()}
    best = {name: replay.best_size(profile) for name, replay in replays.items()}
    reached = [gains[name][size].value for name, size in best.items()]
    cards(
        *(
            Card(
                f"Best n, {name}",
                f"{size}",
                f"{replays[name].tokens_per_step(size).value:.2f} tokens/step, {gain:.2f}× predicted",
                help="Best of the sizes tried. n is the maximum number of nodes in a tree, including the root.",
            )
            for (name, size), gain in zip(best.items(), reached, strict=True)
        )
    )
    st.plotly_chart(
        _figure(gains, best=best),
        key="replay_chart",
        alt="Speedup by tree size: "
        + ", ".join(f"{name} up to {max(each.value for each in row.values()):.2f}" for name, row in gains.items()),
    )
    st.markdown(f":material/arrow_forward: {advice(list(best.values()), reached)}")
    st.caption(f":material/memory: Speed by the current profile: {escaped(session.profile_source())}, T = 0.")
    st.subheader("Closest server settings")
    st.caption("Servers match repeated text slightly differently, so expect small deviations.")
    for name, settings in report.server_settings(profile).items():
        st.markdown(f"**{name}**")
        st.code(settings, language="bash", wrap_lines=True)


def _figure(lanes: Mapping[str, Mapping[int, Estimate]], *, best: Mapping[str, int]) -> go.Figure:
    """Draw the speedup by maximum tree size for one or two replays, with 95% bands and the best sizes marked."""
    traces: list[go.Scatter] = []
    for (name, estimates), colour, dash in zip(lanes.items(), (BLUE, RUST), ("solid", "dash"), strict=False):
        hover = f"{name}<br>n = %{{x}}<br>%{{y:.2f}}×"
        traces += estimate_traces(estimates, best[name], name, colour, dash=dash, hover=hover)
    largest = max(n for estimates in lanes.values() for n in estimates)
    return new_figure(
        *traces,
        x="maximum tree size n (log scale; diamond: best)",
        y="speedup",
        xaxis=log2_ticks(largest),
        yaxis={"rangemode": "tozero"},
    )


def _gains(replay: LookupReplay, profile: HardwareProfile) -> dict[int, Estimate]:
    """Return the speedup by tree size, with the interval of its tokens."""
    gains = {}
    for n in replay.profiled_sizes(profile):
        tokens = replay.tokens_per_step(n)
        speed = replay.predicted_speedup(n, profile)
        low, high = (None if bound is None else speed * bound / tokens.value for bound in tokens[1:])
        gains[n] = Estimate(speed, low, high)
    return gains


def advice(sizes: Sequence[int], gains: Sequence[float]) -> str:
    """Return a sentence that recommends what to do next, given the best size of each replay and its gain."""
    if max(gains) < WORTHWHILE:
        return "This text hardly repeats itself, so lookup trees gain almost nothing. Use a draft model."
    if gains[1] < WORTHWHILE * gains[0]:
        return (
            f"Decode with lookup trees of at most n = {sizes[0]} nodes: most of the gain comes from each text itself."
        )
    return (
        f"Decode with lookup trees of at most n = {sizes[1]} nodes and keep earlier answers in the index: "
        f"{gains[1]:.2f} instead of {gains[0]:.2f} times the speed of plain decoding."
    )
