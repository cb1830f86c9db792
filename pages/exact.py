"""The page *Is it exact?*: the losslessness check, each verifier's guarantees, and the recorded comparison.

A page of the optional package `evaluation`.
"""

import streamlit as st

from ui import controls, menu, page_setup, prompts
from ui.cards import draw_error
from ui.exact import form, guarantees, views
from ui.exact.measurements import lossless_work
from ui.jobs import job_panel
from ui.session import session

SAMPLE_COUNTS = (200, 500, 1000, 2000, 4000)


def verifiers_section() -> None:
    """Show the recorded comparison of all verifiers on one tree."""
    st.caption("Which verifier yields more tokens? Each decodes the same prompts with the same tree.")
    record = views.show_result("comparison")
    if record is not None:
        views.show_comparison(record)


def _draw_form() -> None:
    label = f"Run this check on the {session.pair_name()}"
    with st.expander(label, icon=":material/play_circle:", key="robustness_losslessness_settings"):
        prompt = prompts.prompt_control("robustness_prompt")
        temperature, top_p = controls.sampling_controls(*st.columns(2), apart="robustness_losslessness_", default=1.0)
        left, middle, right = st.columns(3, vertical_alignment="bottom")
        verifier = controls.verifier_control(
            left,
            key="robustness_verifier",
            bind="query-params",
            help="All three are lossless; they differ in how they draw children. SpecInfer 5 × 8, lookup and "
            "hybrid trees always use their own verifier.",
        )
        samples = middle.select_slider(
            "Samples",
            SAMPLE_COUNTS,
            1000,
            key="robustness_samples",
            bind="query-params",
            help="Number of continuations to decode. More samples detect smaller errors but take longer.",
        )
        seed = controls.seed_control(right, help="A different seed draws different samples.")
        kind = st.segmented_control(
            "Tree",
            list(form.CHECKED_TREES),
            default="small",
            required=True,
            key="robustness_losslessness_tree",
            bind="query-params",
            format_func=form.CHECKED_TREES.__getitem__,
            help="The tree in use is the one set on the Tree page.",
        )
        blocked = controls.warn_without_draft("This evidence") or job_panel.is_active(form.JOB)
        if controls.primary_button(
            "Start", icon=":material/play_arrow:", key="robustness_losslessness_start", disabled=blocked
        ):
            if problem := prompts.prompt_problem(prompt):
                st.error(problem, icon=":material/error:")
                return
            try:
                subject = form.check_subject(kind, prompt, (temperature, top_p))
            except ValueError as error:
                draw_error(error)
                return
            work = lossless_work(subject, verifier=verifier, samples=samples, seed=seed)
            job_panel.start_job(form.JOB, "Checking losslessness", work)


def losslessness_section() -> None:
    """Offer the losslessness check and show its latest result."""
    st.caption(
        "Does the output follow the target's distribution exactly? Decode one prompt many times and count the results."
    )
    _draw_form()
    record = views.show_result("losslessness")
    if record is not None:
        views.show_losslessness(record)


page_setup.setup_page("Is it exact?")
st.title("Is it exact?")
st.markdown(
    "**Yes.** At temperature 0, the text is what the large model alone would write, word for word. Above 0, every text "
    "has the same probability as without a draft: a rejected guess is replaced by a draw from the target's residual "
    "distribution. The check below tests this. In bfloat16, near-ties may resolve differently because of rounding."
)
controls.draw_tabs(
    {
        "Losslessness": losslessness_section,
        "Guarantees": guarantees.guarantees_section,
        "Verifiers": verifiers_section,
    },
    key="robustness_section",
)
menu.draw_next_link("Is it exact?")
