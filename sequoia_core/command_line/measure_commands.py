"""Commands that measure a pair: measure, profile. Heavy modules are imported inside the commands."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..design.acceptance import AcceptanceVector
from ..design.break_even import chain_pays, idle_arithmetic
from ..files.model_names import needed_draft
from ..models.pair_spec import PairSpec
from ..models.prompting import Prompting
from .inputs import checked_sampling, encoded, given_prompts, open_pair, pair_options, whole_numbers
from .measured_words import measure_parts, profile_parts
from .options import (
    PROMPT_COUNT,
    READ,
    VERIFIER,
    Column,
    Json,
    MaxNewTokens,
    Out,
    Prompts,
    Seed,
    Temperature,
    TopP,
    app,
    grouped,
)
from .output import check_out, report
from .progress import shown_progress

if TYPE_CHECKING:
    from ..design.model_shapes import ModelShape
    from ..design.roofline import Device as Machine
    from ..models.language_model import ModelPair

MORE_PROMPTS_FOR = 0.01  # the ± that `measure` says how many more prompts would reach
MAX_WORKING_BYTES = 2**30  # read over and over to find the bandwidth


def _json_probs(vector: AcceptanceVector) -> dict:
    interval = vector.interval()
    low, high = (a.tolist() for a in interval) if interval else (None, None)
    result = {"probs": vector.probs.tolist(), "trials": vector.trials, "ci_low": low, "ci_high": high}
    if (deeper := vector.by_depth) is not None:
        bounds = zip(("ci_low", "ci_high"), deeper.interval() or (), strict=False)
        result["by_depth"] = {"probs": deeper.probs.tolist(), **{name: part.tolist() for name, part in bounds}}
    return result


@app.command("measure")
@grouped
def measure_command(
    spec: PairSpec,
    prompting: Prompting,
    prompts: Prompts = None,
    column: Column = None,
    own_text: Annotated[
        bool, typer.Option("--own-text", help="The prompts are the text to measure on; nothing is generated.")
    ] = False,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    width: Annotated[int, typer.Option("--width", help="Ranks to measure.", min=1)] = 32,
    verifier: Annotated[str, VERIFIER] = "sequoia",
    out: Out = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", help="Partial vector to go on from; default: --out, where it is partial.", **READ),
    ] = None,
    max_new_tokens: MaxNewTokens = 128,
    prompt_count: Annotated[int | None, PROMPT_COUNT] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure a pair's acceptance vector on text the target writes, or on your own.

    With --out the vector so far is saved after each prompt; the same command goes on from there when it was cut.
    """
    needed_draft(spec.names[1], "measuring acceptance compares two models")
    from ..studies.measure_acceptance import CannotResume, Checkpoints, check_measured, measure_acceptance

    sampling = checked_sampling(temperature, top_p, verifier)
    check_measured(verifier)
    prompting = replace(prompting, chat=False) if own_text else prompting
    check_out(out)
    texts = given_prompts(prompts, prompt_count, column)
    partial = _partial_vector(resume, out)
    pair = open_pair(spec)
    ids = encoded(pair, texts, prompting, None if own_text else max_new_tokens)
    started = time.perf_counter()
    try:
        with shown_progress(as_json) as progress:
            vector = measure_acceptance(
                ids, pair, sampling=sampling, width=width, max_new_tokens=None if own_text else max_new_tokens,
                verifier=verifier, seed=seed,
                checkpoints=Checkpoints(
                    partial, None if out is None else lambda v: v.save(out), prompting.record(pair.tokenizer)
                ),
                progress=progress,
            )  # fmt: skip
    except CannotResume as error:
        source = f"--resume {resume}" if resume is not None else f"--out {out} (partial)"
        raise ValueError(f"{source}: {error}; or choose another file") from error
    if out is not None:
        vector.save(out)
    more = {"more_prompts": vector.more_prompts(2 * MORE_PROMPTS_FOR), "more_prompts_for": f"±{MORE_PROMPTS_FOR}"}
    resumed = 0 if partial is None or partial.prompt_trials is None else len(partial.prompt_trials)
    assert vector.holds_for is not None
    result = (
        _json_probs(vector)
        | more
        | {"source": vector.meta["source"], "prompts": len(ids), "resumed_prompts": resumed}
        | {name: vector.meta[name] for name in ("dtype", "prompt_ending", "template_arguments")}
        | {"holds_for": vector.holds_for.to_json()}
        | ({} if vector.by_depth is None else {"wiring": _wiring(vector, pair, ids)})
        | {"seconds": time.perf_counter() - started}
    )
    models = pair_options(spec)
    people = measure_parts(vector, result, within=MORE_PROMPTS_FOR, models=models, out=out)
    report(result, as_json, people)


def _wiring(vector: AcceptanceVector, pair: ModelPair, texts: Sequence[Sequence[int]]) -> str | None:
    """Say how a head that is hardly accepted is wired wrong, or that it is; None where nothing looks so."""
    from ..servers.chain_acceptance import counts_of_vector
    from ..servers.rules import wired_wrong
    from ..studies.head_wiring import better_wiring

    if (other := better_wiring(texts, pair)) is not None:
        return str(other)
    found = wired_wrong(counts_of_vector(vector, ""))
    return None if found is None else str(found)


def _partial_vector(resume: Path | None, out: Path | None) -> AcceptanceVector | None:
    """Return the vector to go on from: the one named, or what a cut run left at --out."""
    from ..studies.measure_acceptance import is_partial

    if resume is not None:
        return AcceptanceVector.load(resume)
    if out is None or not out.is_file():
        return None
    try:
        vector = AcceptanceVector.load(out)
    except ValueError:  # some other file: it is replaced, as it would be without a cut
        return None
    return vector if is_partial(vector) else None


@app.command("profile")
@grouped
def profile_command(
    spec: PairSpec,
    target_shape: Annotated[
        str | None,
        typer.Option("--target-shape", help="Sizes of a target without weights: a name or a config.json."),
    ] = None,
    draft_shape: Annotated[str | None, typer.Option("--draft-shape", help="The same for its draft.")] = None,
    device_model: Annotated[
        str | None,
        typer.Option("--device-model", help="Model the times of this device, such as a100-80g, or of this-machine."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes", help="Tokens per target pass, separated by commas; default: 1 to 64, modelled to 1024."
        ),
    ] = None,
    guess: Annotated[
        float | None,
        typer.Option("--guess", help="How often the draft is taken to be right, such as 0.7: says whether it pays."),
    ] = None,
    context: Annotated[int, typer.Option("--context", help="Tokens already in the cache.", min=1)] = 128,
    out: Out = None,
    repeats: Annotated[int, typer.Option("--repeats", help="Rounds of timing, those of --resume included.", min=1)] = 9,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Profile of the same pair, sizes and context to go on from.", **READ)
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how long passes of the pair take on this machine, or of two shapes, or model them for a device."""
    wanted = None if sizes is None else whole_numbers("--sizes", sizes)
    if guess is not None and not 0 < guess < 1:
        raise ValueError(f"--guess: found {guess:g}, expected a share between 0 and 1")
    check_out(out)
    without_weights = (target_shape, draft_shape, device_model) != (None, None, None)
    if not without_weights:
        if resume is not None or guess is not None:
            needed_draft(spec.names[1], "--resume and --guess concern the times of two models")
    elif (spec.target, spec.draft, spec.device, resume) != (None, None, None, None):
        raise ValueError(
            "found a shape or --device-model beside --target, --draft, --device or --resume, expected one or the other"
        )
    if device_model is not None:
        from ..design.roofline import SIZES, modelled_profile

        shapes, dtype = _shapes(target_shape, draft_shape), str(spec.dtype or "bfloat16")
        machine = _device(device_model, shapes[0].weight_bytes(dtype))
        profile = modelled_profile(
            *shapes, machine, dtype=dtype, context=context, offload=spec.offload, sizes=wanted or SIZES
        )
    else:
        from ..design.profile import HardwareProfile
        from ..studies.measure_profile import DEFAULT_SIZES, checked_sizes, measure_profile

        wanted = checked_sizes(wanted or DEFAULT_SIZES)
        earlier = None if resume is None else HardwareProfile.load(resume)
        if without_weights:
            pair = _random_pair(_shapes(target_shape, draft_shape), spec)
        else:
            pair = open_pair(spec)
        with shown_progress(as_json) as progress:
            profile = measure_profile(
                pair, sizes=wanted, context=context, repeats=repeats, resume=earlier, progress=progress
            )
    if out is not None:
        profile.save(out)
    pays = None if guess is None else chain_pays(guess, profile)
    result = profile.to_json() | ({} if pays is None else {"pays": pays._asdict()})
    report(result, as_json, profile_parts(profile, idle_arithmetic(profile), out, pays))


def _shapes(target: str | None, draft: str | None) -> tuple[ModelShape, ModelShape]:
    from ..design.model_shapes import find_shape

    if not (target and draft):
        raise ValueError(f"--target-shape, --draft-shape: found {target!r}, {draft!r}, expected both")
    return find_shape(target), find_shape(draft)


def _device(name: str, working_bytes: int) -> Machine:
    """Return a device of the table, or "this-machine", whose bounds are measured, reading so many bytes."""
    from ..design.roofline import find_device

    if name != "this-machine":
        return find_device(name)
    from ..studies.measure_bounds import measure_bounds

    return measure_bounds(working_bytes=min(working_bytes, MAX_WORKING_BYTES))


def _random_pair(shapes: tuple[ModelShape, ModelShape], spec: PairSpec) -> ModelPair:
    """Make a pair of two shapes in memory, in the dtype that models stored in bfloat16 load in here."""
    from ..models.default_dtype import dtype_for
    from ..models.random_models import random_pair

    if spec.offload is not None:
        raise ValueError(
            f"--offload: found {spec.offload!r} for shapes without files, expected --device-model beside it, or "
            "--target and --draft written by scripts/make_random_model.py"
        )
    first, second = (f"{shape.model or shape.name} (random weights)" for shape in shapes)
    target, draft = (shape.to_config() for shape in shapes)
    dtype = str(spec.dtype or dtype_for("bfloat16", target, gpu=False).dtype)
    return random_pair(target, draft, names=(first, second), dtype=dtype)
