"""The commands server-check and audit, which ask real servers. Heavy modules are imported inside."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .inputs import prompt_texts, vector_of, whole_numbers
from .measured_words import audit_parts, server_check_parts
from .options import PROMPT_COUNT, READ, Column, Json, MaxNewTokens, Out, Prompts, Rule, Temperature, TopP, app
from .output import check_out, report, tell
from .progress import shown_progress
from .server_commands import METHOD_HELP

if TYPE_CHECKING:
    from ..servers.counts import ServerCounts

PROGRAMS = {"vllm": "python -m vllm.entrypoints.openai.api_server", "llama.cpp": "llama-server"}
SWITCHED_OFF = '{"speculative.n_max": 0}'  # llama.cpp until 2025


@app.command("server-check")
def server_check_command(
    engine: Annotated[str, typer.Option("--engine", help="vllm or llama.cpp.")],
    target: Annotated[str | None, typer.Option("--target", help="Model, as the server takes it.")] = None,
    draft: Annotated[str | None, typer.Option("--draft", help="Its draft, the same.")] = None,
    method: Annotated[str, typer.Option("--method", help=METHOD_HELP)] = "draft",
    program: Annotated[
        str | None, typer.Option("--program", help="What starts the server, with any options of yours in quotes.")
    ] = None,
    server: Annotated[
        list[str] | None, typer.Option("--server", help="A running one instead: K=ADDRESS, once for each setting.")
    ] = None,
    remote: Annotated[bool, typer.Option("--remote", help="Let --server be on another machine.")] = False,
    settings: Annotated[str, typer.Option("--settings", help="Lengths of draft, 0 among them.")] = "0,1,2,3,4,6,8",
    planned_from: Annotated[
        str | None,
        typer.Option(
            "--planned-from",
            help="What the plan sees: 0, the longest, one between (default: near 2).",
        ),
    ] = None,
    prompts: Prompts = None,
    column: Column = None,
    prompt_count: Annotated[int, PROMPT_COUNT] = 16,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    acceptance: Annotated[
        Path | None,
        typer.Option("--acceptance", help="Plan by a vector measured here, not by what the server counts.", **READ),
    ] = None,
    rule: Rule = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="Send token ids by this tokenizer.json.", exists=True)
    ] = None,
    one_at_a_time: Annotated[
        bool, typer.Option("--one-at-a-time", help="Run one server after the other, where memory holds no more.")
    ] = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Run the same requests on a server at several lengths of draft, and compare with what two of them predict."""
    # Long only by its options, which typer reads from the signature.
    from ..files.safe_files import json_bytes, write_atomic
    from ..servers.check import (
        ask_servers,
        check_planned_from,
        compare,
        may_speculate,
        server_command,
        start_and_ask,
    )
    from ..servers.flags import METHODS
    from ..servers.local_server import checked_address

    if method not in METHODS:
        raise ValueError(f"--method: found {method[:40]!r}, expected one of {', '.join(METHODS)}")
    if engine not in PROGRAMS:
        raise ValueError(f"--engine: found {engine[:40]!r}, expected one of {', '.join(PROGRAMS)}")
    check_out(out)
    given = dict(_given(each) for each in server or ())
    lengths = sorted(given) if server else _lengths("--settings", settings)
    between = min(lengths[1:-1], key=lambda k: abs(k - 2), default=0)
    seen = [0, between, lengths[-1]] if planned_from is None else _lengths("--planned-from", planned_from)
    check_planned_from(seen, lengths)
    sampling = _sampling(temperature, top_p)
    asked = sampling | {"ignore_eos": acceptance is None}  # a vector's texts end where the target ended them
    if acceptance is None and rule is not None:
        raise ValueError(f"--rule: found {rule[:40]!r} without --acceptance, expected both")
    expected = None if acceptance is None else _expected(acceptance, engine, rule, lengths[-1], sampling)
    sent: list = prompt_texts(prompts, prompt_count, column)
    if tokenizer is not None:
        sent = _ids(tokenizer, sent)
    if given:
        servers = {k: checked_address(address, remote=remote) for k, address in given.items()}
        with shown_progress(as_json) as progress:
            answers = ask_servers(servers, engine, sent, max_new_tokens, sampling=asked, progress=progress)
    else:
        if target is None or (method not in ("ngram", "mtp") and draft is None):
            raise ValueError("found no models to start a server with, expected --target and --draft, or --server")
        starts = {
            k: server_command(engine, program or PROGRAMS[engine], target, draft, k, method=method) for k in lengths
        }
        tell(f"Starts {len(starts)} servers{', one after the other' if one_at_a_time else ', all at once'}.")
        with _ended_too(), shown_progress(as_json) as progress:
            answers = start_and_ask(
                starts, engine, sent, max_new_tokens, one_at_a_time=one_at_a_time, sampling=asked, progress=progress
            )
    result: dict[str, Any] = {
        "engine": engine,
        "method": method,
        "requests": len(sent),
        "max_new_tokens": max_new_tokens,
        **asked,
    }
    result |= compare(answers, planned_from=seen, drafts_free=method == "ngram", expected=expected)
    result |= {"same_text": None} if temperature else {}
    if given and may_speculate(servers[0]):
        result["notes"].append(
            "The server given as K = 0 has counters of speculative decoding: a server started with the speculative "
            "option pays its overhead even at K = 0, and every speedup comes out too high. Start it without the option."
        )
    if out is not None:
        write_atomic(out, json_bytes(result))
    report(result, as_json, server_check_parts(result, out))


@app.command("audit")
def audit_command(
    server: Annotated[str, typer.Option("--server", help="Address of the server that speculates.")],
    against: Annotated[
        str | None, typer.Option("--against", help="The same model without a draft; default: --server with --off.")
    ] = None,
    off: Annotated[
        str | None,
        typer.Option(
            "--off",
            help=f"JSON of the fields that switch a request's draft off, without --against; default: {SWITCHED_OFF}.",
        ),
    ] = None,
    remote: Annotated[bool, typer.Option("--remote", help="Let servers be on other machines.")] = False,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    bias: Annotated[
        float, typer.Option("--bias", help="Total variation to be found above temperature 0.", min=0.01, max=1)
    ] = 0.05,
    prompts: Prompts = None,
    column: Column = None,
    prompt_count: Annotated[int | None, PROMPT_COUNT] = None,
    max_new_tokens: MaxNewTokens = 128,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Say whether a server's speculation is lossless: the same requests with a draft and without."""
    # Long only by its options, which typer reads from the signature.
    from ..files.safe_files import json_bytes, write_atomic
    from ..servers.audit import Side, audit
    from ..servers.local_server import checked_address
    from ..servers.same_law import FALSE_ALARM, POWER, samples_needed

    check_out(out)
    if against is not None and off is not None:
        raise ValueError(f"--off: found {off[:80]!r} beside --against, expected one of them")
    plain = checked_address(server if against is None else against, remote=remote)
    fields = _fields(SWITCHED_OFF if off is None else off) if against is None else {}
    sides = (Side(checked_address(server, remote=remote)), Side(plain, fields))
    sampling = _sampling(temperature, top_p)
    texts = prompt_texts(prompts, prompt_count or (4 if temperature else 32), column)
    if temperature:
        tell(
            f"Asks for {samples_needed(bias):,} answers of each side: a bias of total variation {bias:g} is found with "
            f"a probability of {POWER:g} or more, a lossless server is called biased in {FALSE_ALARM:.0%} of audits."
        )
    with shown_progress(as_json) as progress:
        record = audit(sides, texts, sampling=sampling, length=max_new_tokens, variation=bias, progress=progress)
    result = {"server": sides[0].address, "against": plain, "off": sides[1].fields} | record
    if out is not None:
        write_atomic(out, json_bytes(result))
    report(result, as_json, audit_parts(result, out))


def _sampling(temperature: float, top_p: float) -> dict[str, float]:
    if not 0 <= temperature <= 10 or not 0 < top_p <= 1:
        raise ValueError(f"--temperature {temperature:g}, --top-p {top_p:g}: expected 0 to 10, and above 0 to 1")
    return {"temperature": temperature, "top_p": top_p}


def _expected(path: Path, engine: str, rule: str | None, longest: int, sampling: dict[str, float]) -> ServerCounts:
    """Return what the server should count by a vector measured at the temperature and top-p of the requests."""
    from ..servers.chain_acceptance import CARRIED_POSITIONS, MATCH, counts_of_vector

    vector = vector_of(path, None)
    assert vector is not None, "a path was given"
    known = vector.holds_for
    if known is not None and (known.temperature, known.top_p, known.top_k) != (*sampling.values(), 0):
        raise ValueError(
            f"--acceptance: found a vector measured at {known.sampling}, expected one at --temperature "
            f"{sampling['temperature']:g} --top-p {sampling['top_p']:g}"
        )
    # what follows a draft accepted whole counts as guessed: of drafts no longer than the server's that is too often
    return counts_of_vector(vector, engine, rule or MATCH, longest=max(longest, CARRIED_POSITIONS))


def _given(text: str) -> tuple[int, str]:
    k, _, address = text.partition("=")
    if not k.isdecimal() or not address:
        raise ValueError(f"--server: found {text[:80]!r}, expected K=ADDRESS such as 4=http://127.0.0.1:8000")
    return int(k), address


def _lengths(option: str, text: str) -> list[int]:
    lengths = sorted({*whole_numbers(option, text)})
    if lengths[0] != 0 or len(lengths) < 3:
        raise ValueError(f"{option}: found {text!r}, expected 0 and two numbers above it")
    return lengths


def _fields(text: str) -> dict:
    from ..files.safe_files import read_json

    try:
        fields = read_json(text.encode())
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise ValueError(f"--off: found {text[:80]!r}, expected a JSON object such as {SWITCHED_OFF}")
    return fields


def _ids(path: Path, texts: list[str]) -> list[list[int]]:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # what tokenizers raises has no class of its own
        raise ValueError(
            f"--tokenizer {path}: found what does not load ({error}), expected a tokenizer.json"
        ) from error
    return [tokenizer.encode(text).ids for text in texts]


@contextmanager
def _ended_too() -> Iterator[None]:
    """End what was started also where this process is told to end: an interrupt unwinds, a termination would not."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if name in signal.Signals.__members__]
    earlier = {name: signal.signal(signal.Signals[name], interrupt) for name in names}
    try:
        yield
    finally:
        for name, handler in earlier.items():
            signal.signal(signal.Signals[name], handler)
