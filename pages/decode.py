"""Decode: see it happen, then whether the prediction held. The real pair drafts, verifies and walks the tree."""

import time
from typing import Any

import streamlit as st

from sequoia_core.design.conditions import TRAVERSAL
from sequoia_core.design.plain_trees import GUESSED_CHAIN
from ui import controls, menu, page_setup, prompts
from ui.decode import chat, expectation, live_run
from ui.jobs import decode_job, job_panel, session_jobs
from ui.jobs.jobs import Job
from ui.markdown import escaped
from ui.runs import kept_runs, runs
from ui.session import earlier_answers, model_pairs, predictions, session, tree_choice, tree_kinds
from ui.token_tree.steering import Steering

PROMPT_CHARS = 18  # of the prompt on its button
FLUSH_SEC = 0.03  # the server sends what is queued every 10 ms


def linked_run(job: Job | None) -> dict[str, Any] | None:
    """Return the run that the link names; say so where this session does not have it: after a restart, or elsewhere."""
    if job is not None and job.active:
        st.query_params["run"] = job.id
        return None
    named = st.query_params.get("run")
    if named is None:
        return None
    if named in kept_runs.every():
        return kept_runs.every()[named]
    st.query_params.pop("run")
    st.query_params.pop("step", None)
    if job is None or job.id != named:
        st.warning(
            "The run that this page showed was stopped: its server was started anew, or this is another browser tab. "
            "Decode again to see a new run.",
            icon=":material/stop_circle:",
        )
    return None


def last_prompt(job: Job | None) -> str | None:
    """Return what was decoded last in this session; None for a conversation."""
    last = session.last_run()
    if job is not None:
        return None if job.info.turns else job.info.prompt
    return None if last is None or last.get("turns") else last["prompt"]


page_setup.setup_page("Live", follows="decode")
st.title("Live")
st.caption("A small model drafts a tree of guesses, the large one checks it in one pass, the accepted path is kept.")
job = session_jobs.job("decode")
active = job is not None and job.active
linked = linked_run(job)

controls_row = st.container(horizontal=True, vertical_alignment="center", key="decode_controls")
first_words = prompts.begin("decode_prompt", first=last_prompt(job))
chatting = model_pairs.has_chat(session.pair_spec()) and st.session_state.get("ask", chat.WAYS[0]) == chat.WAYS[0]
with controls_row.popover(
    "Conversation" if chatting else f"Prompt: {escaped(first_words, PROMPT_CHARS)}", icon=":material/edit_note:"
):
    chatting = chat.chosen()
    prompting = prompts.template_arguments()
    if chatting:
        system = chat.draw_system()
    else:
        prompt = prompts.one("decode_prompt")
with controls_row.popover("Settings", icon=":material/tune:"):
    choice = tree_choice.draw()
    first, second = st.columns(2)
    temperature, top_p = controls.sampling(first, first, in_form=False)
    tokens = second.slider(
        "New tokens",
        16,
        1_024,
        128,
        16,
        key="tokens",
        bind="query-params",
        help="The run stops here, at the end-of-text token, or at the target's context limit.",
    )
    verifier = controls.verifier(
        second,
        key="verifier",
        names=(*controls.VERIFIERS, TRAVERSAL),
        bind="query-params",
        disabled=temperature == 0,
        help="Sequoia draws siblings without replacement, SpecInfer with; Top-k takes the likeliest. All preserve "
        "the target; at temperature 0 they are the same. Traversal draws as Sequoia does and verifies from the leaves "
        "upwards: more tokens per step at high temperatures, predicted as Sequoia's, so a little low.",
    )
    seed = controls.seed(
        first,
        disabled=temperature == 0,
        help="The only source of randomness: the same seed repeats the run.",
    )
    wanted = predictions.conditions(temperature, top_p, verifier)
    vector = predictions.vector_for(wanted)
    choice = tree_choice.with_earlier_answers(tree_choice.settled(choice, vector))
with controls_row:
    stepwise = st.toggle(
        "Step by step",
        key="stepwise",
        bind="query-params",
        help="The engine waits after each step until you press ▶ above the tree, and the wait counts in no time.",
    )
expected, speedup = expectation.draw(choice, vector, wanted, tokens)

blocked = active or choice.tree is None or prompting is None
turns, problem = chat.sent(system) if chatting else ((), None)
with controls_row:
    if chatting:
        start = bool(turns)
    else:
        draw = st.button if predictions.lacks_measurement() else controls.primary_button
        guessed = choice.origin == tree_kinds.GUESS
        start = draw(
            f"Decode with a chain of {GUESSED_CHAIN}" if guessed else "Start",
            icon=":material/play_arrow:",
            key="decode_start",
            disabled=blocked,
        )
        problem = prompts.problem(prompt) if start else None
    if start and problem is None and prompting is not None and choice.tree is not None:
        request = runs.DecodeRequest(
            turns[-1].text if chatting else prompt,
            choice.tree,
            choice.origin,
            temperature=temperature,
            top_p=top_p,
            max_new_tokens=tokens,
            verifier=tree_kinds.verifier(choice.tree, verifier),
            seed=seed,
            models=session.pair_spec(),
            expected_tokens=expected,
            predicted_speedup=None if speedup is None else speedup.value,
            predicted_interval=None if speedup is None else speedup.interval,
            steering=Steering(stepwise=stepwise),
            turns=turns,
            prompting=prompting,
            earlier=earlier_answers.index(),
        )
        job_panel.start("decode", "Decoding", decode_job.decode_work(request), info=request)
        if chatting:  # still here: the engine was busy
            chat.give_back(turns[-1].text)
    if st.button("Stop", icon=":material/stop:", key="decode_stop", disabled=not active) and job is not None:
        job.cancel()
    if chatting:
        chat.draw_new(disabled=active)
if problem is not None:
    st.error(problem, icon=":material/error:")
if chatting:
    chat.draw_box(disabled=blocked)

if linked is not None:
    st.fragment(live_run.draw_linked)(linked)
elif job is None:
    st.fragment(live_run.draw_last_or_recorded)()
else:
    every = live_run.poll_sec(job)
    st.fragment(live_run.draw_job, run_every=every if active else None)(active, every)
    # A last poll may start right after this run and would drop what this one has not sent yet, remounting the tree.
    time.sleep(FLUSH_SEC)
if chatting:
    chat.draw_conversation()
    chat.draw_read()
menu.draw_next("Live")
