"""Is it exact? Losslessness tested, what verifiers promise, which of them wins, and one vector tested by depth."""

from functools import partial
from itertools import product

import streamlit as st

from ui import controls, menu, page_setup, prompts
from ui.controls import VERIFIERS
from ui.exact import current_result, dynamic_trees, form, guarantees, views
from ui.exact.measurements import assumption_work, compare_work, lossless_work
from ui.markdown import escaped
from ui.verifier_names import BESIDE

TEMPERATURES = (0.0, 0.2, 0.3, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0)
TOP_PS = (1.0, 0.95, 0.9, 0.8, 0.7)  # below 1 as the Sequoia paper has them
SAMPLES = (200, 500, 1000, 2000, 4000)


def verifiers_section() -> None:
    """Compare the verifiers on one tree over temperatures."""
    st.caption("Which verifier yields more? The same tree and prompts, decoded for real with each.")
    with form.folded("comparison", "comparison"), st.form("robustness_compare", border=False):
        left, right = st.columns([2, 1])
        temperatures = left.pills(
            "Temperatures",
            TEMPERATURES,
            selection_mode="multi",
            default=[0.0, 0.6, 1.0, 1.5],
            key="robustness_temperatures",
            format_func=lambda value: f"{value:g}",
            bind="query-params",
            help="Of the target. At 0 every verifier is the same greedy one.",
        )
        top_ps = right.pills(
            "Top-p",
            TOP_PS,
            selection_mode="multi",
            default=[1.0],
            key="robustness_top_ps",
            format_func=lambda value: f"{value:g}",
            bind="query-params",
            help="Nucleus kept of the target's distribution, crossed with the temperatures; 1 keeps everything.",
        )
        texts, tokens = form.text_controls("comparison", 6)
        left, right = st.columns(2)
        with left:
            kind = form.tree_control("comparison", ["shape", "use"])
        with right:
            beside = form.beside_control("comparison")
        if form.start_button("comparison"):
            try:
                if not temperatures or not top_ps:
                    raise ValueError("settings: found an empty list, expected at least one temperature and one top-p")
                subject = form.subject(kind, texts, tokens, samplings=product(temperatures, (*top_ps, 1.0)))
            except ValueError as error:
                st.error(f"{escaped(str(error))}.", icon=":material/error:")
            else:
                work = compare_work(subject, temperatures, top_ps, beside)
                form.start("comparison", "Comparing verifiers", work)
    record = current_result.result("comparison")
    if record is not None:
        views.show_comparison(record)


def losslessness_section() -> None:
    """Decode one prompt many times and test what was written against the target's own odds."""
    st.caption("Is the output still exactly the target's? Decode one prompt many times and count what was written.")
    with form.folded("losslessness", "check"), st.form("robustness_lossless", border=False):
        left, right = st.columns(2)
        picked = prompts.pick_in_form(left, key="robustness_prompt")
        verifier = right.segmented_control(
            "Verifier",
            list(VERIFIERS),
            default="sequoia",
            required=True,
            key="robustness_verifier",
            format_func=VERIFIERS.__getitem__,
            bind="query-params",
            help="All three are lossless, each with the way it draws the children. SpecInfer 5 × 8, lookup and "
            "hybrid trees take their own.",
        )
        prompt = prompts.own_in_form(picked, key="robustness_losslessness_own")
        temperature, top_p = form.sampling_controls("losslessness", 1.0)
        left, right = st.columns(2, vertical_alignment="bottom")
        samples = left.select_slider(
            "Samples",
            SAMPLES,
            1000,
            key="robustness_samples",
            bind="query-params",
            help="Continuations decoded. More of them find smaller errors, and take longer.",
        )
        seed = right.number_input(
            "Seed", 0, 2**31 - 1, 0, key="robustness_seed", help="Another seed draws other samples."
        )
        kind = form.tree_control("losslessness", ["small", "use", *BESIDE])
        if form.start_button("losslessness"):
            try:
                settings = temperature, top_p
                subject = form.subject(kind, [prompt] if prompt.strip() else [], samplings=[settings])
            except ValueError as error:
                st.error(f"{escaped(str(error))}.", icon=":material/error:")
            else:
                work = lossless_work(
                    subject, temperature=temperature, top_p=top_p, verifier=verifier, samples=samples, seed=int(seed),
                    kind=kind if kind in BESIDE else "",
                )  # fmt: skip
                form.start("losslessness", "Checking losslessness", work)
    record = current_result.result("losslessness")
    if record is not None:
        views.show_losslessness(record)


def assumption_section() -> None:
    """Test the one vector for all levels: by depth, by confidence, and against real decoding."""
    st.caption("Does one acceptance vector, measured beforehand, really describe every level of the tree?")
    with form.folded("assumption", "test"), st.form("robustness_assume", border=False):
        temperature, top_p = form.sampling_controls("assumption", 0.6)
        texts, tokens = form.text_controls("assumption", 8)
        kind = form.tree_control("assumption", ["shape", "use"])
        if form.start_button("assumption"):
            try:
                subject = form.subject(kind, texts, tokens, least=4)
            except ValueError as error:
                st.error(f"{escaped(str(error))}.", icon=":material/error:")
            else:
                work = assumption_work(subject, temperature=temperature, top_p=top_p)
                form.start("assumption", "Testing the vector", work)
    record = current_result.result("assumption")
    if record is not None:
        views.show_assumption(record)


page_setup.setup_page("Is it exact?")
st.title("Is it exact?")
st.markdown(
    "**Yes.** At temperature 0 the text is what the large model writes alone, word for word. Above 0 every text has "
    "the odds that it has there: a refused guess is replaced by a draw from what the large model still owes. Tested "
    "below; in bfloat16 near ties may differ by rounding."
)
parts = {
    "Losslessness": losslessness_section,
    "Guarantees": guarantees.section,
    "Verifiers": verifiers_section,
    "Assumption": assumption_section,
}
if (dynamic := dynamic_trees.record()) is not None:
    parts["Dynamic trees"] = partial(dynamic_trees.section, dynamic)
controls.sections(parts, key="robustness_section")
menu.draw_next("Is it exact?")
