"""The `audit` command, which sends requests to running servers. Heavy modules are imported inside functions."""

from __future__ import annotations

from typing import Annotated

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


@app.command("audit")
def audit_command(
    server: Annotated[str, typer.Option("--server", help="Address of the server to audit.")],
    against: Annotated[str, typer.Option("--against", help="Address of the same server without a draft.")],
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

    from .audit import audit
    from .local_server import checked_address
    from .two_samples import AUDIT_FALSE_ALARM, POWER, samples_needed

    check_output_path(out)
    sides = (checked_address(server, remote=remote), checked_address(against, remote=remote))
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
    result = {"server": sides[0], "against": sides[1]} | record
    if out is not None:
        write_atomic(out, json_bytes(result))
    report(result, as_json, audit_report(result, out))
