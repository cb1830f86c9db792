"""The form that measures an acceptance vector on the model pair: settings, prompts, and the job behind it."""

from dataclasses import dataclass

import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.design.conditions import Conditions
from sequoia_core.files.prompt_files import check_text
from sequoia_core.files.prompt_rows import Prompt
from sequoia_core.models.prompting import Prompting, encode_prompt
from ui import controls, prompts
from ui.jobs import job_panel
from ui.jobs.jobs import JobContext
from ui.markdown import escaped
from ui.prompts import prompting
from ui.session import predictions, session, shipped

WIDTH = 32  # ranks: covers the widest node of most optimal trees
LENGTHS = (32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Request:
    """What to measure.

    Attributes:
        texts: prompts, or texts to read as they are.
        own_text: read the texts as they are; nothing is generated.
        resume: a measurement of the same settings that was cut.
        prompting: how texts become prompts; None where the template arguments are wrong.
    """

    texts: tuple[Prompt, ...]
    temperature: float
    top_p: float
    verifier: str
    width: int
    tokens: int
    own_text: bool
    resume: AcceptanceVector | None
    prompting: Prompting | None


def section() -> None:
    """Offer the measurement and show its progress."""
    uploaded = prompts.from_file("acceptance")
    with st.form("acceptance_measure"):
        request = settings(uploaded)
        whose = "the demo" if session.pair_spec().is_demo else "your"
        blocked = controls.lacks_draft("Measuring acceptance") or job_panel.is_active("measure")
        if controls.primary_button(
            f"Measure on {whose} pair", draw=st.form_submit_button, icon=":material/speed:", disabled=blocked
        ):
            try:
                if request.prompting is None:
                    raise ValueError("template arguments: nothing is measured before they are right")
                if not request.texts:
                    raise ValueError("no prompts: choose at least one shipped prompt, write your own or upload some")
                for text in request.texts:
                    check_text(text)
            except ValueError as error:
                problem = str(error)
                st.error(f"{escaped(problem[0].upper() + problem[1:])}.", icon=":material/error:")
            else:
                start(request)
    job_panel.draw("measure")


def settings(uploaded: list[Prompt]) -> Request:
    """Draw the form's controls -> what they ask for."""
    from sequoia_core.studies.measure_acceptance import is_partial

    left, right = st.columns(2)
    temperature, top_p = controls.sampling(left, left)
    verifier = controls.verifier(
        left,
        key="acceptance_verifier",
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
    chosen = [*prompts.several(right, "acceptance", usual=0 if uploaded else 8), *uploaded]
    left, right = st.columns(2, vertical_alignment="center")
    tokens = prompts.new_tokens(left, "acceptance", LENGTHS, 64)
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
    how = prompts.template_arguments()
    if own_text:
        how = Prompting(False)
    resumed = partial if resume else None
    return Request(tuple(chosen), temperature, top_p, verifier, width, tokens, own_text, resumed, how)


def start_for(wanted: Conditions, *, prompts: int, tokens: int) -> None:
    """Queue the measurement of the vector that holds for these conditions, on the first shipped prompts."""
    how, texts = prompting(), tuple(shipped.prompts()[:prompts])
    if how is not None:
        start(Request(texts, wanted.temperature, wanted.top_p, wanted.verifier, WIDTH, tokens, False, None, how))


def start(request: Request) -> None:
    """Queue the measurement; the worker never looks at the session, so all it needs is bound here."""
    spec = session.pair_spec()

    def work(job: JobContext) -> AcceptanceVector:
        from sequoia_core import SamplingConfig, measure_acceptance
        from sequoia_core.studies.measure_acceptance import Checkpoints

        assert request.prompting is not None, "without it nothing is started"
        pair = job.pair(spec)
        return measure_acceptance(
            [encode_prompt(pair, text, request.prompting) for text in request.texts],
            pair,
            sampling=SamplingConfig(temperature=request.temperature, top_p=request.top_p),
            verifier=request.verifier,
            width=request.width,
            max_new_tokens=None if request.own_text else request.tokens,
            checkpoints=Checkpoints(request.resume, job.keep, request.prompting.record(pair.tokenizer)),
            progress=job.progress,
            cancel=job.cancel,
        )

    how = predictions.conditions(request.temperature, request.top_p, request.verifier).sampling
    how += ", own text" if request.own_text else ""
    name = f"measured, T = {request.temperature:g}" + (f", top-p {request.top_p:g}" if request.top_p < 1 else "")
    name += f", {request.verifier}" if request.temperature and request.verifier != "sequoia" else ""
    source = f"measured here on the {session.pair_name()} at {how}"
    job_panel.start("measure", "Measuring acceptance", work, info=(source, name))
