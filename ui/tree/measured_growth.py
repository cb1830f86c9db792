"""Growth with size as decoding measured it: recorded for the demo pair, or measured here for the vector in use."""

import json
from collections.abc import Callable
from typing import Any

import streamlit as st

from sequoia_core import AcceptanceVector
from sequoia_core.design.conditions import Conditions
from sequoia_core.files.prompt_files import check_text
from sequoia_core.files.safe_files import read_bytes
from sequoia_core.models.prompting import encode_prompt
from ui import controls, prompts
from ui.jobs import job_panel
from ui.jobs.jobs import JobContext
from ui.markdown import escaped
from ui.phrases import count
from ui.session import evidence, predictions, session, shipped

JOB = "growth"
LENGTHS = (16, 32, 64, 128)
LARGEST = (64, 128, 256, 512, 1024)
CALLED = {"static": "the best tree", "chains": "k chains", "specexec": "SpecExec", "specinfer": "SpecInfer's k × 8"}


def study_of(vector: AcceptanceVector) -> dict[str, Any] | None:
    """Return what was measured for the vector's pair and settings: here, else as shipped; None where nothing was."""
    own, held = evidence.kept(JOB), vector.holds_for
    for study in [*([own] if own else []), *_shipped()]:
        if held is not None and not Conditions.from_json(study["settings"]["conditions"]).differences(held):
            return study
    return None


def _shipped() -> list[dict[str, Any]]:
    """Return the shipped studies; none where there is no file, or none that can be read."""
    try:
        held = json.loads(read_bytes(shipped.ASSETS / "runs" / "growth.json"))
        recorded = {"pair": "demo pair", "recorded": held["settings"]["date"]}
        studies = [study | {"settings": study["settings"] | recorded} for study in held["studies"]]
        for study in studies:
            Conditions.from_json(study["settings"]["conditions"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return studies


def section(vector: AcceptanceVector, study: dict[str, Any] | None) -> None:
    """Say what the points in the figure show and where they come from, and offer to measure them."""
    if study is None:
        st.caption(
            ":material/scatter_plot: No points: nothing was measured for this vector's pair and settings. Measure them "
            "below; those of the demo pair that ship with the app are of its own vectors."
        )
    else:
        st.markdown(summary(study["points"]))
        settings = study["settings"]
        how = f"recorded on {settings['recorded']} on the" if "recorded" in settings else "measured here on the"
        among = " The vector was measured on these prompts, among others." if "recorded" in settings else ""
        st.caption(
            f":material/label: Points: {escaped(how)} {escaped(settings['pair'])}, "
            f"{Conditions.from_json(settings['conditions']).sampling}, {count(settings['prompts'], 'prompt')} × "
            f"{settings['max_new_tokens']} tokens, d ≤ {settings['max_depth']}; 95% intervals, by prompts.{among}"
        )
    _measurement(vector)
    job_panel.draw(JOB)


def summary(points: list[dict[str, Any]]) -> str:
    """Say how far each kind of tree grew, from its smallest to its largest."""
    parts = []
    for kind, name in CALLED.items():
        own = sorted((point for point in points if point["kind"] == kind), key=lambda point: point["size"])
        if own:
            first, last = own[0], own[-1]
            parts.append(
                f"{name} {first['tokens_per_step']:.2f} → {last['tokens_per_step']:.2f} "
                f"(n = {first['size']:,} → {last['size']:,})"
            )
    return f"Tokens per step as decoded: {'; '.join(parts)}."


def _measurement(vector: AcceptanceVector) -> None:
    label = f"Measure these points on the {session.pair_name()}"
    with (
        st.expander(label, icon=":material/play_circle:", key="growth_settings"),
        st.form("growth_form", border=False),
    ):
        left, right = st.columns(2)
        texts = prompts.several(left, "growth", usual=6)
        tokens = prompts.new_tokens(right, "growth", LENGTHS, 32)
        largest = right.select_slider(
            "Largest tree",
            LARGEST,
            256,
            key="growth_largest",
            help="In nodes; twice as many take up to twice the time.",
        )
        faults = predictions.vector_faults()
        if faults:
            st.info(
                f"The vector in use is not one of this pair ({escaped('; '.join(faults))}): measure one on the "
                "draft page, so that the trees are the best ones for it.",
                icon=":material/info:",
            )
        blocked = controls.lacks_draft("This measurement") or bool(faults) or job_panel.is_active(JOB)
        if controls.primary_button(
            "Start",
            draw=st.form_submit_button,
            icon=":material/play_arrow:",
            key="growth_start",
            disabled=blocked,
        ):
            try:
                if not texts:
                    raise ValueError("prompts: found none, expected at least one")
                for text in texts:
                    check_text(text)
            except ValueError as error:
                st.error(f"{escaped(str(error))}.", icon=":material/error:")
            else:
                job_panel.start(JOB, "Measuring growth", _work(vector, texts, tokens, largest))


def _work(vector: AcceptanceVector, texts: list[str], tokens: int, largest: int) -> Callable[[JobContext], dict]:
    """Return the work; everything it needs is bound here, it never looks at the session."""
    spec, pair_name, held = session.pair_spec(), session.pair_name(), vector.holds_for
    assert held is not None, "a vector without faults says what it holds for"

    def work(context: JobContext) -> dict[str, Any]:
        from sequoia_core import SamplingConfig
        from sequoia_core.studies.measure_growth import SIZES, measure_growth

        pair = context.pair(spec)
        study = measure_growth(
            [encode_prompt(pair, text) for text in texts],
            pair,
            acceptance=vector,
            sampling=SamplingConfig(held.temperature, held.top_p, held.top_k),
            sizes=[size for size in SIZES if size <= largest],
            max_new_tokens=tokens,
            progress=context.progress,
            cancel=context.cancel,
        ).to_json()
        return study | {"settings": study["settings"] | {"pair": pair_name}}

    return work
