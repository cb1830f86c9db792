"""A decode and its autoregressive baseline, run as one job by the engine's worker. No Streamlit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from sequoia_core.models.chat import chat_remarks, chat_text, encode_templated
from sequoia_core.models.prompting import check_token_range, encode_prompt
from ui.jobs.jobs import Job, JobContext
from ui.runs.runs import DecodeRequest, Recorder
from ui.token_text import TokenText

if TYPE_CHECKING:
    from sequoia_core.models.language_model import ModelPair

WARM_TOKENS = 4
WARM_SEC = 0.4  # time for the page to render before the first steps, which rendering would slow
LIKELY_TOKENS = 5  # number of tokens shown per row
LEFT_OUT_NODES = 12  # number of candidates shown that are not in the tree


def decode_work(request: DecodeRequest) -> Callable[[JobContext], dict[str, Any]]:
    """Return the job for one decode, which alternates steps with the tree and steps of an equally long baseline."""

    def work(context: JobContext) -> dict[str, Any]:
        pair = context.pair(request.models)
        return decode_beside_baseline(context, pair, request, store=context.store_partial, progress=context.progress)

    return work


def record_run(request: DecodeRequest) -> dict[str, Any]:
    """Run a request immediately, without a queue, and return the run."""
    return decode_work(request)(JobContext(Job("record")))


def decode_beside_baseline(
    context: JobContext,
    pair: ModelPair,
    request: DecodeRequest,
    *,
    store: Callable[[dict[str, Any]], None],
    progress: Callable[[float, str], None],
) -> dict[str, Any]:
    """Decode alternately with and without the tree, so that temporary load on the machine affects both.

    `store` receives the run before its first step, so that a cancelled or failed run is not lost.
    """
    import torch

    from sequoia_core import SamplingConfig, autoregressive, decode
    from sequoia_core.decoding.record import StepDetails
    from sequoia_core.models.threads import TimedLoad

    prompt_fields, prompt = _read_prompt(pair, request)
    run = request.header() | pair_settings(pair, prompt) | prompt_fields
    store(run)

    def options(length: int) -> dict[str, Any]:
        sampling = SamplingConfig(temperature=request.temperature, top_p=request.top_p)
        generator = torch.Generator().manual_seed(request.seed)
        return {"sampling": sampling, "cancel": context.cancel, "max_new_tokens": length, "generator": generator}

    speculative = partial(decode, prompt, pair, tree=request.tree, verifier=request.verifier)
    progress(0.0, "Warming up")
    plain = partial(autoregressive, prompt, pair)
    _warm_up(context, lambda: chain(speculative(**options(WARM_TOKENS)), plain(**options(WARM_TOKENS))))
    recorder = Recorder(run, text := TokenText(pair.tokenizer.decode, prompt))
    tokens: list[int] = []
    run["baseline"] = baseline = {"tokens": 0, "seconds": 0.0}
    read_before = pair.target.bytes_read
    step_sec = 0.0
    plain_steps = plain(**options(request.max_new_tokens))
    load = TimedLoad()
    details = StepDetails(likely=LIKELY_TOKENS, left_out=LEFT_OUT_NODES)
    for step in speculative(**options(request.max_new_tokens), details=details):
        tokens.extend(step.new_tokens)
        for plain_step in plain_steps:
            baseline["tokens"] += len(plain_step.new_tokens)
            baseline["seconds"] += plain_step.seconds
            if baseline["tokens"] >= len(tokens):
                break
        step_sec += step.seconds
        if request.models.offload is not None:  # weights are read in every phase of a step
            read_bytes = pair.target.bytes_read - read_before
            run["read_bytes_per_sec"] = read_bytes / (step_sec + baseline["seconds"])
        context.append_step(recorder.add(step))
        run["text"] = pair.text(text.whole(tokens), skip_special_tokens=True)
        progress(len(tokens) / request.max_new_tokens, "Decoding")
        if step.finished is None:
            request.steering.wait(step.index + 1, context.cancel)
        elif request.earlier is not None:
            request.earlier.add([*prompt, *tokens])
    run["load"] = load.record()
    return run


def _warm_up(context: JobContext, decode: Callable[[], Iterable[Any]]) -> None:
    """Decode repeatedly for `WARM_SEC`, without recording anything."""
    until = time.monotonic() + WARM_SEC
    while not context.cancel.is_set() and time.monotonic() < until:
        for _ in decode():
            pass


def pair_settings(pair: ModelPair, prompt: Sequence[int]) -> dict[str, Any]:
    """Return the header fields of a run that depend on the loaded pair."""
    from sequoia_core.models.generation_settings import describe_settings, ignored_settings
    from sequoia_core.models.protocol import dtype_name

    return {
        "device": str(pair.target.device),
        "dtype": dtype_name(pair.target),
        "prompt_tokens": len(prompt),
        "settings_left_out": describe_settings(ignored_settings(pair.target)),
        "head": pair.draft is not None and bool(pair.draft.state_indices),
    }


def _read_prompt(pair: ModelPair, request: DecodeRequest) -> tuple[dict[str, Any], list[int]]:
    """Return the run fields that describe the prompt, and the prompt's token ids."""
    prompting = request.prompting
    if not request.turns:
        fields = {"prompt": request.prompt, **prompting.record(pair.tokenizer)}
        return fields, encode_prompt(pair, request.prompt, prompting)
    turns = request.turns
    arguments = prompting.arguments
    # Render the template only once: it may depend on the time, and the text shown must be the text the model reads.
    text = chat_text(pair.tokenizer, turns, arguments)
    ids = check_token_range(pair, encode_templated(pair.tokenizer, text), turns[-1].text)
    context = pair.target.max_context
    if len(ids) >= context:
        raise ValueError(
            f"conversation: found {len(ids):,} tokens, expected at most {context - 1:,}: the target's context of "
            f"{context:,} minus one for the answer. Start a new conversation, or write a shorter message."
        )
    fields = {"prompt": text, "remarks": chat_remarks(pair.tokenizer, turns, arguments)}
    return fields | prompting.record(pair.tokenizer, turns), ids
