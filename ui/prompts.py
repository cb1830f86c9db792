"""Prompts on a page: one to decode, or several to measure on; shipped, the user's own, or from a file."""

import shlex
from collections.abc import Sequence

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from sequoia_core.files.prompt_files import check_text, left_out_words, prompt_columns, split_lines
from sequoia_core.files.prompt_rows import Prompt, shown
from sequoia_core.models.prompting import Prompting, parsed_arguments
from ui import uploads
from ui.markdown import escaped, quoted
from ui.phrases import count
from ui.session import core_cache, model_pairs, session, shipped

MAX_CHARS = 20_000  # far beyond any demo context; a pasted book is refused before it reaches the tokenizer
MAX_FROM_FILE = 2_000  # prompts of one file: hours on a laptop
FILE_TYPES = ("jsonl", "jsonlines", "json", "txt", "csv", "tsv", "parquet")
FIRST_PROMPT = "def read_lines(path):\n    "  # where none is shipped
ARGUMENTS = "template_arguments"  # key of the field, the same on every page
OWN_BELOW, OWN_PLACE = "Your own, below", -1


def begin(key: str, *, first: str | None) -> str:
    """Let the prompt of `one` begin with `first`, else with a shipped one -> the first words of what it is now."""
    if key not in st.session_state:
        st.session_state[key] = first or next(iter(shipped.prompts()), FIRST_PROMPT)
    return _first_line(st.session_state[key])


def one(key: str) -> str:
    """Draw a prompt to write, with the shipped ones to pick from -> the prompt."""
    begin(key, first=None)
    picked = st.session_state.setdefault(f"{key}_picked", 0)  # so often: each time the choice begins anew, empty
    pick_key = f"{key}_shipped_{picked}"

    def copy_picked() -> None:
        st.session_state[key] = st.session_state[pick_key]
        st.session_state[f"{key}_picked"] += 1

    st.selectbox(
        "Shipped prompts",
        list(shipped.prompts()),
        index=None,
        key=pick_key,
        on_change=copy_picked,
        format_func=_first_line,
        placeholder="Take one of these",
        help="Python code held out from the demo pair's training.",
    )
    return st.text_area(
        "Prompt",
        key=key,
        height=216,
        help="The target continues this text. The demo pair has only ever read Python.",
    )


def template_arguments() -> Prompting | None:
    """Draw the chat template's arguments, if it has any -> how texts become prompts; None for a mistake."""
    if not model_pairs.has_chat(session.pair_spec()):
        return Prompting()
    st.text_input(
        "Template arguments (optional)",
        key=ARGUMENTS,
        placeholder="enable_thinking=false",
        persist_state="session",
        help="Given to the chat template, each name=value, with spaces between them: what turns thinking on or off in "
        "some models. Runs and vectors record them, and how the prompt then ends.",
    )
    try:
        return _prompting()
    except ValueError as error:
        st.error(f"{escaped(str(error))}.", icon=":material/error:")
        return None


def prompting() -> Prompting | None:
    """Return how texts become prompts in this session; None where its template arguments are none."""
    try:
        return _prompting()
    except ValueError:  # the field says why, wherever it is drawn
        return None


def _prompting() -> Prompting:
    given = st.session_state.get(ARGUMENTS) or ""
    if not given.strip() or not model_pairs.has_chat(session.pair_spec()):
        return Prompting()
    try:
        parts = shlex.split(given)
    except ValueError as error:
        raise ValueError(f"template arguments: found {given[:40]!r} ({error}), expected name=value") from error
    return Prompting(arguments=parsed_arguments(parts))


def _first_line(prompt: str) -> str:
    line = next((line.strip() for line in prompt.splitlines() if line.strip()), prompt)
    return line[:70]


def pick_in_form(place: DeltaGenerator, *, key: str) -> int:
    """Draw the choice of a shipped prompt in a form -> its number, or OWN_PLACE for one's own."""
    examples = shipped.prompts()
    return place.selectbox(
        "Prompt",
        [*range(len(examples)), OWN_PLACE],
        key=key,
        format_func=lambda i: OWN_BELOW if i == OWN_PLACE else quoted(examples[i].strip().splitlines()[0]),
        help="Held-out text that ships with the app, or your own.",
    )


def own_in_form(picked: int, *, key: str) -> str:
    """Draw the place for one's own prompt -> the prompt that was picked, or this one."""
    own = st.text_area(
        "Your own prompt",
        key=key,
        height=68,
        persist_state="session",
        help=f"Used where the prompt is “{OWN_BELOW}”.",
    )
    return own if picked == OWN_PLACE else shipped.prompts()[picked]


def several(place: DeltaGenerator, prefix: str, *, usual: int) -> list[str]:
    """Draw how many shipped prompts to take, and a place for one's own -> prompts.

    Args:
        place: of the slider; the text area follows in the page.
        usual: shipped prompts to begin with.
    """
    examples = shipped.prompts()
    count = place.slider(
        "Shipped prompts",
        0,
        max(len(examples), 1),
        min(usual, len(examples)),
        key=f"{prefix}_prompts",
        persist_state="session",
        help="Intervals come from the spread between prompts: more prompts narrow them, and take longer.",
    )
    own = st.text_area(
        "Your own prompts (optional, one per line)",
        key=f"{prefix}_own",
        height=80,
        persist_state="session",
        help="Used in addition. Text like what you will decode gives what counts for you.",
    )
    return [*examples[:count], *split_lines(own)]


def new_tokens(place: DeltaGenerator, prefix: str, lengths: Sequence[int], usual: int) -> int:
    """Draw how many tokens the target writes after each prompt."""
    return place.select_slider(
        "New tokens per prompt",
        lengths,
        usual,
        key=f"{prefix}_tokens",
        persist_state="session",
        help="Written by the target after each prompt, fewer where its text ends.",
    )


def from_file(prefix: str) -> list[Prompt]:
    """Draw the upload of prompts -> prompts. Not for a form: the choice of column depends on the file."""
    with st.expander("Prompts from a file", icon=":material/upload_file:", key=f"{prefix}_prompt_file"):
        upload = uploads.file_upload(
            "Prompt file",
            FILE_TYPES,
            lambda data, name: (data, prompt_columns(data, name)),
            key=f"{prefix}_prompts_file",
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
                key=f"{prefix}_column",
                placeholder="Which one holds the prompts?",
                help="The one that holds the prompts, as text or as a chat. Of a chat the turns before its first "
                "answer are taken; an instruction is taken with its input or context.",
            )
            if column is None:
                st.warning("Say which column holds the prompts. None were read yet.", icon=":material/help:")
                return []
        try:
            taken = core_cache.uploaded_prompts(data, upload.name, column)
        except ValueError as error:
            st.error(f"{escaped(str(error))}. No prompts were read.", icon=":material/error:")
            return []
        found = taken.prompts
        kept = found[:MAX_FROM_FILE]
        if taken.left_out:
            st.warning(f"{escaped(left_out_words(taken))}.", icon=":material/info:")
        more = f", the first {MAX_FROM_FILE:,} are taken" if len(found) > MAX_FROM_FILE else ""
        st.caption(f"{count(len(found), 'prompt')}{more}. The first begins:")
        st.code(shown(kept[0])[:200], language=None, wrap_lines=True)
        return kept


def problem(prompt: str) -> str | None:
    """Say why a prompt cannot be decoded, safe in markdown; None when it can be tried."""
    if not prompt.strip():
        return "The prompt is empty. Write a few words, or pick a shipped prompt."
    if len(prompt) > MAX_CHARS:
        return f"The prompt has {len(prompt):,} characters, expected at most {MAX_CHARS:,}. Shorten it."
    try:
        check_text(prompt)
    except ValueError as error:
        return f"{escaped(str(error))}."
    return None
