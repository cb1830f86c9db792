"""The `audit` command, which sends requests to running servers. Heavy modules are imported inside functions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sequoia_core.command_line.inputs import prompt_texts
from sequoia_core.command_line.options import (
    PROMPT_COUNT,
    Column,
    Json,
    MaxNewTokens,
    Out,
    Prompts,
    Temperature,
    TopP,
    app,
)
from sequoia_core.command_line.output import check_output_path, print_note, report
from sequoia_core.command_line.progress import show_progress

from .words import audit_report

DEFAULT_OFF = '{"speculative.n_max": 0}'  # llama.cpp's request field, until 2025


@app.command("audit")
def audit_command(
    server: Annotated[str, typer.Option("--server", help="Address of the server to audit.")],
    against: Annotated[
        str | None, typer.Option("--against", help="Address of a server without a draft; default: --server with --off.")
    ] = None,
    off: Annotated[
        str | None,
        typer.Option(
            "--off",
            help=f"JSON object of request fields that turn drafting off; default: {DEFAULT_OFF}.",
        ),
    ] = None,
    remote: Annotated[bool, typer.Option("--remote", help="Allow servers on other machines.")] = False,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    bias: Annotated[
        float, typer.Option("--bias", help="Bias to detect above temperature 0, as total variation.", min=0.01, max=1)
    ] = 0.05,
    prompts: Prompts = None,
    column: Column = None,
    prompt_count: Annotated[int | None, PROMPT_COUNT] = None,
    max_new_tokens: MaxNewTokens = 128,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Test whether a server's speculation is lossless by sending the same requests with and without a draft."""
    from sequoia_core.files.safe_files import json_bytes, write_atomic

    from .audit import Side, audit
    from .local_server import checked_address
    from .two_samples import AUDIT_FALSE_ALARM, POWER, samples_needed

    check_output_path(out)
    if against is not None and off is not None:
        raise ValueError(f"--off: found {off[:80]!r} together with --against, expected only one of them")
    plain = checked_address(server if against is None else against, remote=remote)
    fields = _parse_fields(DEFAULT_OFF if off is None else off) if against is None else {}
    sides = (Side(checked_address(server, remote=remote)), Side(plain, fields))
    if not 0 <= temperature <= 10 or not 0 < top_p <= 1:
        raise ValueError(f"--temperature {temperature:g}, --top-p {top_p:g}: expected 0 to 10 and 0 < top-p <= 1")
    texts = prompt_texts(prompts, prompt_count or (4 if temperature else 32), column)
    if temperature:
        print_note(
            f"Requesting {samples_needed(bias):,} answers from each side. A bias of total variation {bias:g} is "
            f"detected with a probability of at least {POWER:g}; {AUDIT_FALSE_ALARM:.0%} of audits of a lossless "
            "server find a bias."
        )
    sampling = {"temperature": temperature, "top_p": top_p}
    with show_progress(as_json) as progress:
        record = audit(sides, texts, sampling=sampling, length=max_new_tokens, variation=bias, progress=progress)
    result = {"server": sides[0].address, "against": plain, "off": fields} | record
    if out is not None:
        write_atomic(out, json_bytes(result))
    report(result, as_json, audit_report(result, out))


def _parse_fields(text: str) -> dict[str, Any]:
    from sequoia_core.files.safe_files import read_json

    try:
        fields = read_json(text.encode())
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise ValueError(f"--off: found {text[:80]!r}, expected a JSON object such as {DEFAULT_OFF}")
    return fields
