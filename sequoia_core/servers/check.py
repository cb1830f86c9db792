"""Prove a plan for a server: requests with drafts of several lengths, two of which predict the others. m = requests."""

import json
import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np

from ..design.bootstrap import Estimate, ratio_estimate
from ..files.gguf_header import LLAMA_CPP
from ..files.safe_files import read_json
from ..studies.prompt_loop import Progress, Report
from ..studies.race import take_turns
from .chain_acceptance import ChainAcceptance, chain_acceptance
from .costs import costs_of, timed_setting
from .counts import VLLM, ServerCounts, ServerRequest, summed
from .flags import DRAFT_MODEL, server_flags
from .local_server import UNCUT, ask, running_server
from .plan import ServerPlan, plan_server
from .readings import read_counts

PLANNED_FROM = (0, 2, 8)
REQUEST_SEC = 600
GREEDY = {"temperature": 0.0, "top_p": 1.0, "ignore_eos": True}
CLOCKS = {  # where an answer has the time of its tokens, and what the server must be started with
    VLLM: ("metrics", "generation_time_ms", "--enable-per-request-metrics"),
    LLAMA_CPP: ("timings", "predicted_ms", "--metrics"),
}
Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Served:
    """One request answered.

    Args:
        tokens: after the first; seconds: that they took.
        text: of the answer, or its token ids.
        counts: of this request, whose steps are in `counts.requests`; None where nothing was drafted.
    """

    tokens: int
    seconds: float
    text: Prompt
    counts: ServerCounts | None = None


def server_command(
    engine: str, program: str, target: str, draft: str | None, k: int, *, method: str = DRAFT_MODEL
) -> list[str]:
    """Return the command that starts a server of an engine that drafts k tokens, and counts and times what it does.

    Args:
        program: its own command with any options, such as "llama-server --threads 8".
        target, draft: models as this server takes them.
        method: one of `flags.METHODS`.
    """
    try:
        words = [*shlex.split(program), "--model", target]
    except ValueError as error:
        raise ValueError(f"--program: found {program[:80]!r}, expected a command with its quotes closed") from error
    if engine == LLAMA_CPP:
        words += ["--metrics"]
    else:
        words += ["--enable-per-request-metrics"]
        words += ["--per-request-spec-decode-metrics", "detailed"] if k else []
    if engine == VLLM and not k:
        return words
    flags = shlex.split(server_flags(engine, k, method=method))
    return words + [flag.replace("<draft.gguf>", draft or "").replace("<draft>", draft or "") for flag in flags]


def ask_servers(
    servers: Mapping[int, str],
    engine: str,
    prompts: Sequence[Prompt],
    length: int,
    *,
    sampling: Mapping[str, float] = GREEDY,
    progress: Progress | None = None,
) -> dict[int, list[Served]]:
    """Let servers (length of draft -> address) answer the same requests in turns, in the order of the prompts.

    `sampling` is the requests' temperature, top_p and ignore_eos; no other cut is made.
    """
    methods = {str(k): server_method(address, engine, k, sampling) for k, address in servers.items()}
    answers: dict[int, list[Served]] = {k: [] for k in servers}
    for name, served in take_turns(methods, prompts, length, progress=progress):
        answers[int(name)].append(served)
    return answers


def start_and_ask(
    commands: Mapping[int, Sequence[str]],
    engine: str,
    prompts: Sequence[Prompt],
    length: int,
    *,
    one_at_a_time: bool = False,
    sampling: Mapping[str, float] = GREEDY,
    progress: Progress | None = None,
) -> dict[int, list[Served]]:
    """Do the same with servers that are started by commands (length of draft -> command) and ended afterwards."""
    answers: dict[int, list[Served]] = {}
    for group in [[k] for k in commands] if one_at_a_time else [list(commands)]:
        with ExitStack() as running:
            servers = {k: running.enter_context(running_server(commands[k])) for k in group}
            answers |= ask_servers(servers, engine, prompts, length, sampling=sampling, progress=progress)
    return answers


def server_method(
    address: str, engine: str, k: int, sampling: Mapping[str, float] = GREEDY
) -> Callable[[Prompt, int, int, Report], Served]:
    """Return a function that sends a prompt, text or token ids, to a server that drafts k tokens and counts."""

    def run(prompt: Prompt, length: int, turn: int, report: Report) -> Served:
        ids = prompt if isinstance(prompt, str) else list(prompt)
        body = json.dumps({"prompt": ids, "max_tokens": length, **sampling, **UNCUT}).encode()
        before = ask(address, "/metrics") if k else b""
        content = ask(address, "/v1/completions", body, seconds=REQUEST_SEC)
        answer = read_answer(content, address, engine, least=2 if sampling["ignore_eos"] else 1)
        if not k:
            return answer
        if b"per_step_accepted" in content:
            return replace(answer, counts=read_counts(content, address, engine=engine))
        counts = read_counts(ask(address, "/metrics"), f"{address}/metrics", before, engine=engine)
        if not counts.drafts:  # n-grams may find nothing to draft
            return answer
        return replace(answer, counts=replace(counts, requests=(_steps(counts, answer.tokens),)))

    return run


def may_speculate(address: str) -> bool:
    """Whether a server has counters of speculative decoding; llama.cpp's has them whether it drafts or not."""
    try:
        metrics = ask(address, "/metrics")
    except ValueError:  # a server need not have metrics
        return False
    return b"vllm:spec_decode_num_" in metrics


def read_answer(content: bytes, address: str, engine: str, *, least: int = 2) -> Served:
    """Return an answer of at least so many tokens with the server's own time for it."""
    part, name, option = CLOCKS[engine]
    try:
        answer = read_json(content)
    except ValueError as error:
        raise ValueError(f"{address}: {error}") from error
    try:
        tokens, text = int(answer["usage"]["completion_tokens"]), str(answer["choices"][0]["text"])
        seconds = float(answer[part][name]) / 1000
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{address}: found an answer without {part}.{name}, expected one of {engine}, started with {option}"
        ) from error
    if tokens < least or not (seconds >= 0 if tokens == 1 else seconds > 0) or seconds >= REQUEST_SEC:
        raise ValueError(f"{address}: found {tokens} tokens in {seconds:g} s, expected {least} or more in some time")
    return Served(tokens - 1, seconds, text)


def _steps(counts: ServerCounts, tokens: int) -> ServerRequest:
    """Return the steps of a request by the counters around it, in no order."""
    reached = [counts.drafts or 0, *counts.positions, 0]
    ends = [at - on for at, on in zip(reached, reached[1:], strict=False)]
    accepted = tuple(length for length, count in enumerate(ends) for _ in range(count))
    return ServerRequest(accepted, (len(counts.positions),) * len(accepted), tokens)


def counts_of(answers: Sequence[Served]) -> ServerCounts | None:
    """Return the counts of all requests together; None where nothing was drafted."""
    parts = [each.counts for each in answers if each.counts is not None]
    if not parts:
        return None
    tokens = sum(each.tokens + 1 for each in answers)
    whole = summed(parts, parts[0].source)
    return replace(whole, tokens=tokens, requests_done=len(answers), notes=parts[0].notes)


def compare(
    settings: Mapping[int, Sequence[Served]],
    *,
    planned_from: Sequence[int] = PLANNED_FROM,
    drafts_free: bool = False,
    expected: ServerCounts | None = None,
) -> dict:
    """Plan from a few settings and hold the plan against all of them.

    Args:
        settings: length of draft -> what it did with each request, the same ones for all.
        planned_from: 0 and two lengths above it; the longest tells how far drafts get.
        drafts_free: the draft is no model.
        expected: what the server should count, by a vector measured here; None plans from what it counted.

    Returns:
        JSON-ready: `rows`, one for each k, with tokens per second over k = 0 `predicted` and `measured` (paired by
        request), `error` and whether the prediction `held` inside the measured interval, `tokens_per_step` with its
        interval beside what was predicted of it, and whether both differ no more than texts drawn apart
        (`tokens_per_step_held`); `median_abs_error` of the settings that the plan did not see; the k `chosen` by
        prediction, the `best` measured, and `chosen_over_best`; `same_text`, the share of answers that equal those at
        k = 0; `survival_interval`, low and high for each position of the longest draft; `notes`.
    """
    check_planned_from(planned_from, list(settings))
    asked = len(settings[0])
    whole = [all(each.tokens for each in answers) for answers in zip(*settings.values(), strict=True)]
    if not any(whole):
        raise ValueError(f"found {asked} answers that end with their first token, expected longer ones")
    settings = {k: [each for each, kept in zip(settings[k], whole, strict=True) if kept] for k in settings}
    seconds = {k: np.array([each.seconds / each.tokens for each in settings[k]]) for k in sorted(settings)}
    acceptance, plan, notes = _plan(settings, planned_from, drafts_free, expected)
    rows = []
    for k in seconds:
        row = _measured(settings[k]) | {"k": k, "planned_from": k in planned_from}
        row["measured"] = ratio_estimate(seconds[0], seconds[k]).to_json()
        row |= {"predicted": None, "error": None, "held": None}
        row |= {"predicted_tokens_per_step": None, "predicted_tokens_per_step_interval": None}
        row["tokens_per_step_held"] = None
        if acceptance is not None:
            tokens = acceptance.tokens(k)
            row["predicted_tokens_per_step"] = tokens.value
            row["predicted_tokens_per_step_interval"] = tokens.interval
            row["tokens_per_step_held"] = _agree(tokens, row["tokens_per_step"], row["tokens_per_step_interval"])
        if plan is not None:
            predicted, measured = plan.batches[0].speedup[k], row["measured"]
            row["predicted"] = predicted.to_json()
            row["error"] = predicted.value / measured["value"] - 1
            row["held"] = measured["low"] is not None and measured["low"] <= predicted.value <= measured["high"]
        rows.append(row)
    errors = [abs(row["error"]) for row in rows if not row["planned_from"] and row["error"] is not None]
    best = min(seconds, key=lambda k: float(seconds[k].sum()))
    result = {"median_abs_error": statistics.median(errors) if errors else None, "best": best}
    result |= {"chosen": None, "chosen_over_best": None}
    if plan is not None:
        chosen = max(seconds, key=lambda k: plan.batches[0].speedup[k].value)
        over = ratio_estimate(seconds[best], seconds[chosen])
        result |= {"chosen": chosen, "chosen_over_best": over.to_json()}
    texts = {k: [each.text for each in answers] for k, answers in settings.items()}
    same = [text == plain for k in texts if k for text, plain in zip(texts[k], texts[0], strict=True)]
    interval = None
    if acceptance is not None and acceptance.has_interval:
        interval = [acceptance.low.tolist(), acceptance.high.tolist()]
    result |= {"same_text": float(np.mean(same)), "survival_interval": interval}
    if len(settings[0]) < asked:
        notes.append(f"{asked - len(settings[0])} of {asked} requests ended with their first token and are left out.")
    return result | {"rows": rows, "notes": notes}


def check_planned_from(planned_from: Sequence[int], settings: Sequence[int]) -> None:
    """Refuse lengths of draft that nothing can be planned from."""
    last = max(settings, default=0)
    if len({*planned_from}) != 3 or not {0, last} <= {*planned_from} <= {*settings}:
        raise ValueError(
            f"planned from: found K = {list(planned_from)}, expected 0, {last} (the longest draft) and one of the "
            f"settings between: {sorted(settings)}"
        )


def _plan(
    settings: Mapping[int, Sequence[Served]],
    planned_from: Sequence[int],
    drafts_free: bool,
    expected: ServerCounts | None,
) -> tuple[ChainAcceptance | None, ServerPlan | None, list[str]]:
    """Return how far drafts get, the plan, and its notes; where nothing can be planned, the reason instead."""
    counts = expected or counts_of(settings[max(planned_from)])
    if counts is None:
        return None, None, ["found no drafts at the longest setting, expected some to plan from"]
    try:
        acceptance = chain_acceptance(counts)
    except ValueError as error:  # drafts that end early
        return None, None, [str(error)]
    timed = [timed_setting(k, tokens_per_sec(settings[k]), acceptance) for k in sorted(planned_from)]
    try:
        costs = costs_of(None, timed, drafts_free=drafts_free)
    except ValueError as error:  # times of a busy machine
        return acceptance, None, [str(error)]
    assert costs is not None, "settings were timed"
    plan = plan_server(acceptance, costs)
    return acceptance, plan, list(plan.notes)


def _agree(predicted: Estimate, measured: float | None, between: Sequence[float] | None) -> bool | None:
    """Return whether two means of texts drawn apart differ by no more than the hypotenuse of their facing halves."""
    if measured is None or between is None or predicted.low is None or predicted.high is None:
        return None
    if predicted.value > measured:
        return predicted.value - measured <= float(np.hypot(predicted.value - predicted.low, between[1] - measured))
    return measured - predicted.value <= float(np.hypot(predicted.high - predicted.value, measured - between[0]))


def tokens_per_sec(answers: Sequence[Served]) -> float:
    """All tokens ÷ all seconds, first tokens and the reading of prompts left out."""
    return sum(each.tokens for each in answers) / sum(each.seconds for each in answers)


def _measured(answers: Sequence[Served]) -> dict:
    counts = counts_of(answers)
    drafts = 0 if counts is None else counts.drafts or 0
    row: dict = {"tokens_per_sec": tokens_per_sec(answers), "drafts": drafts, "tokens_per_step": None, "survival": []}
    if counts is None or not drafts:
        return row | {"tokens_per_step_interval": None}
    made = [each.counts for each in answers if each.counts is not None]
    steps = np.array([each.drafts or 0 for each in made])
    yielded = ratio_estimate(steps + [each.accepted_tokens or 0 for each in made], steps)
    between = None if yielded.low is None else [yielded.low, yielded.high]
    row |= {"tokens_per_step": yielded.value, "tokens_per_step_interval": between}
    return row | {"survival": [count / drafts for count in counts.positions]}
