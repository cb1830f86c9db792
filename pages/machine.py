"""Machine: what do drafting and verifying cost here, and which tree shape does that make the fastest?"""

import streamlit as st

from sequoia_core.design.break_even import step_limit
from ui import controls, menu, page_setup
from ui.cards import Card, cards
from ui.machine import costs, drafts, sentences, source, surface, why
from ui.markdown import escaped
from ui.phrases import shape
from ui.session import core_cache, predictions, session

page_setup.setup_page("Machine")
st.title("Machine")
st.caption("What do drafting and verifying cost on this machine, and which tree shape does that make the fastest?")
left, right = st.columns([3, 2])
with right:
    source.section()
profile, vector = session.profile(), session.acceptance()
if profile is None:
    left.info(
        "No hardware profile yet. Choose Measure to time the model pair here (a minute on a laptop), or upload one.",
        icon=":material/timer:",
    )
    menu.draw_next("Machine")
    st.stop()
foreign = bool(predictions.faults())
table, best, _ = core_cache.planned(vector, profile)
cost = step_limit(best, profile)

with left:
    if predictions.lacks_measurement():
        st.caption(
            ":material/info: Times or acceptance were measured for another pair: nothing on this page is predicted for "
            f"the {escaped(session.pair_name())}."
        )
    cards(
        Card(
            "Best predicted speedup",
            f"{best.predicted_speedup:.2f}×",
            f"{best.predicted_speedup - 1:+.2f}× vs 1.00×",
            signed=True,
            help="Tokens per step × seconds of a plain token ÷ seconds of a step, the largest over all shapes.",
        ),
        Card(
            "Best shape",
            shape(best.size, best.depth),
            f"{best.expected_tokens:.2f} tokens per step",
            help="Tree size and depth at the optimum; the paper writes the depth as levels, D = d + 1.",
        ),
    )
    surface.section(vector, profile)
    st.markdown(sentences.limit_sentence(best, cost))
    with st.container(horizontal=True):
        surface.take(best.size, best.depth, key="hardware_use", label="Use the best shape")
        controls.download(
            "Download profile",
            profile.to_bytes(),
            "profile.json",
            key="hardware_download",
            help="Sizes, times, raw samples and what they were measured on.",
        )
    cards(
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
    st.subheader("When would it pay, and what would help?")
    even, gains = core_cache.break_even(vector, profile)
    st.dataframe(sentences.break_even_rows(even, max(best.size, 2)), hide_index=True, width="stretch")
    st.markdown(sentences.gains_sentence(gains))
    why.section(vector, profile, foreign=foreign)
with right:
    source.in_use(profile)
    if table.max_size < min(profile.max_size, core_cache.USUAL_SIZE):
        st.caption(f":material/info: {controls.TOO_LONG}")
    costs.section(profile, best)
drafts.section(vector, profile)
menu.draw_next("Machine")
