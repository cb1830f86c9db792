"""Decode: does the prediction hold? The real pair drafts, verifies and walks the tree, step by step."""

import time
from typing import Any

import streamlit as st

from sequoia_core import AcceptanceVector, TokenTree, expected_tokens
from sequoia_core.design.conditions import Conditions
from sequoia_core.design.plain_trees import chain_tree
from sequoia_core.files.prompt_files import check_text
from ui import controls, core_cache, page_setup, runs, session, work
from ui.acceptance import measurement
from ui.jobs import Job
from ui.literal import plain
from ui.token_tree import live_tree

POLL_SEC = 0.15
FLUSH_SEC = 0.03  # the server sends what is queued every 10 ms
MAX_PROMPT_CHARS = 20_000  # far beyond any demo context; a pasted book is refused before it reaches the tokenizer
MAX_TREE = 4_096
MEASURED_PROMPTS, MEASURED_TOKENS = 8, 64  # by the button beside a missing vector
OWN_PROMPT = "Your own"
FIRST_PROMPT = "def read_lines(path):\n    "
SOURCES = {
    "tree": "Tree page",
    "best": "Best for this hardware",
    "chain": "Chain",
    "file": "Imported file",
}
ENDINGS = {
    "eos": "Ended at the end-of-text token.",
    "context": "Ended at the models' context limit.",
    "length": "Ended at the number of tokens asked for.",
}
RECORDED = session.ASSETS / "runs" / "recorded.json"


@st.cache_data(show_spinner=False, max_entries=2)
def recorded_run(path: str, modified: int) -> dict[str, Any]:
    """Load the shipped recording."""
    return runs.load_run(path)


def take_shipped_prompt() -> None:
    """Put the prompt that was just picked into the text area."""
    if st.session_state["decode_shipped"] != OWN_PROMPT:
        st.session_state["decode_prompt"] = st.session_state["decode_shipped"]


def prompt_control(job: Job | None) -> str:
    """Draw the prompt with the shipped ones to pick from; keeps the last run's prompt."""
    shipped = session.shipped_prompts()
    if "decode_prompt" not in st.session_state:
        last = session.last_run()
        held = job.info.prompt if job is not None else last["prompt"] if last is not None else None
        st.session_state["decode_prompt"] = held or (shipped[0] if shipped else FIRST_PROMPT)
    current = st.session_state["decode_prompt"]
    options = [OWN_PROMPT, *shipped]
    st.session_state["decode_shipped"] = current if current in options else OWN_PROMPT
    st.selectbox(
        "Shipped prompts",
        options,
        key="decode_shipped",
        on_change=take_shipped_prompt,
        format_func=prompt_name,
        help="Python code held out from the demo pair's training.",
    )
    return st.text_area(
        "Prompt",
        key="decode_prompt",
        height=216,
        help="The target continues this text. The demo pair has only ever read Python.",
    )


def prompt_name(prompt: str) -> str:
    """Return the first line with letters in it, literally."""
    line = next((line.strip() for line in prompt.splitlines() if line.strip()), prompt)
    return line[:70]


def prompt_problem(prompt: str) -> str | None:
    """Say why a prompt cannot be decoded; None when it can be tried."""
    if not prompt.strip():
        return "The prompt is empty. Write a few words, or pick a shipped prompt."
    if len(prompt) > MAX_PROMPT_CHARS:
        return f"The prompt has {len(prompt):,} characters, expected at most {MAX_PROMPT_CHARS:,}. Shorten it."
    try:
        check_text(prompt)
    except ValueError as error:
        return f"{plain(str(error))}."
    return None


def read_tree(data: bytes, name: str) -> TokenTree:
    """Read a tree file of any known format that can be decoded with."""
    from sequoia_core.design.tree_files import tree_from_bytes

    tree = tree_from_bytes(data, name)
    if tree.size > MAX_TREE:
        raise ValueError(f"{name}: found {tree.size:,} nodes, expected at most {MAX_TREE:,}")
    return tree


def tree_control() -> tuple[str, TokenTree | None, str]:
    """Draw the choice of a tree -> where it comes from, the tree, and its origin in words.

    The tree is None where there is none, and the words say why; for "best" it depends on the settings below.
    """
    source = st.selectbox(
        "Tree",
        SOURCES,
        key="source",
        bind="query-params",
        format_func=SOURCES.get,
        help="Best for this hardware: the shape with the highest predicted speedup for the vector and profile in use.",
    )
    if source == "tree":
        return source, session.tree(), session.tree_source()
    if source == "best":
        return source, None, ""
    if source == "chain":
        length = st.slider(
            "Chain length",
            1,
            16,
            4,
            key="chain",
            bind="query-params",
            help="Drafted tokens in a row: classic speculative decoding.",
        )
        return source, chain_tree(length), f"chain of {length}"
    upload = controls.file_upload(
        "Tree file",
        ("json", "pt", "txt"),
        read_tree,
        key="decode_tree_file",
        help="Sequoia JSON, a reference growmap (.pt), UMbreLLa JSON, a list of paths (Medusa, EAGLE), or a vLLM tree.",
    )
    if upload is None:
        return source, None, "Upload a tree file, or choose another tree."
    return source, upload.value, upload.error or f"your file {upload.name}"


def best_tree_for(vector: AcceptanceVector | None) -> tuple[TokenTree | None, str]:
    """Return the tree with the highest predicted speedup under a vector that holds, or None and the reason."""
    profile = session.profile()
    if profile is None:
        return None, "There is no hardware profile to choose a shape by. Measure one on the hardware page."
    if vector is None:
        return None, "No acceptance vector holds for these settings, so no tree is known to be the best. Measure one."
    shape = core_cache.planned(vector, profile)[1]
    return core_cache.best_tree(vector, shape.size, shape.depth), f"best tree for {session.profiled_machine()}"


def expectation(
    tree: TokenTree, origin: str, vector: AcceptanceVector | None, wanted: Conditions
) -> tuple[float | None, float | None]:
    """Say what is expected of a tree under these conditions, or what is missing to expect anything -> F, speedup."""
    told = f":material/account_tree: {plain(origin)}: n = {tree.size}, d = {tree.depth}"
    if vector is None:
        st.markdown(f"{told} &nbsp;·&nbsp; nothing is expected of it at these settings")
        lacking_vector(wanted)
        return None, None
    expected, prediction = expected_tokens(tree, vector), session.predicted(tree, vector)
    by = "" if vector == session.acceptance() else f" by the vector measured at {wanted.sampling}"
    speed = "no speedup predicted" if prediction is None else f"predicted {prediction:.2f}× vs 1.00× autoregressive"
    st.markdown(f"{told} &nbsp;·&nbsp; expected {expected:.2f} tokens per step{by} &nbsp;·&nbsp; {speed}")
    if prediction is None:
        st.caption(
            f":material/info: No speedup is predicted: {plain(session.no_prediction(tree, vector))}. Measure the "
            "passes of this pair on the hardware page."
        )
    return expected, prediction


def lacking_vector(wanted: Conditions) -> None:
    """Say which vector is missing, and offer to measure it here."""
    job = session.job("measure")
    with st.container(border=True):
        st.markdown(
            f":material/checklist: No acceptance vector was measured for **{plain(wanted.sampling)}** on the "
            f"{session.pair_name()}. The one in use: {plain(session.acceptance_source())}."
        )
        if st.button(
            "Measure it",
            icon=":material/speed:",
            key="decode_measure",
            disabled=job is not None and job.active,
            help=f"On {MEASURED_PROMPTS} shipped prompts, {MEASURED_TOKENS} new tokens each. The acceptance page has "
            "all settings.",
        ):
            measurement.start_for(wanted, prompts=MEASURED_PROMPTS, tokens=MEASURED_TOKENS)
        controls.job_panel("measure")


def controls_panel(job: Job | None) -> None:
    """Draw all controls and start or stop the run."""
    left, right = st.columns([3, 2], gap="large")
    with left:
        prompt = prompt_control(job)
    with right:
        source, tree, origin = tree_control()
        first, second = st.columns(2)
        temperature = first.slider(
            "Temperature",
            0.0,
            1.5,
            0.0,
            0.1,
            key="temperature",
            bind="query-params",
            help="0 is greedy: the output is the target's own greedy text, token by token.",
        )
        tokens = second.slider(
            "New tokens",
            16,
            512,
            128,
            16,
            key="tokens",
            bind="query-params",
            help="The run stops here, at the end-of-text token, or at the models' context limit.",
        )
        top_p = first.slider(
            "Top-p",
            0.1,
            1.0,
            1.0,
            0.05,
            key="top_p",
            bind="query-params",
            disabled=temperature == 0,
            help="Warps the target: only the likeliest tokens that add up to this. The warped target is preserved.",
        )
        verifier = second.selectbox(
            "Verifier",
            controls.VERIFIERS,
            key="verifier",
            bind="query-params",
            format_func=controls.VERIFIERS.get,
            disabled=temperature == 0,
            help="Sequoia draws siblings without replacement, SpecInfer with; Top-k takes the likeliest. All preserve "
            "the target; at temperature 0 they are the same.",
        )
        seed = first.number_input(
            "Seed",
            0,
            2**31 - 1,
            0,
            key="seed",
            bind="query-params",
            disabled=temperature == 0,
            help="The only source of randomness: the same seed repeats the run.",
        )
    wanted = session.conditions(temperature, top_p, verifier)
    vector = session.vector_for(wanted)
    if source == "best":
        tree, origin = best_tree_for(vector)
    if tree is None:
        st.warning(origin, icon=":material/account_tree:")
        if source == "best" and vector is None:
            lacking_vector(wanted)
    else:
        expected, prediction = expectation(tree, origin, vector, wanted)
    active = job is not None and job.active
    problem = None
    with st.container(horizontal=True):
        if st.button(
            "Start", type="primary", icon=":material/play_arrow:", key="decode_start", disabled=active or tree is None
        ):
            problem = prompt_problem(prompt)
            if problem is None:
                request = runs.DecodeRequest(
                    prompt,
                    tree,
                    origin,
                    temperature=temperature,
                    top_p=top_p,
                    max_new_tokens=tokens,
                    verifier=verifier,
                    seed=int(seed),
                    models=session.pair_spec(),
                    expected_tokens=expected,
                    predicted_speedup=prediction,
                )
                controls.start_job("decode", "Decoding", work.decode_work(request), info=request)
        if st.button("Stop", icon=":material/stop:", key="decode_stop", disabled=not active) and job is not None:
            job.cancel()
    if problem is not None:
        st.error(problem, icon=":material/error:")


def show_job(was_active: bool) -> None:
    """Draw this session's decode as far as it is; redrawn while it runs."""
    job = session.job("decode")
    if job is None:
        return
    active, state = job.active, job.state  # read before the steps, so that an ended job is drawn complete
    if job.position:
        st.info(f"The engine is busy. This run is number {job.position} in line.", icon=":material/hourglass_top:")
    elif active:
        left = "" if job.eta_sec is None else f" · about {job.eta_sec:.0f} s left"
        stopping = "Stopping after this step" if job.cancel_event.is_set() else plain(job.message or "Starting")
        st.progress(job.fraction, text=f"{stopping}{left}")
    elif state == "failed":
        kept = f" The {job.step_count} steps before it are kept below." if job.step_count else ""
        st.error(f"The run failed: {plain(job.error or '')}{kept}", icon=":material/error:")
    elif state == "cancelled":
        st.warning(
            f"Stopped after {job.step_count} steps; what was decoded stays below.", icon=":material/stop_circle:"
        )
    run = job.result or job.info.header()
    show_run(run, job.id, job.steps_since(0), active=active, waiting=job.message or "Waiting for the engine")
    if was_active and not active:
        st.rerun()  # once, to end the polling and give the buttons back


def show_run(run: dict[str, Any], epoch: str, steps: list[dict[str, Any]], *, active: bool, waiting: str = "") -> None:
    """Draw the figures, the live tree and the text of a run."""
    summary = runs.summarize(
        steps,
        baseline=run["baseline"],
        expected_tokens=run["expected_tokens"],
        predicted_speedup=run["predicted_speedup"],
    )
    figures(summary)
    if not active and steps:
        st.markdown(runs.explain(summary))
    live_tree(
        key="decode_tree",
        epoch=epoch,
        tree=runs.tree_of(run),
        prompt=run["prompt"],
        greedy=run["temperature"] == 0,
        steps_since=lambda index: [step for step in steps if step["index"] >= index],
        total=len(steps),
        running=active,
        waiting=waiting if active else "",
    )
    if not active and steps:
        with st.expander("Text and file", icon=":material/notes:", key="decode_text"):
            st.code(run["text"] or "".join(piece for step in steps for piece in step["pieces"]), language=None)
            left, right = st.columns([3, 1], vertical_alignment="center")
            left.caption(ENDINGS.get(steps[-1]["finished"], "Ended early."))
            right.download_button(
                "Download this run",
                lambda: runs.run_to_bytes(run),
                "run.json",
                key="decode_download",
                icon=":material/download:",
                on_click="ignore",
                width="stretch",
                help="Every step with its tokens, probabilities, decisions and timings, as JSON.",
            )


def figures(summary: runs.RunSummary) -> None:
    """Draw what was measured, each number beside what it compares with."""
    places = st.columns(4)
    expected = "nothing expected" if summary.expected_tokens is None else f"expected {summary.expected_tokens:.2f}"
    controls.card(
        places[0],
        "Tokens per step",
        number(summary.tokens_per_step),
        expected,
        help="Committed tokens ÷ target passes, bonus tokens counted. Expected: F of this tree.",
    )
    if summary.baseline_per_sec is None:
        against = "autoregressive not measured"
    else:
        against = f"autoregressive {summary.baseline_per_sec:.0f}"
    controls.card(
        places[1],
        "Tokens per second",
        number(summary.tokens_per_sec, "{:.0f}"),
        against,
        help="Both measured in this job, taking turns step by step, on the same model and sampler, by the median "
        "step. Reading the prompt is excluded on both sides.",
    )
    prediction = summary.predicted_speedup
    controls.card(
        places[2],
        "Speedup",
        number(summary.speedup, "{:.2f}×"),
        "nothing predicted" if prediction is None else f"predicted {prediction:.2f}×",
        help="Tokens per second with the tree ÷ without it (1.00×).",
    )
    controls.card(
        places[3],
        "Accepted share",
        number(summary.drafted_share, "{:.0%}"),
        f"{summary.tokens} tokens, {summary.steps} steps",
        help="Share of the text that the draft proposed and the target accepted; the rest are bonus tokens.",
    )


def number(value: float | None, form: str = "{:.2f}") -> str:
    """Return a figure, or a dash while there is none."""
    return "–" if value is None else form.format(value)


def lost_run(job: Job | None) -> bool:
    """Say whether this page showed a run whose session is gone, by the link that a running decode leaves behind."""
    if job is not None and job.active:
        st.query_params["run"] = job.id
        return False
    shown = st.query_params.pop("run", None)
    return shown is not None and (job is None or job.id != shown)


def show_recording() -> None:
    """Draw what there is to see before the first run of this session."""
    last = session.last_run()
    if last is not None:
        st.caption(":material/history: The last run of this session.")
        show_run(last, last["id"], last["steps"], active=False)
    elif RECORDED.is_file():
        run = recorded_run(str(RECORDED), RECORDED.stat().st_mtime_ns)
        st.info("A recorded run, to replay: press Start above to decode on this machine.", icon=":material/movie:")
        show_run(run, run["id"], run["steps"], active=False)
    else:
        st.info(
            "Nothing decoded yet. Press Start: each step's tree appears here as it is drafted and verified.",
            icon=":material/play_circle:",
        )


page_setup.setup_page("Decode")
st.title("Decode")
st.caption(
    "Does the prediction hold? The draft fills the tree, one target pass verifies it, the accepted path is kept."
)
job, chain = session.job("decode"), session.job("chain")
overtaken = job is None or (chain is not None and not chain.active and (chain.started or 0) > (job.started or 0))
if job is not None and not job.active and not overtaken and job.result is not None and job.step_count:
    session.set_last_run(job.result)
if lost_run(job):
    st.warning(
        "The run that this page showed was stopped: its server was started anew, or this is another browser tab. "
        "Press Start to decode again.",
        icon=":material/stop_circle:",
    )
controls_panel(job)
st.divider()
if job is not None and (job.active or not overtaken):
    st.fragment(show_job, run_every=POLL_SEC if job.active else None)(job.active)
    # A last poll may start right after this run and would drop what this one has not sent yet, remounting the tree.
    time.sleep(FLUSH_SEC)
else:
    st.fragment(show_recording)()
