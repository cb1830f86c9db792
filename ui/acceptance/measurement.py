"""The form that measures an acceptance vector on the model pair: settings, prompts, and the job behind it.

Draws one section of the acceptance page; what the worker does is bound when the job is queued.
"""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.design.conditions import Conditions
from sequoia_core.files.prompt_files import check_text, split_lines, text_columns
from sequoia_core.models.chat import encode_prompt
from ui import controls, core_cache, session
from ui.literal import plain

PROMPT_TYPES = ("jsonl", "json", "txt", "csv", "tsv", "parquet")
WIDTH = 32  # ranks: covers the widest node of most optimal trees
MAX_PROMPTS = 2_000  # of one file: hours on a laptop


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure.

    Attributes:
        texts: prompts, or texts to read as they are.
        own_text: read the texts as they are; nothing is generated.
        resume: a measurement of the same settings that was cut.
    """

    texts: tuple[str, ...]
    temperature: float
    top_p: float
    verifier: str
    width: int
    tokens: int
    own_text: bool
    resume: AcceptanceVector | None


def section() -> None:
    """Offer the measurement and show its progress; what it found is adopted by the frame of whichever page is open."""
    job = session.job("measure")
    from_file = prompt_file()
    with st.form("acceptance_measure"):
        request = settings(from_file)
        if st.form_submit_button(
            "Measure on the demo pair" if session.pair_spec().is_demo else "Measure on your pair",
            icon=":material/speed:",
            type="primary",
            disabled=job is not None and job.active,
        ):
            try:
                if not request.texts:
                    raise ValueError("no prompts: choose at least one shipped prompt, write your own or upload some")
                for text in request.texts:
                    check_text(text)
            except ValueError as error:
                problem = str(error)
                st.error(f"{plain(problem[0].upper() + problem[1:])}.", icon=":material/error:")
            else:
                start(request)
    controls.job_panel("measure")


def prompt_file() -> list[str]:
    """Draw the upload of prompts, outside the form because the choice of column depends on it -> prompts."""
    with st.expander("Prompts from a file", icon=":material/upload_file:", key="acceptance_prompt_file"):
        upload = controls.file_upload(
            "Prompt file",
            PROMPT_TYPES,
            lambda data, name: (data, text_columns(data, name)),
            key="acceptance_prompts_file",
            help='One prompt per line or row: JSONL with a "text", plain text, CSV, TSV or parquet. Up to 16 MiB.',
        )
        if upload is None:
            return []
        if upload.error:
            st.error(f"{upload.error}. No prompts were read.", icon=":material/error:")
            return []
        data, columns = upload.value
        column = None
        if len(columns) > 1:
            usual = next((i for i, name in enumerate(columns) if name.strip().lower() in ("text", "prompt")), 0)
            column = st.selectbox(
                "Column", columns, usual, key="acceptance_column", help="The one that holds the text."
            )
        try:
            prompts = core_cache.uploaded_prompts(data, upload.name, column)
        except ValueError as error:
            st.error(f"{plain(str(error))}. No prompts were read.", icon=":material/error:")
            return []
        kept = prompts[:MAX_PROMPTS]
        more = f", the first {MAX_PROMPTS:,} are taken" if len(prompts) > MAX_PROMPTS else ""
        st.caption(f"{len(prompts):,} prompts{more}. The first begins:")
        st.code(kept[0][:200], language=None, wrap_lines=True)
        return kept


def settings(from_file: list[str]) -> Request:
    """Draw the form's controls -> what they ask for."""
    from sequoia_core.studies.measure_acceptance import is_partial

    shipped = session.shipped_prompts()
    left, right = st.columns(2)
    temperature = left.slider(
        "Temperature",
        0.0,
        2.0,
        0.0,
        0.1,
        key="acceptance_temperature",
        bind="query-params",
        help="Of the target, as you will decode. 0 is greedy. Acceptance differs by temperature, so measure both.",
    )
    top_p = left.slider(
        "Top-p",
        0.1,
        1.0,
        1.0,
        0.05,
        key="acceptance_top_p",
        help="Nucleus kept of the target's distribution; 1.0 keeps everything. Ignored at temperature 0.",
    )
    verifier = left.selectbox(
        "Verifier",
        controls.VERIFIERS,
        key="acceptance_verifier",
        format_func=controls.VERIFIERS.get,
        help="Whose rule decides, and how it has children drawn. At temperature 0 all three are the same.",
    )
    width = right.slider(
        "Ranks",
        1,
        64,
        WIDTH,
        key="acceptance_width",
        help="How many children of a node to ask about. 32 covers the widest node of most optimal trees.",
    )
    count = right.slider(
        "Shipped prompts",
        0,
        max(len(shipped), 1),
        0 if from_file else min(8, len(shipped)),
        key="acceptance_prompts",
        help="More prompts narrow the intervals; each takes one continuation of the target.",
    )
    own = st.text_area(
        "Your own prompts (optional, one per line)",
        key="acceptance_own",
        height=80,
        help="Used in addition. Text like what you will decode gives the vector that predicts it.",
    )
    left, right = st.columns(2, vertical_alignment="center")
    tokens = left.select_slider(
        "New tokens per prompt",
        [32, 64, 128, 256],
        64,
        key="acceptance_tokens",
        help="Positions measured per prompt, on text that the target itself writes.",
    )
    own_text = right.toggle(
        "Measure on these texts as they are",
        key="acceptance_own_text",
        help="Nothing is generated: both models read your texts. It understates tokens per step where the target would "
        "have written something else, and the result says so.",
    )
    partial = session.original_acceptance()
    resume = is_partial(partial) and st.checkbox(
        f"Continue the measurement in use: {partial.meta['prompts']} of {partial.meta['prompts_wanted']} prompts done",
        value=True,
        key="acceptance_resume",
        help="With the same settings and prompts the result is the one that an uninterrupted measurement gives.",
    )
    texts = (*shipped[:count], *from_file, *split_lines(own))
    return Request(texts, temperature, top_p, verifier, width, tokens, own_text, partial if resume else None)


def start_for(wanted: Conditions, *, prompts: int, tokens: int) -> None:
    """Queue the measurement of the vector that holds for these conditions, on the first shipped prompts."""
    texts = tuple(session.shipped_prompts()[:prompts])
    start(Request(texts, wanted.temperature, wanted.top_p, wanted.verifier, WIDTH, tokens, False, None))


def start(request: Request) -> None:
    """Queue the measurement; everything the worker needs is bound here, it never looks at the session."""
    from ui.jobs import JobContext

    spec = session.pair_spec()

    def work(job: JobContext) -> AcceptanceVector:
        from sequoia_core import SamplingConfig, measure_acceptance

        pair = job.pair(spec)
        return measure_acceptance(
            [encode_prompt(pair.tokenizer, text, chat=False if request.own_text else None) for text in request.texts],
            target=pair.target,
            draft=pair.draft,
            sampling=SamplingConfig(temperature=request.temperature, top_p=request.top_p),
            verifier=request.verifier,
            width=request.width,
            max_new_tokens=request.tokens,
            own_text=request.own_text,
            resume=request.resume,
            checkpoint=job.keep,
            progress=job.progress,
            cancel=job.cancel,
        )

    how = session.conditions(request.temperature, request.top_p, request.verifier).sampling
    how += ", own text" if request.own_text else ""
    name = f"measured, T = {request.temperature:g}" + (f", top-p {request.top_p:g}" if request.top_p < 1 else "")
    name += f", {request.verifier}" if request.temperature and request.verifier != "sequoia" else ""
    source = f"measured here on the {session.pair_name()} at {how}"
    controls.start_job("measure", "Measuring acceptance", work, info=(source, name))
