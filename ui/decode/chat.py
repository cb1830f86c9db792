"""Chat on the live page: a system prompt, a box to write in, the conversation so far, and what the model read."""

from collections.abc import Sequence

import streamlit as st

from sequoia_core.models.chat import Turn
from ui import controls, prompts
from ui.jobs import conversation, session_jobs
from ui.jobs.conversation import CUT, Exchange
from ui.markdown import escaped
from ui.session import model_pairs, session
from ui.session.state import get, put

WAYS = ("Chat", "Plain text")
LINE_END = "↵"  # seen, because st.code drops empty lines at the end, and templates end with one
SHOWN = 2  # exchanges, with the one that is being answered; earlier ones fold away, or the run would move out of sight


def chosen() -> bool:
    """Draw the choice between chat and plain text where the target has a chat template -> whether it is chat."""
    if conversation.drop_of_another_pair():
        st.info("The conversation was dropped: it was with another pair of models.", icon=":material/forum:")
    if not model_pairs.has_chat(session.pair_spec()):
        return False
    chat = controls.source_picker("How to ask", WAYS, key="ask") == WAYS[0]
    if not chat:
        st.caption("One prompt by itself: the chat template makes it the only turn, a user's.")
    return chat


def draw_system() -> str:
    """Draw the system prompt -> it."""
    return st.text_area(
        "System prompt (optional)",
        key="chat_system",
        height=68,
        persist_state="session",
        help="Goes before the conversation, in every run from the next one on. Some templates refuse one.",
    )


def draw_conversation() -> None:
    """Draw what was said so far."""
    job = session_jobs.job("decode")
    asking = job is not None and job.active and bool(job.info.turns)
    exchanges = conversation.current().exchanges
    if not exchanges and not asking:
        st.caption("Nothing was said yet. Each answer is a run: it grows step by step above, then stands here.")
        return
    earlier = max(len(exchanges) + asking - SHOWN, 0)
    if earlier:
        with st.expander(f"Earlier messages: {2 * earlier}", icon=":material/history:", key="chat_earlier"):
            _draw(exchanges[:earlier])
    _draw(exchanges[earlier:])
    if job is not None and asking:
        _message("user", job.info.turns[-1].text)
        with st.chat_message("assistant"):
            st.caption("Decoding: the answer grows above.")


def _draw(exchanges: Sequence[Exchange]) -> None:
    for said in exchanges:
        _message("user", said.asked)
        _message("assistant", said.answer, CUT.get(said.cut, ""))


def _message(role: str, text: str, note: str = "") -> None:
    with st.chat_message(role):
        if text:
            st.text(text)
        if note or not text:
            st.caption(note or "Ended without a word.")


def draw_read() -> None:
    """Draw what the model read last, and what is to be said of it."""
    run = conversation.last_read()
    if run is None:
        return
    for remark in run["remarks"]:
        st.warning(escaped(remark), icon=":material/warning:")
    with st.expander("What the model read", icon=":material/code:", key="chat_read"):
        st.caption(
            f"The last answer's whole prompt, {run['prompt_tokens']:,} tokens, as the chat template wrote it: special "
            f"tokens and all, and nothing was added. {LINE_END} stands where a line ends."
        )
        st.code(run["prompt"].replace("\n", f"{LINE_END}\n"), language=None, wrap_lines=True)


def sent(system: str) -> tuple[tuple[Turn, ...], str | None]:
    """Return the conversation with the message just sent, or why that cannot be; nothing where none was sent."""
    message = get("chat_sent")
    put("chat_sent", None)
    if message is None:
        return (), None
    problem = prompts.problem(message) if message.strip() else "The message is empty. Write a few words."
    if problem is None and system.strip():
        problem = prompts.problem(system)
    if problem is not None:
        give_back(message)
        return (), problem
    return conversation.current().turns(system, message), None


def give_back(message: str) -> None:
    """Let the box hold a message again that was sent and not answered."""
    put("chat_back", message)


def draw_new(*, disabled: bool) -> None:
    """Draw what begins a new conversation."""
    st.button(
        "New conversation",
        icon=":material/add_comment:",
        key="chat_new",
        disabled=disabled or not conversation.current().exchanges,
        on_click=conversation.begin,
        help="The runs of this one stay under *Race and runs*.",
    )


def draw_box(*, disabled: bool) -> None:
    """Draw the box to write in; call it after `sent`, so that it can hold again what was not answered."""
    back = get("chat_back") or (None if disabled else conversation.unanswered())
    put("chat_back", None)
    if back is not None:
        st.session_state["chat_box"] = back
    st.chat_input("Your message", key="chat_box", disabled=disabled, on_submit=_note_sent)


def _note_sent() -> None:
    put("chat_sent", st.session_state["chat_box"])
