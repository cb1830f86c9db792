"""Compare a plan for a real server with its measured speed on the same requests at several draft lengths.

    python benchmarks/server_check.py --engine vllm --server 0=http://127.0.0.1:8000 --server 2=http://127.0.0.1:8002 …
    python benchmarks/server_check.py --engine llama.cpp --target big.gguf --draft small.gguf --program llama-server

The plan is based on K = 0, the longest draft and the length closest to 2, and predicts the other lengths. Servers are
given by --server, or started by --program at K = 0, 1, 2, 3, 4, 6 and 8. vLLM requires --enable-per-request-metrics,
and llama.cpp --metrics. --quick starts llama.cpp's server on the demo pair. The last line is the result of `compare` as
JSON.
"""

import argparse
import json
import shlex
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import ROOT, Options, require
from benchmarks.running_server import running_server
from sequoia_core.acceptance.bootstrap import ratio_estimate
from sequoia_core.files.safe_files import read_json
from sequoia_core.measuring.prompt_loop import Report
from sequoia_core.measuring.race import take_turns
from sequoia_core.planning.profile import LLAMA_CPP
from sequoia_extras.servers.chain_acceptance import ChainAcceptance, chain_acceptance
from sequoia_extras.servers.costs import build_costs, timed_setting
from sequoia_extras.servers.counts import VLLM, ServerCounts, ServerRequest, add_counts
from sequoia_extras.servers.flags import DRAFT_MODEL, METHODS, NGRAM, server_flags
from sequoia_extras.servers.local_server import NO_TRUNCATION, ask
from sequoia_extras.servers.plan import ServerPlan, plan_server
from sequoia_extras.servers.readings import ReadOptions, read_counts

PLANNED_FROM = (0, 2, 8)
LENGTHS = (0, 1, 2, 3, 4, 6, 8)
REQUEST_SEC = 600
GREEDY_REQUEST = {"temperature": 0.0, "top_p": 1.0, "ignore_eos": True}
# Where an answer contains its generation time, and the server option that enables it.
CLOCKS = {
    VLLM: ("metrics", "generation_time_ms", "--enable-per-request-metrics"),
    LLAMA_CPP: ("timings", "predicted_ms", "--metrics"),
}
MODELS = ("target", "draft")
Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Served:
    """The answer to one request.

    Args:
        tokens: number of tokens generated after the first one, in `seconds`.
        text: the answer's text, or its token ids.
        counts: counts for this request alone, with its steps in `counts.requests`; None if nothing was drafted.
    """

    tokens: int
    seconds: float
    text: Prompt
    counts: ServerCounts | None = None


def server_command(
    engine: str, program: str, target: str, draft: str | None, k: int, *, method: str = DRAFT_MODEL
) -> list[str]:
    """Return the command to start a server that drafts `k` tokens per step and reports counts and times."""
    words = [*shlex.split(program), "--model", target]
    if engine == LLAMA_CPP:
        words.append("--metrics")
    else:
        words.append("--enable-per-request-metrics")
        if k:
            words += ["--per-request-spec-decode-metrics", "detailed"]
    if engine == VLLM and not k:
        return words
    flags = shlex.split(server_flags(engine, k, method=method))
    return words + [flag.replace("<draft.gguf>", draft or "").replace("<draft>", draft or "") for flag in flags]


def ask_servers(
    servers: Mapping[int, str], engine: str, prompts: Sequence[Prompt], length: int
) -> dict[int, list[Served]]:
    """Send the same requests in turns to servers (draft length -> address) and return their answers."""
    methods = {str(k): server_method(address, engine, k) for k, address in servers.items()}
    answers: dict[int, list[Served]] = {k: [] for k in servers}
    for name, served in take_turns(methods, prompts, length):
        answers[int(name)].append(served)
    return answers


def start_and_ask(
    commands: Mapping[int, Sequence[str]], engine: str, prompts: Sequence[Prompt], length: int
) -> dict[int, list[Served]]:
    """Start servers (draft length -> command), send the requests, and stop the servers."""
    with ExitStack() as running:
        servers = {k: running.enter_context(running_server(command)) for k, command in commands.items()}
        return ask_servers(servers, engine, prompts, length)


def server_method(address: str, engine: str, k: int) -> Callable[[Prompt, int, int, Report], Served]:
    """Return a function that sends a prompt (text or token ids) to a server that drafts `k` tokens per step."""
    options = ReadOptions(engine)

    def run(prompt: Prompt, length: int, turn: int, report: Report) -> Served:
        ids = prompt if isinstance(prompt, str) else list(prompt)
        body = json.dumps({"prompt": ids, "max_tokens": length, **GREEDY_REQUEST, **NO_TRUNCATION}).encode()
        before = ask(address, "/metrics") if k else b""
        content = ask(address, "/v1/completions", body, seconds=REQUEST_SEC)
        answer = read_answer(content, address, engine)
        if not k:
            return answer
        if b"per_step_accepted" in content:
            return replace(answer, counts=read_counts(content, address, options=options))
        counts = read_counts(ask(address, "/metrics"), f"{address}/metrics", before, options=options)
        # N-grams may match nothing.
        if not counts.drafts:
            return answer
        return replace(answer, counts=replace(counts, requests=(_steps(counts, answer.tokens),)))

    return run


def read_answer(content: bytes, address: str, engine: str) -> Served:
    """Parse an answer, including the generation time reported by the server."""
    part, name, option = CLOCKS[engine]
    try:
        answer = read_json(content)
        tokens, text = int(answer["usage"]["completion_tokens"]), str(answer["choices"][0]["text"])
        seconds = float(answer[part][name]) / 1000
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{address}: found an answer without {part}.{name}, expected {engine} with the option {option}"
        ) from error
    if tokens < 2 or not 0 < seconds < REQUEST_SEC:
        raise ValueError(
            f"{address}: found {tokens} tokens in {seconds:g} s, expected at least 2 in 0 to {REQUEST_SEC} s"
        )
    return Served(tokens - 1, seconds, text)


def _steps(counts: ServerCounts, tokens: int) -> ServerRequest:
    """Return a request's steps, in no particular order, given the counters read before and after it."""
    reached = [counts.drafts or 0, *counts.positions, 0]
    ends = [here - further for here, further in pairwise(reached)]
    accepted = tuple(length for length, count in enumerate(ends) for _ in range(count))
    return ServerRequest(accepted, (len(counts.positions),) * len(accepted), tokens)


def total_counts(answers: Sequence[Served]) -> ServerCounts | None:
    """Add up the counts of all answers; None if nothing was drafted."""
    parts = [each.counts for each in answers if each.counts is not None]
    if not parts:
        return None
    tokens = sum(each.tokens + 1 for each in answers)
    return replace(add_counts(parts, parts[0].source), tokens=tokens, requests_done=len(answers), notes=parts[0].notes)


def compare(
    settings: Mapping[int, Sequence[Served]],
    *,
    planned_from: Sequence[int] = PLANNED_FROM,
    drafts_free: bool = False,
) -> dict[str, Any]:
    """Make a plan from a few settings and compare it with all settings.

    Args:
        settings: draft length -> answers to the same requests.
        planned_from: 0 and two lengths above it; the longest one must be the longest of all.
        drafts_free: whether drafting costs nothing, as with n-grams instead of a draft model.

    Returns:
        A JSON-ready dictionary: one row per length with the speedup over k = 0, `predicted` and `measured` (paired by
        request), and its `error`; `median_abs_error` over the lengths that the plan did not use; the k `chosen` by the
        plan, the `best` one measured, and the ratio of their speeds; `same_text`, the share of answers that equal
        those at k = 0.
    """
    seconds = {k: np.array([each.seconds / each.tokens for each in settings[k]]) for k in sorted(settings)}
    acceptance, plan, notes = _plan(settings, planned_from, drafts_free)
    rows = []
    for k in seconds:
        row = _measured(settings[k]) | {"k": k, "planned_from": k in planned_from}
        row["measured"] = ratio_estimate(seconds[0], seconds[k]).to_json()
        row |= dict.fromkeys(("predicted", "error", "predicted_tokens_per_step"))
        if acceptance is not None:
            row["predicted_tokens_per_step"] = acceptance.tokens(k).value
        if plan is not None:
            predicted = plan.batches[0].speedup[k]
            row |= {"predicted": predicted.to_json(), "error": predicted.value / row["measured"]["value"] - 1}
        rows.append(row)
    errors = [abs(row["error"]) for row in rows if not row["planned_from"] and row["error"] is not None]
    best = min(seconds, key=lambda k: float(seconds[k].sum()))
    result: dict[str, Any] = {"median_abs_error": statistics.median(errors) if errors else None, "best": best}
    result |= {"chosen": None, "chosen_over_best": None}
    if plan is not None:
        chosen = max(seconds, key=lambda k: plan.batches[0].speedup[k].value)
        over = ratio_estimate(seconds[best], seconds[chosen])
        result |= {"chosen": chosen, "chosen_over_best": over.to_json()}
    plain = [each.text for each in settings[0]]
    same = [each.text == text for k in settings if k for each, text in zip(settings[k], plain, strict=True)]
    return result | {"same_text": float(np.mean(same)), "rows": rows, "notes": notes}


def _plan(
    settings: Mapping[int, Sequence[Served]], planned_from: Sequence[int], drafts_free: bool
) -> tuple[ChainAcceptance | None, ServerPlan | None, list[str]]:
    """Return the acceptance, the plan and its notes; if planning is impossible, no plan and the reason as a note."""
    counts = total_counts(settings[max(planned_from)])
    if counts is None:
        return None, None, ["found no drafts at the longest setting, expected some to plan from"]
    acceptance = None
    try:
        acceptance = chain_acceptance(counts)
        timed = [timed_setting(k, tokens_per_sec(settings[k]), acceptance) for k in sorted(planned_from)]
        costs = build_costs(None, timed, drafts_free=drafts_free)
    # Drafts may end early, and times on a busy machine may be inconsistent.
    except ValueError as error:
        return acceptance, None, [str(error)]
    assert costs is not None, "settings were timed"
    plan = plan_server(acceptance, costs)
    return acceptance, plan, list(plan.notes)


def tokens_per_sec(answers: Sequence[Served]) -> float:
    """Return total tokens ÷ total seconds, excluding first tokens and prefill."""
    return sum(each.tokens for each in answers) / sum(each.seconds for each in answers)


def _measured(answers: Sequence[Served]) -> dict[str, Any]:
    counts = total_counts(answers)
    drafts = (counts and counts.drafts) or 0
    per_step = 1 + (counts.accepted_tokens or 0) / drafts if counts is not None and drafts else None
    return {"tokens_per_sec": tokens_per_sec(answers), "drafts": drafts, "tokens_per_step": per_step}


def may_speculate(address: str) -> bool:
    """Return whether a server has vLLM's counters for speculative decoding."""
    try:
        return b"vllm:spec_decode_num_" in ask(address, "/metrics")
    # A server may have no metrics.
    except ValueError:
        return False


def read_texts(args: argparse.Namespace) -> list[Prompt]:
    path = ROOT / "assets" / "prompts" / "not-looping.jsonl"
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines()[: args.prompts]]
    if args.tokenizer is None:
        return texts
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(args.tokenizer)
    return [tokenizer.encode(text).ids for text in texts]


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--engine", choices=tuple(CLOCKS), default=LLAMA_CPP)
    parser.add_argument("--server", action="append", default=[], help="K=ADDRESS of a running server")
    parser.add_argument("--program", help="command to start a server, as an alternative to --server")
    parser.add_argument("--target", help="target model, in the form that the server accepts")
    parser.add_argument("--draft", help="draft model, in the form that the server accepts")
    parser.add_argument("--method", choices=METHODS, default=DRAFT_MODEL)
    parser.add_argument("--tokenizer", help="path of a tokenizer.json, to send token ids instead of text")
    parser.add_argument("--prompts", type=int, default=16, help="number of prompts from not-looping.jsonl")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.set_defaults(lengths=LENGTHS)
    args = parser.read(prompts=2, max_new_tokens=48, lengths=(0, 1, 2))
    servers = {int(k): address for k, _, address in (each.partition("=") for each in args.server)}
    with tempfile.TemporaryDirectory() as folder:
        if args.quick:
            require("xllamacpp", "gguf")
            from servers import DEMO, LLAMA, as_gguf

            args.program = LLAMA
            args.tokenizer = str(DEMO / "target" / "tokenizer.json")
            args.target, args.draft = (as_gguf(str(DEMO / name), Path(folder), "float32") for name in MODELS)
        if not servers and not (args.program and args.target):
            parser.error("found no servers, expected --server, or --program with --target")
        prompts = read_texts(args)
        if servers:
            answers = ask_servers(servers, args.engine, prompts, args.max_new_tokens)
        else:
            starts = {
                k: server_command(args.engine, args.program, args.target, args.draft, k, method=args.method)
                for k in args.lengths
            }
            answers = start_and_ask(starts, args.engine, prompts, args.max_new_tokens)
    lengths = sorted(answers)
    seen = (0, min(lengths[1:-1], key=lambda k: abs(k - 2)), lengths[-1])
    result = compare(answers, planned_from=seen, drafts_free=args.method == NGRAM)
    if servers and may_speculate(servers[0]):
        result["notes"].append(
            "The server given as K = 0 has counters for speculative decoding: a server started with the speculative "
            "option pays its overhead even at K = 0, so every speedup comes out too high. Start it without the option."
        )
    for row in result["rows"]:
        predicted = "–" if row["predicted"] is None else f"{row['predicted']['value']:.2f}×"
        print(f"K = {row['k']}: predicted {predicted}, measured {row['measured']['value']:.2f}×")
    print(*result["notes"], sep="\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
