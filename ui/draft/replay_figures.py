"""What a replayed log says: tokens per step over n, the best n, what another loses, settings for servers, what next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from ui import charts
from ui.cards import Card, cards
from ui.jobs.replay_job import Replayed
from ui.markdown import escaped
from ui.phrases import beside, count, interval
from ui.session import session

if TYPE_CHECKING:
    from sequoia_core import HardwareProfile
    from sequoia_core.studies.lookup_replay import Replay

WORTH = 1.1  # of a speedup, and of what earlier requests add to it: less is lost in the noise of a machine


def draw(found: Replayed) -> None:
    """Draw what lookup trees would have done on a log."""
    profile, report = session.profile(), found.report
    replays = {"own text": report.own, "earlier requests too": report.shared}
    left_out = f" The last {found.left_out:,} were left out: too many tokens before them." if found.left_out else ""
    sure = (
        "Exact: these token ids are what the target drew, so every step is known."
        if found.exact
        else "An estimate: text was encoded again, and may have been other tokens when it was written."
    )
    st.caption(
        f":material/receipt_long: Replayed: {escaped(found.name)}; {count(found.requests, 'request')}, "
        f"{count(report.own.tokens.sum(), 'token')}. {sure}{left_out}"
    )
    cards(*_cards("own text", report.own, profile), *_cards("also earlier", report.shared, profile))
    st.plotly_chart(
        charts.replay_figure(
            {name: {n: replay.tokens_per_step(n) for n in replay.sizes} for name, replay in replays.items()},
            best={name: replay.best_size(profile) for name, replay in replays.items()},
        ),
        width="stretch",
        key="replay_chart",
        alt="Tokens per step over tree size: "
        + ", ".join(f"{name} up to {each.tokens_per_step(each.sizes[-1]).value:.2f}" for name, each in replays.items()),
    )
    st.markdown(f":material/arrow_forward: {advice(replays['own text'], replays['earlier requests too'], profile)}")
    if profile is None:
        st.caption("No profile is in use, so the best n is the least with 95% of what the largest tree gains.")
    else:
        st.caption(f":material/memory: Speed by the profile in use: {escaped(session.profile_source())}, T = 0.")
    st.subheader("What a fixed n loses")
    st.dataframe(
        [row for name, replay in replays.items() for row in _rows(name, replay, profile)],
        hide_index=True,
        width="stretch",
        height="content",
        key="replay_table",
    )
    st.subheader("Nearest settings of servers")
    st.caption("Servers match text slightly differently; expect small deviations.")
    for name, settings in report.server_settings(profile).items():
        st.markdown(f"**{name}**")
        st.code(settings, language="bash", wrap_lines=True)


def _cards(words: str, replay: Replay, profile: HardwareProfile | None) -> list[Card]:
    best = replay.best_size(profile)
    tokens = replay.tokens_per_step(best)
    speed = None if profile is None else replay.predicted_speedup(best, profile)
    return [
        Card(
            f"Best n, {words}",
            f"{best}",
            f"{tokens.value:.2f} tokens/step",
            help="Of the sizes tried: the largest tree of a step, root included. Tokens per step"
            f"{interval(tokens.low, tokens.high)}, over requests.",
        ),
        Card(
            f"Speedup, {words}",
            "–" if speed is None else f"{speed:.2f}×",
            "no profile in use" if speed is None else "predicted, vs 1.00×",
            help="Tokens per step × seconds of a plain token ÷ seconds of a step, by the profile in use.",
        ),
    ]


def _rows(name: str, replay: Replay, profile: HardwareProfile | None) -> list[dict[str, str]]:
    within = replay.sizes if profile is None else replay.within(profile)
    speeds = {} if profile is None else {n: replay.predicted_speedup(n, profile) for n in within}
    rows = []
    for n in within:
        tokens = replay.tokens_per_step(n)
        row = {
            "looks through": name,
            "n": f"{n}",
            "tokens per step": f"{tokens.value:.2f}{beside(tokens.low, tokens.high)}",
        }
        if speeds:
            share = speeds[n] / max(speeds.values())
            row |= {"speedup": f"{speeds[n]:.2f}×", "speed ÷ that of the best n": f"{share:.1%}"}
        rows.append(row)
    return rows


def advice(own: Replay, shared: Replay, profile: HardwareProfile | None) -> str:
    """Say in one sentence what to do next."""
    gains = [
        replay.tokens_per_step(n).value if profile is None else replay.predicted_speedup(n, profile)
        for replay in (own, shared)
        for n in [replay.best_size(profile)]
    ]
    if max(gains) < WORTH:
        return "This text hardly repeats itself: lookup trees bring next to nothing here, so look for a draft model."
    if gains[1] < WORTH * gains[0]:
        return (
            f"Decode with lookup trees of at most n = {own.best_size(profile)} nodes: most of what there is to gain is "
            "in each request's own text."
        )
    unit = "tokens per step" if profile is None else "times the speed of plain decoding"
    return (
        f"Decode with lookup trees of at most n = {shared.best_size(profile)} nodes and keep earlier requests in the "
        f"index: {gains[1]:.2f} instead of {gains[0]:.2f} {unit}."
    )
