"""The command audit, which asks running servers."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from .inputs import prompt_texts
from .measured_words import audit_parts
from .options import PROMPT_COUNT, Column, Json, MaxNewTokens, Out, Prompts, Temperature, TopP, app
from .output import check_out, report, tell
from .progress import shown_progress

SWITCHED_OFF = '{"speculative.n_max": 0}'  # llama.cpp of 2025


@app.command("audit")
def audit_command(
    server: Annotated[str, typer.Option("--server", help="Address of the server that speculates.")],
    against: Annotated[
        str | None, typer.Option("--against", help="The same model without a draft; default: --server with --off.")
    ] = None,
    off: Annotated[
        str, typer.Option("--off", help="JSON of the fields that switch a request's draft off, without --against.")
    ] = SWITCHED_OFF,
    remote: Annotated[bool, typer.Option("--remote", help="Let servers be on other machines.")] = False,
    model: Annotated[str | None, typer.Option("--model", help="Which one, where a server has several.")] = None,
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
    from ..design.same_law import FALSE_ALARM, POWER, samples_needed
    from ..files.local_server import checked_address
    from ..files.safe_files import json_bytes, write_atomic
    from ..studies.audit import Side, audit

    check_out(out)
    plain = checked_address(against or server, remote=remote)
    sides = (Side(checked_address(server, remote=remote)), Side(plain, {} if against else _fields(off)))
    sampling: dict = {"temperature": temperature, "top_p": top_p} | ({} if model is None else {"model": model})
    if not 0 <= temperature <= 10 or not 0 < top_p <= 1:
        raise ValueError(f"found temperature {temperature:g}, top-p {top_p:g}, expected 0 to 10, above 0 to 1")
    texts = prompt_texts(prompts, prompt_count or (4 if temperature else 32), column)
    if temperature:
        tell(
            f"Asks for {samples_needed(bias):,} answers of each side: a bias of total variation {bias:g} is found with "
            f"a probability of {POWER:g} or more, a lossless server is called biased in {FALSE_ALARM:.0%} of audits."
        )
    with shown_progress(as_json) as progress:
        found = audit(sides, texts, sampling=sampling, length=max_new_tokens, variation=bias, progress=progress)
    result = {"server": sides[0].address, "against": plain, "off": sides[1].fields} | found
    if out is not None:
        write_atomic(out, json_bytes(result))
    report(result, as_json, audit_parts(result, out))


def _fields(text: str) -> dict:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"--off: found {text[:80]!r}, expected a JSON object such as {SWITCHED_OFF}")
    return found
