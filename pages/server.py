"""The My server page: the best draft length for a vLLM, SGLang or llama.cpp server, computed without loading a model.

Requires the optional package `servers`.
"""

import streamlit as st

from sequoia_extras.servers.diagnosis import diagnose
from sequoia_extras.servers.flags import NGRAM, assumed_method, method_from_name
from sequoia_extras.servers.request_spread import exclude_collapse
from sequoia_extras.servers.speeds import find_speeds
from ui import menu, page_setup
from ui.markdown import escaped
from ui.server import comparison, costs, figures, reading, verdict


def draw_page() -> None:
    """Draw the page's controls and, as far as the reading allows, its answer and figures."""
    answer = st.container()  # placed first so that a phone shows it without scrolling
    metrics = reading.reading_section()
    pictures = st.container()
    missing = reading.ask_missing()
    if metrics is None:
        answer.info("Read your server's metrics to see the recommended settings here.", icon=":material/dns:")
        return
    try:
        counts = reading.cached_counts(metrics, missing.options)
        earlier = reading.earlier_counts(metrics, missing.options)
    except ValueError as error:
        answer.error(escaped(str(error)), icon=":material/error:")
        return
    try:
        chains = reading.cached_chains(counts, metrics, missing)
    except ValueError as error:
        with answer:
            verdict.draw_verdict(diagnose(counts, earlier), counts)
            if counts.drafts != 0:
                figures.draw_unplanned(counts, str(error))
        comparison.draw_comparison(counts)
        return
    guess = method_from_name(counts.drafter) or assumed_method(chains.drafted_share)
    method = missing.method or guess
    with pictures:
        plan = costs.plan_section(chains, drafts_free=method == NGRAM)
        survival, speed = st.columns(2)
    with answer:
        speeds = find_speeds(exclude_collapse(counts), costs=None if plan.costs.assumed else plan.costs)
        verdict.draw_verdict(diagnose(counts, earlier, speeds), counts)
        st.markdown(f":material/tune: {escaped(plan.sentence(chains.current))} Costs: {escaped(plan.costs.source)}.")
        figures.draw_key_figures(chains)
    figures.draw_survival(survival, chains, is_example=metrics.is_example)
    figures.draw_speeds(speed, plan, chains.current)
    figures.draw_settings(plan, chains, method=method, drafter=counts.drafter if missing.method is None else "")
    for note in plan.notes:
        st.caption(f":material/info: {escaped(note)}")
    if chains.fitted is None:
        figures.draw_save_button(chains)
    comparison.draw_comparison(counts, chains, costs.timed_rates(plan, chains))


page_setup.setup_page("My server")
st.title("My server")
st.caption(
    "Does speculation work on your vLLM, SGLang or llama.cpp server? Its metrics show which draft length is best."
)
draw_page()
menu.draw_next_link("My server")
