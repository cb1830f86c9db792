"""Widgets for one prompt to decode or several for measurements: shipped, written by the user, or from a file."""

import shlex

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sequoia_core.files.prompt_files import check_text, prompt_columns, skipped_rows_message, split_lines
from sequoia_core.files.prompt_rows import Prompt, display_prompt
from sequoia_core.models.prompting import Prompting, parse_template_arguments
from ui import uploads
from ui.cards import draw_error
from ui.markdown import escaped
from ui.phrases import count
from ui.session import core_cache, session, shipped

MAX_CHARS = 20_000  # longer prompts are rejected before they reach the tokenizer
MAX_FILE_PROMPTS = 2_000  # measuring on this many takes hours on a laptop
PROMPT_FILE_TYPES = ("jsonl", "jsonlines", "json", "txt", "csv", "tsv", "parquet")
FALLBACK_PROMPT = "def read_lines(path):\n    "  # used if no prompts are shipped
ARGUMENTS_KEY = "template_arguments"


def initialize_prompt(key: str, *, first: str | None) -> str:
    """Set `prompt_control` to `first` or a shipped prompt if it has none yet; return the prompt's first line."""
    if key not in st.session_state:
        st.session_state[key] = first or next(iter(shipped.prompts()), FALLBACK_PROMPT)
    return _first_line(st.session_state[key])


def prompt_control(key: str) -> str:
    """Draw a text area for a prompt and a select box with shipped prompts; return the prompt."""
    initialize_prompt(key, first=None)
    pick_key = f"{key}_shipped"

    def copy_picked() -> None:
        st.session_state[key] = st.session_state[pick_key]
        st.session_state[pick_key] = None

    st.selectbox(
        "Shipped prompts",
        list(shipped.prompts()),
        index=None,
        key=pick_key,
        on_change=copy_picked,
        format_func=_first_line,
        placeholder="Use a shipped prompt",
        help="Python code excluded from the demo pair's training.",
    )
    return st.text_area(
        "Prompt",
        key=key,
        height=216,
        persist_state="session",
        help="The target continues this text. The demo pair was trained on Python only.",
    )


def template_arguments_control() -> Prompting | None:
    """Draw a field for the chat template's arguments, if there is a template; return None if they are invalid."""
    if not session.has_chat():
        return Prompting()
    st.text_input(
        "Template arguments (optional)",
        key=ARGUMENTS_KEY,
        placeholder="enable_thinking=false",
        persist_state="session",
        help="Arguments for the chat template: name=value pairs separated by spaces, for example to turn thinking on "
        "or off. Runs and vectors record them.",
    )
    try:
        return _prompting()
    except ValueError as error:
        draw_error(error)
        return None


def session_prompting() -> Prompting | None:
    """Return the session's prompting; None if its template arguments are invalid."""
    try:
        return _prompting()
    except ValueError:  # the error is shown next to the field
        return None


def _prompting() -> Prompting:
    given = st.session_state.get(ARGUMENTS_KEY) or ""
    if not given.strip() or not session.has_chat():
        return Prompting()
    try:
        parts = shlex.split(given)
    except ValueError as error:
        raise ValueError(f"template arguments: found {given[:40]!r} ({error}), expected name=value") from error
    return Prompting(arguments=parse_template_arguments(parts))


def _first_line(prompt: str) -> str:
    line = next((line.strip() for line in prompt.splitlines() if line.strip()), prompt)
    return line[:70]


def prompts_control(container: DeltaGenerator, *, usual: int) -> list[str]:
    """Draw a slider for the number of shipped prompts and a text area for more; return all prompts.

    `usual` is the default number of shipped prompts.
    """
    examples = shipped.prompts()
    number = container.slider(
        "Shipped prompts",
        0,
        max(len(examples), 1),
        min(usual, len(examples)),
        key="acceptance_prompts",
        persist_state="session",
        help="More prompts give narrower intervals and take longer.",
    )
    custom = st.text_area(
        "Your prompts (optional, one per line)",
        key="acceptance_own",
        height=80,
        persist_state="session",
        help="Used in addition to the shipped prompts. Use text similar to what you will decode.",
    )
    return [*examples[:number], *split_lines(custom)]


def prompt_file_control() -> list[Prompt]:
    """Draw an uploader for prompts and return them; not usable in a form, because the columns depend on the file."""
    with st.expander("Prompts from a file", icon=":material/upload_file:", key="acceptance_prompt_file"):
        upload = uploads.file_upload(
            "Prompt file",
            PROMPT_FILE_TYPES,
            lambda data, name: (data, prompt_columns(data, name)),
            key="acceptance_prompts_file",
            help='One prompt per line or row: JSONL with a "text", plain text, CSV, TSV or parquet. Up to 20 MB.',
        )
        if upload is None:
            return []
        if upload.value is None:
            st.error(f"{upload.error}. No prompts were read.", icon=":material/error:")
            return []
        data, columns = upload.value
        column = None
        if columns.texts:
            column = st.selectbox(
                "Column",
                columns.texts,
                columns.texts.index(columns.usual) if columns.usual in columns.texts else None,
                key="acceptance_column",
                placeholder="Which column contains the prompts?",
                help="The column that contains the prompts, as text or as chats. From a chat, the turns before the "
                "first answer are used; an instruction is used with its input or context.",
            )
            if column is None:
                st.warning(
                    "Select the column that contains the prompts. No prompts have been read yet.",
                    icon=":material/help:",
                )
                return []
        try:
            taken = core_cache.uploaded_prompts(data, upload.name, column)
        except ValueError as error:
            draw_error(error, "No prompts were read.")
            return []
        used = taken.prompts[:MAX_FILE_PROMPTS]
        if taken.left_out:
            st.warning(f"{escaped(skipped_rows_message(taken))}.", icon=":material/info:")
        total = len(taken.prompts)
        more = f", of which the first {MAX_FILE_PROMPTS:,} are used" if total > MAX_FILE_PROMPTS else ""
        st.caption(f"{count(total, 'prompt')}{more}. The first prompt begins:")
        st.code(display_prompt(used[0])[:200], language=None, wrap_lines=True)
        return used


def prompt_problem(prompt: str) -> str | None:
    """Return the reason why a prompt cannot be decoded, safe to show as markdown; None if it can."""
    if not prompt.strip():
        return "The prompt is empty. Write a few words or select a shipped prompt."
    if len(prompt) > MAX_CHARS:
        return f"The prompt has {len(prompt):,} characters, expected at most {MAX_CHARS:,}. Shorten it."
    try:
        check_text(prompt)
    except ValueError as error:
        return f"{escaped(str(error))}."
    return None
