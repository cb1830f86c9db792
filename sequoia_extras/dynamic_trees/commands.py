"""The commands `lookup` and `beam-plan`. They import heavy modules only when they run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sequoia_core.command_line.formatting import format_interval, format_number, next_command, plural, table
from sequoia_core.command_line.options import EXISTING_FILE, Acceptance, Json, app, existing_file
from sequoia_core.command_line.output import Verbatim, report
from sequoia_core.command_line.progress import show_progress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sequoia_core.acceptance.bootstrap import Estimate


@app.command("lookup")
def lookup_command(
    responses: Annotated[
        Path,
        typer.Option(
            "--responses",
            help="Prompts and answers as text or token ids: JSONL or a JSON list.",
            **EXISTING_FILE,
        ),
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer", help="tokenizer.json, its folder, or a GGUF file; default: the demo's.", exists=True
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="Hardware profile used to choose the best size.", **EXISTING_FILE)
    ] = None,
    as_json: Json = False,
) -> None:
    """Replay recorded answers through trees from text already seen, without loading a model."""
    from sequoia_core.files.model_names import DEMO_PAIR
    from sequoia_core.files.response_logs import load_responses
    from sequoia_core.planning.profile import load_profile

    from .lookup_replay import encode_requests, replay_log, text_encoder

    hardware = None if profile is None else load_profile(profile, needs_draft=False)
    recorded = load_responses(responses)
    with show_progress(as_json) as progress:
        encoded = encode_requests(recorded, text_encoder(tokenizer or DEMO_PAIR / "target"), progress=progress)
        replays = replay_log(encoded.requests, progress=progress)
    own = replays.isolated
    best = own.best_size(hardware)
    estimates = {
        name: {size: replay.tokens_per_step(size) for size in replay.sizes}
        for name, replay in (("own", own), ("shared", replays.shared))
    }
    result = {
        "requests": len(encoded.requests),
        "tokens": int(own.tokens.sum()),
        "exact": encoded.exact,
        "tokens_per_step": {name: {n: e.value for n, e in part.items()} for name, part in estimates.items()},
        "interval": {name: {n: [e.low, e.high] for n, e in part.items()} for name, part in estimates.items()},
        "best_n": best,
        "predicted_speedup": None if hardware is None else own.predicted_speedup(best, hardware),
        "best_n_shared": replays.shared.best_size(hardware),
        "servers": replays.server_settings(hardware),
        "warnings": _replay_warnings(encoded.exact, encoded.left_out, hardware is None),
    }
    report(result, as_json, lookup_report(result, estimates, responses, hardware is not None))


def _replay_warnings(exact: bool, left_out: int, unprofiled: bool) -> list[str]:
    warnings = []
    if not exact:
        warnings.append("The results are estimates: the text was encoded again, so its tokens may have changed.")
    if left_out:
        warnings.append(f"The last {left_out:,} requests were left out, because the log has too many tokens.")
    if unprofiled:
        warnings.append("Without a profile, best_n is the smallest size with 95 % of the largest tree's gain.")
    return warnings


def lookup_report(
    result: dict[str, Any], estimates: dict[str, dict[int, Estimate]], responses: Path, profiled: bool
) -> Iterator[RenderableType]:
    yield f"{plural(result['requests'], 'request')}, {result['tokens']:,} tokens."
    yield "Tokens per step with trees from text already seen:"
    rows = [
        (
            str(size),
            format_interval(*own),
            "*" if size == result["best_n"] else "",
            format_interval(*shared),
            "*" if size == result["best_n_shared"] else "",
        )
        for (size, own), shared in zip(estimates["own"].items(), estimates["shared"].values(), strict=True)
    ]
    yield table(("max nodes", "this text", "", "and earlier answers", ""), rows, words=0)
    why = "fastest according to the profile" if profiled else "smallest with 95 % of the largest tree's gain"
    yield f"* Best size: {why}."
    if result["requests"] == 1:
        yield "A single request gives no interval."
    if result["predicted_speedup"] is not None:
        speed = format_number(result["predicted_speedup"])
        yield f"With n = {result['best_n']}, trees from this text are predicted to give a speedup of {speed}×."
    # Without a profile, the last warning explains a JSON key, so it is not shown here.
    yield from result["warnings"] if profiled else result["warnings"][:-1]
    yield "Closest server settings:"
    for name, text in result["servers"].items():
        yield Verbatim(f"{name}:\n  {text}")
    if profiled:
        yield next_command("generate", "--draft", "none", "--prompt", "def read_lines(path):")
    else:
        yield next_command("lookup", "--responses", responses, "--profile", "profile.json")


@app.command("beam-plan")
def beam_plan_command(
    acceptance: Acceptance,
    profile: Annotated[Path, existing_file("--profile", "Profile from the profile command, or llama-bench output.")],
    as_json: Json = False,
) -> None:
    """Find the tree width, depth and size for SGLang, TensorRT-LLM and OpenVINO, which grow trees themselves."""
    from sequoia_core.acceptance.matrix_files import load_acceptance
    from sequoia_core.acceptance.vector import AcceptanceVector
    from sequoia_core.command_line.inputs import with_note
    from sequoia_core.planning.plan import pair_mismatches
    from sequoia_core.planning.profile import load_profile

    from .engine_settings import plan_beams, settings_text

    vector = with_note(load_acceptance(acceptance))
    if not isinstance(vector, AcceptanceVector):
        vector = AcceptanceVector(vector.probs[0], by_depth=vector)
    hardware = load_profile(profile)
    warnings = pair_mismatches(vector, hardware)
    if vector.calibration is None:
        warnings.append("The vector has no calibration, so what a tree gains by adapting to each step is not counted.")
    result = plan_beams(vector, hardware) | {"warnings": warnings}
    report(
        result, as_json, [Verbatim(settings_text(result)), *warnings, next_command("doctor", "--after", "server.log")]
    )
