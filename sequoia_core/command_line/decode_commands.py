"""Commands that decode with a pair: generate and bench. Slow imports are inside the command functions."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..files.model_names import NO_DRAFT, model_folder, model_source, require_draft
from ..models.pair_spec import PairSpec
from ..models.prompting import Prompting
from .default_trees import default_tree, trees_without_draft
from .inputs import encode_prompts, load_vector, make_sampling, open_pair, pair_options, read_prompts
from .measure_reports import bench_report, generate_report
from .options import (
    PROMPT_COUNT,
    VERIFIER,
    Entries,
    Json,
    MaxNewTokens,
    Out,
    Prompts,
    Seed,
    Temperature,
    TopP,
    app,
    existing_file,
    with_option_groups,
)
from .output import check_output_path, print_note, report
from .progress import show_progress

if TYPE_CHECKING:
    from ..acceptance.vector import AcceptanceVector
    from ..decoding.record import DecodeStep
    from ..decoding.sampling import SamplingConfig
    from ..decoding.tree_policy import TreePolicy
    from ..models.language_model import ModelPair
    from ..planning.profile import HardwareProfile
    from ..trees.tree import TokenTree

CALIBRATION_PROMPTS = 48  # `bench` measures acceptance on this many shipped prompts after those for the race
# The 1 to 3 bytes of an incomplete character are decoded to as many replacement characters.
INCOMPLETE_CHARACTER = re.compile("(?<!\ufffd)\ufffd{1,3}\\Z")

TreeFile = Annotated[
    Path | None,
    existing_file("--tree", "Tree file. Default: planned from a vector and a profile or, without them, a chain of 3."),
]
PlanningVector = Annotated[
    Path | None, existing_file("--acceptance", "Vector to plan with. Default: one shipped for the same settings.")
]
PlanningProfile = Annotated[
    Path | None, existing_file("--profile", "Profile to plan with. Default: one shipped for the pair.")
]


@app.command("generate")
@with_option_groups
def generate_command(
    prompt: Annotated[str, typer.Option("--prompt")],
    spec: PairSpec,
    prompting: Prompting,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    tree: TreeFile = None,
    acceptance: PlanningVector = None,
    profile: PlanningProfile = None,
    entries: Entries = None,
    verifier: Annotated[str | None, VERIFIER] = None,
    as_json: Json = False,
) -> None:
    """Decode a prompt with a token tree."""
    from ..files.prompt_files import check_text
    from ..planning.profile import load_profile
    from ..trees.tree_files import import_tree

    check_text(prompt)
    if tree is not None and (acceptance is not None or profile is not None):
        raise ValueError("--tree cannot be combined with --acceptance or --profile")
    shape = None if tree is None else import_tree(tree)
    vector = load_vector(acceptance, entries)
    hardware = None if profile is None else load_profile(profile, needs_draft=spec.names[1] != NO_DRAFT)
    if vector is not None or (shape is not None and shape.size > 1):
        require_draft(spec.names[1], "the requested tree consists of draft tokens")
    with show_progress(as_json, doing="starting PyTorch"):
        sampling = make_sampling(temperature, top_p, verifier)
    pair = open_pair(spec)
    policy: TokenTree | TreePolicy | None = shape
    source = f"file {tree}"
    if policy is None:
        with show_progress(as_json, doing="choosing trees"):
            policy, source = _choose_tree(pair, sampling, verifier, vector, hardware, prompting)
    ids = encode_prompts(pair, [prompt], prompting)[0]
    options: dict[str, Any] = {"sampling": sampling, "verifier": verifier, "max_new_tokens": max_new_tokens}
    steps, seconds = _decode(ids, pair, policy, seed, as_json, **options)
    result = _generation_result(steps, pair, policy, source) | {"seconds": seconds}
    result |= prompting.record(pair.tokenizer)
    report(result, as_json, generate_report(result, pair_options(spec), _tokenizer_option(spec)))


def _choose_tree(
    pair: ModelPair,
    sampling: SamplingConfig,
    verifier: str | None,
    vector: AcceptanceVector | None,
    profile: HardwareProfile | None,
    prompting: Prompting,
) -> tuple[TokenTree | TreePolicy, str]:
    if pair.draft is None:
        policy, source = trees_without_draft(pair, sampling, profile)
        print_note(f"Decoding with {source}.")
        return policy, source
    tree, source = default_tree(pair, sampling, verifier, vector, profile, prompting.record(pair.tokenizer))
    print_note(f"Decoding with a static tree of {tree.size} nodes, {tree.depth} deep: {source}. Change it with --tree.")
    return tree, source


def _decode(
    ids: list[int],
    pair: ModelPair,
    policy: TokenTree | TreePolicy,
    seed: int,
    as_json: bool,
    *,
    max_new_tokens: int,
    **options: Any,
) -> tuple[list[DecodeStep], float]:
    """Decode a prompt, and return the steps and the elapsed seconds."""
    import torch

    from ..decoding.loop import decode

    generator = torch.Generator().manual_seed(seed)
    steps: list[DecodeStep] = []
    count = 0
    started = time.perf_counter()
    with show_progress(as_json, doing="reading the prompt") as progress:
        for step in decode(ids, pair, tree=policy, max_new_tokens=max_new_tokens, generator=generator, **options):
            steps.append(step)
            count += len(step.new_tokens)
            progress(1.0 if step.finished else count / max_new_tokens, f"{count} tokens")
    return steps, time.perf_counter() - started


def _generation_result(
    steps: list[DecodeStep], pair: ModelPair, policy: TokenTree | TreePolicy, source: str
) -> dict[str, Any]:
    from ..decoding.tree_policy import as_policy
    from ..models.protocol import dtype_name

    tokens = [token for step in steps for token in step.new_tokens]
    text = pair.text(tokens)
    if steps[-1].finished != "eos":
        text = INCOMPLETE_CHARACTER.sub("", text)
    bounds = as_policy(policy)
    return {
        "text": text,
        "tokens": tokens,
        "steps": len(steps),
        "tokens_per_step": len(tokens) / len(steps),
        "dtype": dtype_name(pair.target),
        "finished": steps[-1].finished,
        "tree": {"size": bounds.max_size, "depth": bounds.max_depth, "source": source},
    }


def _tokenizer_option(spec: PairSpec) -> list[str]:
    """Return the option that selects this pair's tokenizer in the lookup command; empty for the demo pair."""
    name = spec.tokenizer or spec.target
    if name is None:
        return []
    return ["--tokenizer", model_folder(name) or model_source(name)]


@app.command("bench")
@with_option_groups
def bench_command(
    spec: PairSpec,
    prompting: Prompting,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    prompts: Prompts = None,
    prompt_count: Annotated[int, PROMPT_COUNT] = 8,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Race the planned tree against decoding without a draft, the best chain and transformers' own methods."""
    require_draft(spec.names[1], "bench races trees of draft tokens")
    from ..decoding.sampling import SamplingConfig
    from ..files.safe_files import json_bytes, write_atomic
    from ..measuring.bench import bench

    sampling = SamplingConfig(temperature)
    check_output_path(out)
    texts = read_prompts(prompts, prompt_count)
    calibration = [] if prompts else read_prompts(None, prompt_count + CALIBRATION_PROMPTS)[prompt_count:]
    pair = open_pair(spec)
    ids, calibration_ids = (encode_prompts(pair, part, prompting, max_new_tokens) for part in (texts, calibration))
    with show_progress(as_json) as progress:
        result = bench(
            pair, ids, sampling=sampling, max_new_tokens=max_new_tokens, calibration=calibration_ids, progress=progress
        )
    result.record["settings"] |= prompting.record(pair.tokenizer)
    size, depth = result.record["tree"].values()
    best = f"the best tree has {size} nodes and depth {depth}" if size > 1 else "no tree is faster"
    print_note(f"According to the acceptance and times measured in this run, {best}.")
    for name, differences in result.record.get("texts_differ", {}).items():
        first = differences[0]
        print_note(
            f"The output of {name} differs from that of autoregressive on {len(differences)} of {len(ids)} prompts. "
            f"On prompt {first['prompt']}, the first of these, {first['words']}."
        )
    if out is not None:
        write_atomic(out, json_bytes(result.record))
    report(result.record, as_json, bench_report(result.record, result.over_plain, pair_options(spec)))
