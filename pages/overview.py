"""Overview: where the user's results stand, and one button that runs the whole chain on the model pair."""

import streamlit as st

from ui import controls, menu, page_setup
from ui.cards import Card, cards, number, short_reason
from ui.jobs import job_panel, session_jobs
from ui.markdown import escaped
from ui.overview import chain, tour
from ui.phrases import count, shape
from ui.runs import kept_runs, runs
from ui.session import core_cache, predictions, session, tree_in_use

DOORS = (
    ("decode", "Watch one", ":material/play_circle:", "Decode your prompt and see why each guess is kept."),
    ("draft", "My own models", ":material/checklist:", "How often is your draft right, and which tree is best?"),
    ("server", "My server", ":material/dns:", "Which draft length pays on it, and what is wrong?"),
)


def standing() -> None:
    """Draw one card per question: the key figure in use, and the page that answers it below."""
    vector, best, tree, last = session.acceptance(), tree_in_use.best(), tree_in_use.current(), session.last_run()
    unmeasured = predictions.vector_faults()
    missing = predictions.faults()
    summary = None if last is None or not predictions.is_of_pair_in_use(last) else runs.summary_of(last)
    places = cards(
        Card(
            "First guess accepted",
            "–" if unmeasured else f"{vector.probs[0]:.0%}",
            "not measured on this pair" if unmeasured else escaped(vector.holds_for.sampling),
            help="p1, the chance that the draft's first guess is the one accepted. "
            + (
                f"Not known here: {escaped('; '.join(unmeasured))}."
                if unmeasured
                else f"{escaped(session.acceptance_source())}."
            ),
        ),
        Card(
            "Expected tokens",
            "–" if unmeasured else f"{core_cache.tokens_per_step(vector, tree).value:.2f}",
            shape(tree.size, tree.depth),
            help=f"Per target pass, with the {escaped(tree_in_use.source())}. Autoregressive decoding yields 1.00.",
        ),
        Card(
            "Predicted speedup",
            "–" if best is None or missing else f"{best.predicted_speedup:.2f}×",
            short_reason("; ".join(missing)) if best is None or missing else f"best: {shape(best.size, best.depth)}",
            help="Against autoregressive decoding of the same target (1.00×). "
            + (
                f"Not known here: {escaped('; '.join(missing))}."
                if missing
                else f"{escaped(session.profile_source())}."
            ),
        ),
        Card(
            "Measured speedup",
            number(None if summary is None else summary.speedup, "{:.2f}×"),
            "nothing decoded yet" if summary is None else f"over {count(summary.tokens, 'token')}",
            help="Tokens per second with the tree ÷ without it, from the last run of this session.",
        ),
    )
    controls.page_link(places[0], "draft", "Is the draft right?", ":material/checklist:")
    controls.page_link(places[1], "tree", "Which tree is best?", ":material/account_tree:")
    controls.page_link(places[2], "machine", "What pays here?", ":material/memory:")
    controls.page_link(places[3], "decode", "Does the prediction hold?", ":material/play_circle:")


def doors() -> None:
    """Offer the three ways on from here."""
    places = st.columns(3)
    for place, page, title, icon, words in zip(places, *zip(*DOORS, strict=True), strict=True):
        with place.container(border=True, height="stretch"):
            controls.page_link(st.container(), page, title, icon)
            st.caption(words)


page_setup.setup_page("Start", follows="chain")
job, running = session_jobs.job("chain"), job_panel.is_active("chain")
st.title("The same text in fewer passes")
if job is None:
    tour.draw()
    doors()
lacks_draft = controls.lacks_draft("The whole chain")
if not running and controls.primary_button(
    f"Run the whole chain on the {session.pair_name()}",
    icon=":material/rocket_launch:",
    key="chain_start",
    disabled=lacks_draft,
    help="Profiles this machine, measures acceptance until the best tree is settled (for at most 15 seconds), and "
    "decodes 128 tokens with that tree and without it. Takes about half a minute on two cores.",
):
    chain.start()
if job is not None:
    st.fragment(chain.draw_progress, run_every=job_panel.POLL_SEC if running else None)(running)
    if job.state == "done":
        kept_runs.say_made_with(job.result.run)
        chain.draw_result(job.result.run)
st.subheader("Where you stand")
standing()
menu.draw_next("Start")
