"""One decode beside its autoregressive baseline, as a job for the engine's worker; no Streamlit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sequoia_core.models.chat import chat_remarks, chat_text, encode_templated
from sequoia_core.models.prompting import encode_prompt, within_rows
from ui.jobs.jobs import Job, JobContext
from ui.runs.runs import DecodeRequest, Recorder
from ui.token_text import TokenText

if TYPE_CHECKING:
    from sequoia_core.models.language_model import ModelPair

WARM_TOKENS = 4
WARM_SEC = 0.4  # meanwhile the page that started the run is drawn, which would slow the first steps
LIKELY = 5  # tokens shown of each model's row
LEFT_OUT = 12  # candidates shown of those that a tree left out


def decode_work(request: DecodeRequest) -> Callable[[JobContext], dict[str, Any]]:
    """Return the work of one decode: the tree run step by step, and beside it the baseline of the same length."""

    def work(context: JobContext) -> dict[str, Any]:
        pair = context.pair(request.models)
        return decode_beside_baseline(context, pair, request, keep=context.keep, progress=context.progress)

    return work


def record_run(request: DecodeRequest) -> dict[str, Any]:
    """Run a request here and now, without a queue, and return the run."""
    work = decode_work(request)
    return work(JobContext(Job("record")))


def decode_beside_baseline(
    context: JobContext,
    pair: ModelPair,
    request: DecodeRequest,
    *,
    keep: Callable[[dict[str, Any]], None],
    progress: Callable[[float, str], None],
) -> dict[str, Any]:
    """Decode with the tree and without it, in turns, so that a slow moment of the machine touches both.

    `keep` gets the run before it is filled, so that a cancel or failure loses nothing.
    """
    import torch

    from sequoia_core import SamplingConfig, autoregressive, decode
    from sequoia_core.decoding.record import StepDetails

    read, prompt = _read_prompt(pair, request)
    sampling = SamplingConfig(temperature=request.temperature, top_p=request.top_p)
    common = {"sampling": sampling, "cancel": context.cancel}
    speculative = {**common, "tree": request.tree, "verifier": request.verifier}
    run = request.header() | told_by(pair, prompt) | read
    keep(run)

    progress(0.0, "Warming up")
    seeds = [torch.Generator().manual_seed(request.seed) for _ in range(4)]
    warm_until = time.monotonic() + WARM_SEC
    while not context.cancel.is_set():
        for warm in (
            decode(prompt, pair, **speculative, max_new_tokens=WARM_TOKENS, generator=seeds[0]),
            autoregressive(prompt, pair, **common, max_new_tokens=WARM_TOKENS, generator=seeds[1]),
        ):
            for _ in warm:
                pass
        if time.monotonic() > warm_until:
            break
    text = TokenText(pair.tokenizer.decode, prompt)
    recorder = Recorder(run, text)
    tokens: list[int] = []
    run["baseline"] = baseline = {"tokens": 0, "seconds": 0.0}
    length, read_before, stepped_sec = request.max_new_tokens, pair.target.bytes_read, 0.0
    plain_steps = autoregressive(prompt, pair, **common, max_new_tokens=length, generator=seeds[3])
    shown = StepDetails(likely=LIKELY, left_out=LEFT_OUT)
    for step in decode(prompt, pair, **speculative, max_new_tokens=length, generator=seeds[2], details=shown):
        tokens.extend(step.new_tokens)
        for plain in plain_steps:
            baseline["tokens"] += len(plain.new_tokens)
            baseline["seconds"] += plain.seconds
            stepped_sec += plain.seconds
            if baseline["tokens"] >= len(tokens):
                break
        stepped_sec += step.seconds
        if request.models.offload is not None:  # reading goes on in all of a step
            run["read_bytes_per_sec"] = (pair.target.bytes_read - read_before) / stepped_sec
        context.append(recorder.add(step))
        run["text"] = pair.text(text.whole(tokens), skip_special_tokens=True)
        progress(len(tokens) / length, "Decoding, with the tree and without it in turns")
        if step.finished is None:
            request.steering.wait(step.index + 1, context.cancel)
        elif request.earlier is not None:
            request.earlier.add([*prompt, *tokens])
    return run


def told_by(pair: ModelPair, prompt: Sequence[int]) -> dict[str, Any]:
    """Return what a run's header has from the loaded pair alone."""
    from sequoia_core.models.generation_settings import in_words, left_out_settings
    from sequoia_core.models.protocol import dtype_name

    return {
        "device": str(pair.target.device), "dtype": dtype_name(pair.target), "prompt_tokens": len(prompt),
        "settings_left_out": in_words(left_out_settings(pair.target)),
        "head": pair.draft is not None and bool(pair.draft.reads),
    }  # fmt: skip


def _read_prompt(pair: ModelPair, request: DecodeRequest) -> tuple[dict[str, Any], list[int]]:
    """Return what the run says of its prompt, and the prompt's token ids."""
    prompting = request.prompting
    if not request.turns:
        read = {"prompt": request.prompt, **prompting.record(pair.tokenizer)}
        return read, encode_prompt(pair, request.prompt, prompting)
    turns, arguments = request.turns, prompting.arguments
    text = chat_text(pair.tokenizer, turns, arguments)  # once: what is shown is what is read, whatever a template does
    ids = within_rows(pair, encode_templated(pair.tokenizer, text), turns[-1].text)
    context = pair.target.max_context
    if len(ids) >= context:
        raise ValueError(
            f"conversation: found {len(ids):,} tokens, expected at most {context - 1:,}: the target's context of "
            f"{context:,} less one to write. Start a new conversation, or write a shorter message."
        )
    read = {"prompt": text, "remarks": chat_remarks(pair.tokenizer, turns, arguments)}
    return read | prompting.record(pair.tokenizer, turns), ids
