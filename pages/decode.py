"""The Live page: decoding step by step with the model pair, compared with the prediction."""

import time
from typing import Any

import streamlit as st

from sequoia_core.acceptance.conditions import TRAVERSAL
from sequoia_core.files.extras import has
from sequoia_core.trees.plain import DEFAULT_CHAIN_LENGTH
from ui import controls, menu, page_setup, prompts
from ui.decode import chat, expectation, live_run
from ui.jobs import decode_job, job_panel, session_jobs
from ui.jobs.jobs import Job
from ui.markdown import escaped
from ui.runs import available_runs, runs
from ui.session import predictions, session, tree_choice, tree_kinds
from ui.session.state import state
from ui.token_tree.steering import Steering

PROMPT_CHARS = 18  # maximum length of the prompt on its button, in characters
FLUSH_SEC = 0.03  # the server sends queued messages every 10 ms


def linked_run(job: Job | None) -> dict[str, Any] | None:
    """Return the run that the URL names; if this session does not have it, show a warning."""
    if job is not None and (job.active or st.query_params.get("run") == job.id):
        st.query_params["run"] = job.result["id"] if job.result else job.id
    named = st.query_params.get("run")
    if named is None or (job is not None and named in (job.id, (job.result or {}).get("id"))):
        return None
    run = available_runs.find_run(named)
    if run is None:
        st.query_params.pop("run")
        st.query_params.pop("step", None)
        st.warning(
            "The link's run is not kept on this machine: it was deleted, or the server stopped while it was decoding. "
            "Decode again to see a new run.",
            icon=":material/stop_circle:",
        )
    return run


def last_prompt(job: Job | None) -> str | None:
    """Return the prompt of this session's last run; None for a conversation."""
    last = state().last_run
    if job is not None:
        return None if job.info.turns else job.info.prompt
    return None if last is None or last.get("turns") else last["prompt"]


page_setup.setup_page("Live", follows="decode")
job = session_jobs.find_job("decode")
active = job is not None and job.active
linked = linked_run(job)

controls_row = st.container(horizontal=True, vertical_alignment="center", key="decode_controls")
controls_row.title("Live", width="content")
first_words = prompts.initialize_prompt("decode_prompt", first=last_prompt(job))
chatting = session.has_chat() and st.session_state.get("ask", chat.CHAT_MODE) == chat.CHAT_MODE
with controls_row.popover(
    "Conversation" if chatting else f"Prompt: {escaped(first_words, PROMPT_CHARS)}", icon=":material/edit_note:"
):
    chatting = chat.chat_mode_picker()
    prompting = prompts.template_arguments_control()
    if chatting:
        system = chat.system_prompt()
    else:
        prompt = prompts.prompt_control("decode_prompt")
with controls_row.popover("Settings", icon=":material/tune:"):
    choice = tree_choice.tree_control()
    first, second = st.columns(2)
    temperature, top_p = session.sampling()
    tokens = second.slider(
        "New tokens",
        16,
        1_024,
        128,
        16,
        key="tokens",
        bind="query-params",
        help="The run stops after this many tokens, at the end of text, or at the target's context limit.",
    )
    verifier = controls.verifier_control(
        second,
        key="verifier",
        names=(*controls.VERIFIER_CHOICES, TRAVERSAL),
        bind="query-params",
        disabled=temperature == 0,
        help="Sequoia draws siblings without replacement, SpecInfer with replacement; Top-k takes the most likely "
        "ones. All preserve the target's distribution and behave the same at temperature 0. Traversal draws like "
        "Sequoia and verifies from the leaves upwards: it yields more tokens per step at high temperatures, which the "
        "prediction ignores.",
    )
    seed = controls.seed_control(
        first,
        disabled=temperature == 0,
        help="The same seed reproduces the run.",
    )
    wanted = predictions.conditions(temperature, top_p, verifier)
    vector = predictions.vector_for(wanted)
    choice = tree_choice.earlier_answers_control(tree_choice.resolve_choice(choice, vector))
with controls_row:
    stepwise = st.toggle(
        "Step by step",
        key="stepwise",
        bind="query-params",
        help="The engine waits after each step until you press ▶ above the tree. The wait is not timed.",
    )
warnings, stage, notes = st.container(), st.container(), st.container()
expected, speedup = expectation.expectation_section(choice, vector, wanted, tokens, warnings, notes)

blocked = active or choice.tree is None or prompting is None
turns, problem = chat.sent_turns(system) if chatting else ((), None)
with controls_row:
    if chatting:
        start = bool(turns)
    else:
        draw = st.button if predictions.lacks_measurement() else controls.primary_button
        guessed = choice.origin == tree_kinds.GUESSED_TREE
        start = draw(
            f"Decode with a chain of {DEFAULT_CHAIN_LENGTH}" if guessed else "Start",
            icon=":material/play_arrow:",
            key="decode_start",
            disabled=blocked,
        )
        problem = prompts.prompt_problem(prompt) if start else None
    if start and problem is None and prompting is not None and choice.tree is not None:
        request = runs.DecodeRequest(
            turns[-1].text if chatting else prompt,
            choice.tree,
            choice.origin,
            temperature=temperature,
            top_p=top_p,
            max_new_tokens=tokens,
            verifier=tree_kinds.exact_verifier(choice.tree, verifier),
            seed=seed,
            models=session.pair_spec(),
            expected_tokens=expected,
            predicted_speedup=None if speedup is None else speedup.value,
            predicted_interval=None if speedup is None else speedup.interval,
            steering=Steering(stepwise=stepwise),
            turns=turns,
            prompting=prompting,
            earlier=tree_choice.text_index() if has("dynamic_trees") else None,
        )
        job_panel.start_job("decode", "Decoding", decode_job.decode_work(request), info=request)
        if chatting:  # reached only if the engine is busy
            chat.restore_message(turns[-1].text)
    if st.button("Stop", icon=":material/stop:", key="decode_stop", disabled=not active) and job is not None:
        job.cancel()
    if chatting:
        chat.new_conversation_button(disabled=active)
if problem is not None:
    warnings.error(problem, icon=":material/error:")
if chatting:
    with warnings:
        chat.message_box(disabled=blocked)

with stage:
    if linked is not None:
        st.fragment(live_run.draw_finished)(linked, "Run", available_runs.run_title(linked))
    elif job is None:
        st.fragment(live_run.draw_last_or_recorded)()
    else:
        every = live_run.poll_sec(job)
        st.fragment(live_run.draw_job, run_every=every if active else None)(active, every)
        # Otherwise the next poll may drop messages of this run that were not sent yet, which remounts the tree.
        time.sleep(FLUSH_SEC)
if chatting:
    chat.draw_conversation()
    chat.draw_rendered_prompt()
menu.draw_next_link("Live")
