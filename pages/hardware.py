"""Hardware: what do drafting and verifying cost here, and which tree shape does that make the fastest?"""

import streamlit as st

from sequoia_core.design.step_limit import step_limit
from ui import controls, core_cache, page_setup, predictions, scenarios, session
from ui.cards import Card, cards
from ui.hardware import costs, drafts, sentences, source, surface, why
from ui.literal import plain

page_setup.setup_page("Hardware")
st.title("Hardware")
st.caption("What do drafting and verifying cost on this machine, and which tree shape does that make the fastest?")
source.device_line()
source.section()

profile, vector = session.profile(), session.acceptance()
if profile is None:
    st.info(
        "No hardware profile yet. Choose Measure to time the model pair here (a minute on a laptop), or upload one.",
        icon=":material/timer:",
    )
    st.stop()
st.markdown(
    f":material/label: **In use:** {plain(session.profile_source())} &nbsp;·&nbsp; "
    f"acceptance {plain(session.acceptance_source())}"
)
if profile.meta.get("passes_by"):
    st.caption(plain(f"Target passes in {profile.dtype} by {str(profile.meta['passes_by'])[:120]}."))

scenarios.banner()
foreign = predictions.faults()
if foreign and scenarios.in_use() is None:
    st.warning(
        f"A what-if, not a prediction for the {session.pair_name()} on this machine: {plain('; '.join(foreign))}. "
        "Measure acceptance and passes here before believing a speedup.",
        icon=":material/warning:",
    )
table, best = core_cache.planned(vector, profile)
if table.max_size < min(profile.max_size, core_cache.MAX_SIZE):
    st.caption(f":material/info: {controls.TOO_LONG}")
cost = step_limit(best, profile)
cards(
    Card(
        "Supposed speedup" if foreign else "Best predicted speedup",
        f"{best.predicted_speedup:.2f}×",
        f"{best.predicted_speedup - 1:+.2f}× vs 1.00×",
        signed=True,
        help="Tokens per step × seconds of a plain token ÷ seconds of a step, the largest over all shapes.",
    ),
    Card(
        "Best shape",
        f"n = {best.size}, d = {best.depth}" if best.size < 100 else f"n {best.size}, d {best.depth}",
        f"{best.expected_tokens:.2f} tokens per step",
        help="Tree size and depth at the optimum; the paper writes the depth as levels, D = d + 1.",
    ),
    Card(
        "Draft cost c",
        f"{profile.c:.3f}",
        f"{sentences.time_of(profile.draft_sec)} ÷ {sentences.time_of(profile.verify_sec[0])}",
        help="One draft pass ÷ one target pass over one token. The paper's A100: about 0.02.",
    ),
    Card(
        f"Verification t({best.size})",
        f"{float(profile.t(best.size)):.2f}",
        f"vs {best.size}.00 one by one",
        help="Time of one target pass over the whole tree ÷ over one token. The paper's A100: t(128) ≈ 1.05.",
    ),
)

left, right = st.columns([2, 3])
with left:
    costs.section(profile, best)
with right:
    surface.section(vector, profile, foreign=bool(foreign))
    st.markdown(sentences.limit_sentence(best, cost))
    with st.container(horizontal=True):
        surface.take(best.size, best.depth, key="hardware_use", label="Use the best shape")
        st.download_button(
            "Download profile",
            profile.to_bytes(),
            "profile.json",
            "application/json",
            key="hardware_download",
            icon=":material/download:",
            on_click="ignore",
            help="Sizes, times, raw samples and what they were measured on.",
        )
    st.subheader("When would it pay, and what would help?")
    even, gains = core_cache.break_even(vector, profile)
    st.dataframe(sentences.break_even_rows(even, max(best.size, 2)), hide_index=True, width="stretch")
    st.markdown(sentences.gains_sentence(gains))
    why.section(vector, profile, foreign=bool(foreign))
drafts.section(vector, profile)
