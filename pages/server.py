"""Server: which draft length pays on a vLLM, SGLang or llama.cpp server, by what it counted? No model is loaded."""

import streamlit as st

from sequoia_core.servers.diagnosis import diagnose
from sequoia_core.servers.flags import NGRAM, assumed_method, method_of
from sequoia_core.servers.plan import at_once, plan_server
from ui import menu, page_setup
from ui.markdown import escaped
from ui.server import costs, figures, reading, verdict

page_setup.setup_page("My server")
st.title("My server")
st.caption(
    "Is speculation on your vLLM, SGLang or llama.cpp server healthy, and which draft length pays? Its counts tell."
)
answer = st.container()  # before what it is read from: on a phone the first that is seen
found = reading.section()
pictures, untold_place = st.container(), st.container()
with untold_place:
    missing = reading.ask_missing()
if found is None:
    answer.info("Bring a reading of your server: what to set appears here.", icon=":material/dns:")
    menu.draw_next("My server")
    st.stop()
try:
    counts = reading.counts(found, missing.engine, missing.model, missing.rates)
    earlier = reading.earlier(found, missing.engine, missing.model)
except ValueError as error:
    answer.error(escaped(str(error)), icon=":material/error:")
    menu.draw_next("My server")
    st.stop()
try:
    chains = reading.chains(counts, found, missing.engine, missing.model, missing.rates, missing.new_tokens)
except ValueError as error:
    with answer:
        verdict.card(diagnose(counts, earlier), counts)
        if counts.drafts != 0:
            figures.unplanned(counts, str(error))
    menu.draw_next("My server")
    st.stop()
guess = method_of(counts.drafter) or assumed_method(chains.drafted_share)
method = missing.method or guess
free = method == NGRAM
st.subheader("What a step costs")
batches = costs.batches()
known = costs.section(chains, drafts_free=free, is_example=found.is_example)
plan = None
if known is not None:
    try:
        plan = plan_server(chains, known, batches)
    except ValueError as error:
        st.error(escaped(str(error)), icon=":material/error:")
with answer:
    verdict.card(diagnose(counts, earlier, costs=known if plan is not None else None), counts)
    if plan is not None:
        lengths = ", ".join(f"K = {k} for {at_once(batch)}" for batch, k in plan.best.items())
        st.markdown(f":material/tune: **Best: {lengths}**{'' if all(plan.best.values()) else ' (0: off)'}.")
    figures.key_figures(chains, plan)
left, right = pictures.columns(2)
figures.survival(left, chains, is_example=found.is_example)
figures.speeds(right, plan, chains.longest)
if plan is not None:
    words = f"By {escaped(plan.source)}: **{escaped(plan.sentence(chains.longest))}**"
    st.markdown(f":material/arrow_forward: {words}")
    figures.settings(plan, chains, method=method, drafter=counts.drafter if missing.method is None else "")
for note in chains.notes if plan is None else plan.notes:
    st.caption(f":material/info: {escaped(note)}")
figures.saving(chains)
menu.draw_next("My server")
