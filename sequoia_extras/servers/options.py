"""The options of the `doctor` and `server-plan` commands, and their values."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from sequoia_core.command_line.options import EXISTING_FILE

METHOD_HELP = (
    "draft (a model), eagle3, mtp, dflash, dspark or ngram, or the server's name for it, such as draft-mtp; default: "
    "the method that the counts name or suggest."
)
EXPECTED_TIMED = "expected K=tokens per second, optionally followed by @batch or @batch:context"
TIMED_HELP = (
    "Costs: tokens per second for several K, optionally @batch: 0=70,2=110,4=118,0=200@4. K = 0 is a server started "
    "without the speculative option."
)


After = Annotated[
    Path,
    typer.Option(
        "--after",
        help="A server's metrics, JSON answers, log or benchmark report; or a saved matrix or measured vector.",
        **EXISTING_FILE,
    ),
]
Before = Annotated[
    Path | None, typer.Option("--before", help="An earlier reading of the metrics to subtract.", **EXISTING_FILE)
]
Earlier = Annotated[
    Path | None,
    typer.Option(
        "--earlier",
        help="Counts from another period, or published rates for the same draft, to compare with.",
        **EXISTING_FILE,
    ),
]
Engine = Annotated[str, typer.Option("--engine", help="Engine that wrote the source: auto, vllm, llama.cpp or sglang.")]
Model = Annotated[
    str | None, typer.Option("--model", help="Model to select if there are several, drafter in a log, or report.")
]
Rates = Annotated[str | None, typer.Option("--rates", help="Type of per-position rates: survival or conditional.")]
Profile = Annotated[
    Path | None,
    typer.Option("--profile", help="Costs: a measured or modelled profile, or llama-bench output.", **EXISTING_FILE),
]
BenchDraft = Annotated[
    Path | None,
    typer.Option("--bench-draft", help="llama-bench output for the draft, if in a separate file.", **EXISTING_FILE),
]
Row = Annotated[bool, typer.Option("--row", help="Print the result as one row of a Markdown table; JSON with --json.")]
Cells = Annotated[
    list[str] | None,
    typer.Option("--cell", help="With --row, a cell such as hardware=H100 or version=0.32; can be repeated."),
]
Timed = Annotated[str | None, typer.Option("--timed", help=TIMED_HELP)]
TargetShape = Annotated[
    str | None, typer.Option("--target-shape", help="Config of a mixture-of-experts target, to scale times.")
]
Batches = Annotated[str, typer.Option("--batch", help="Batch sizes, in concurrent requests, comma-separated.")]
DraftCost = Annotated[
    str | None,
    typer.Option(
        "--draft-cost",
        help="Costs: what drafting and checking a token takes, in percent of a target pass, as one number or a range. "
        "Default without --timed and --profile: 2-20.",
    ),
]
DraftLength = Annotated[
    int | None,
    typer.Option("--draft-length", help="The server's K, if the source contains only averages.", min=1, max=1024),
]
Contexts = Annotated[str | None, typer.Option("--context", help="Context lengths, in tokens, comma-separated.")]
Method = Annotated[str | None, typer.Option("--method", help=METHOD_HELP)]
NewTokens = Annotated[
    int | None, typer.Option("--new-tokens", help="Tokens in every answer, if the records lack it.", min=2, max=2**31)
]


def parse_timed(text: str | None) -> list[tuple[int, float, int, int | None]]:
    """Return the K, the tokens per second, the batch size and the context, if any, of each timed setting."""
    return [] if text is None else [_parse_setting(part) for part in text.split(",")]


def _parse_setting(part: str) -> tuple[int, float, int, int | None]:
    k, _, rest = part.partition("=")
    rate, _, load = rest.partition("@")
    batch, _, context = load.partition(":")
    try:
        setting = int(k), float(rate), int(batch or 1), int(context) if context else None
        if not 0 < setting[1] < float("inf"):
            raise ValueError("expected a rate above 0")
    except ValueError as error:
        raise ValueError(f"--timed: found {part[:40]!r}, {EXPECTED_TIMED}") from error
    return setting


def parse_numbers(option: str, text: str, least: int, most: int) -> list[int]:
    """Return the whole numbers in a comma-separated list."""
    numbers: list[int] = []
    with suppress(ValueError):
        numbers = [int(part) for part in text.split(",")]
    if not numbers or not all(least <= number <= most for number in numbers):
        raise ValueError(
            f"{option}: found {text[:40]!r}, expected whole numbers from {least} to {most:,}, separated by commas"
        )
    return numbers


def parse_draft_cost(text: str | None, *, alone: bool) -> tuple[float, ...]:
    """Return the bounds of a draft token's cost as shares of a target pass; nothing without a text.

    `alone` is whether there are no other costs.
    """
    if text is None:
        return ()
    if not alone:
        raise ValueError("--draft-cost: found --timed or --profile, expected only one source of costs")
    low, _, high = text.replace("%", "").partition("-")
    bounds: tuple[float, ...] = ()
    with suppress(ValueError):
        bounds = (float(low) / 100, float(high or low) / 100)
    if not bounds or not 0 <= bounds[0] <= bounds[1] <= 10:
        raise ValueError(f"--draft-cost: found {text[:40]!r}, expected percentages such as 5 or 2-20")
    return bounds
