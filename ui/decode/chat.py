"""Chat on the live page: system prompt, message box, conversation, and rendered prompt."""

from collections.abc import Sequence

import streamlit as st

from sequoia_core.models.chat import Turn
from ui import controls, prompts
from ui.jobs import conversation, session_jobs
from ui.jobs.conversation import CUT_REASONS, Exchange
from ui.markdown import escaped
from ui.session import session
from ui.session.state import state

CHAT_MODE = "Chat"
PROMPT_MODES = (CHAT_MODE, "Plain text")
LINE_END = "↵"  # marks line ends, because templates end with an empty line, which st.code drops
SHOWN_EXCHANGES = 2  # earlier exchanges are collapsed so that the run stays in view


def chat_mode_picker() -> bool:
    """Draw the switch between chat and plain text if the target has a chat template; return whether chat is on."""
    if conversation.drop_if_pair_changed():
        st.info("The conversation was cleared because it was with a different model pair.", icon=":material/forum:")
    if not session.has_chat():
        return False
    chat = controls.source_picker("How to ask", PROMPT_MODES, key="ask") == CHAT_MODE
    if not chat:
        st.caption("A single prompt, which the chat template renders as one user turn.")
    return chat


def system_prompt() -> str:
    """Draw the text area for the system prompt; return the prompt."""
    return st.text_area(
        "System prompt (optional)",
        key="chat_system",
        height=68,
        persist_state="session",
        help="Placed before the conversation from the next run on. Some templates do not support a system prompt.",
    )


def draw_conversation() -> None:
    """Draw the conversation so far."""
    job = session_jobs.find_job("decode")
    asking = job is not None and job.active and bool(job.info.turns)
    exchanges = conversation.current_conversation().exchanges
    if not exchanges and not asking:
        st.caption("No messages yet. Each answer is a run: it appears step by step above, and then here.")
        return
    earlier = max(len(exchanges) + asking - SHOWN_EXCHANGES, 0)
    if earlier:
        with st.expander(f"Earlier messages: {2 * earlier}", icon=":material/history:", key="chat_earlier"):
            _draw_exchanges(exchanges[:earlier])
    _draw_exchanges(exchanges[earlier:])
    if job is not None and asking:
        _draw_message("user", job.info.turns[-1].text)
        with st.chat_message("assistant"):
            st.caption("Decoding: the answer appears above.")


def _draw_exchanges(exchanges: Sequence[Exchange]) -> None:
    for exchange in exchanges:
        _draw_message("user", exchange.asked)
        _draw_message("assistant", exchange.answer, CUT_REASONS.get(exchange.cut, ""))


def _draw_message(role: str, text: str, note: str = "") -> None:
    with st.chat_message(role):
        if text:
            st.text(text)
        if note or not text:
            st.caption(note or "Ended without text.")


def draw_rendered_prompt() -> None:
    """Draw the last rendered prompt and its warnings."""
    run = conversation.last_conversation_run()
    if run is None:
        return
    for remark in run["remarks"]:
        st.warning(escaped(remark), icon=":material/warning:")
    with st.expander("What the model read", icon=":material/code:", key="chat_read"):
        st.caption(
            f"The complete prompt for the last answer, {run['prompt_tokens']:,} tokens, rendered by the chat template "
            f"with all special tokens. {LINE_END} marks the end of a line."
        )
        st.code(run["prompt"].replace("\n", f"{LINE_END}\n"), language=None, wrap_lines=True)


def sent_turns(system: str) -> tuple[tuple[Turn, ...], str | None]:
    """Return the turns including the message just sent (empty if none was sent) and the problem, if any."""
    message = state().chat_sent
    state().chat_sent = None
    if message is None:
        return (), None
    problem = prompts.prompt_problem(message) if message.strip() else "The message is empty. Write a few words."
    if problem is None and system.strip():
        problem = prompts.prompt_problem(system)
    if problem is not None:
        restore_message(message)
        return (), problem
    return conversation.current_conversation().turns(system, message), None


def restore_message(message: str) -> None:
    """Put an unanswered message back into the box, before that is drawn."""
    st.session_state["chat_box"] = message


def new_conversation_button(*, disabled: bool) -> None:
    """Draw a button that starts a new conversation."""
    st.button(
        "New conversation",
        icon=":material/add_comment:",
        key="chat_new",
        disabled=disabled or not conversation.current_conversation().exchanges,
        on_click=conversation.start_conversation,
        help="This conversation's runs remain available under *Race and runs*.",
    )


def message_box(*, disabled: bool) -> None:
    """Draw the message box; call it after `sent_turns`, which may restore a message."""
    if not disabled and (unanswered := conversation.pop_unanswered_message()) is not None:
        restore_message(unanswered)
    st.chat_input("Your message", key="chat_box", disabled=disabled, on_submit=_store_message)


def _store_message() -> None:
    state().chat_sent = st.session_state["chat_box"]
