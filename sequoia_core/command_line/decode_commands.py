"""Commands that decode with a pair: generate, bench. Heavy modules are imported inside the commands."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..design.acceptance import AcceptanceVector
from ..design.conditions import SEQUOIA, Conditions, measured_as
from ..design.tree import TokenTree
from ..files.gguf_header import is_gguf
from ..files.model_names import ASSETS, NO_DRAFT, model_folder, model_source, needed_draft, shipped_files
from ..models.pair_spec import PairSpec
from ..models.prompting import Prompting
from .inputs import checked_sampling, encoded, given_prompts, open_pair, pair_options, vector_of
from .measured_words import bench_parts, generate_parts
from .options import (
    PROMPT_COUNT,
    READ,
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
    grouped,
)
from .output import check_out, report, tell
from .progress import shown_progress

if TYPE_CHECKING:
    from ..decoding.sampling import SamplingConfig
    from ..decoding.tree_policy import TreePolicy
    from ..design.profile import HardwareProfile
    from ..models.language_model import ModelPair

CALIBRATED = 48  # shipped prompts on which `bench` measures acceptance, besides those it races
CUT_CHARACTER = re.compile("(?<!\ufffd)\ufffd{1,3}\\Z")  # what decoding makes of its first 1 to 3 bytes


@app.command("generate")
@grouped
def generate_command(
    prompt: Annotated[str, typer.Option("--prompt")],
    spec: PairSpec,
    prompting: Prompting,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    tree: Annotated[
        Path | None,
        typer.Option("--tree", help="Tree file; default: by vector and profile, or a chain of 4 if none fit.", **READ),
    ] = None,
    acceptance: Annotated[
        Path | None,
        typer.Option("--acceptance", help="Vector to plan the tree from; default: a shipped one that holds.", **READ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", help="Profile to plan the tree from; default: a shipped one of the pair.", **READ),
    ] = None,
    entries: Entries = None,
    verifier: Annotated[str | None, VERIFIER] = None,
    as_json: Json = False,
) -> None:
    """Decode a prompt with a token tree."""
    # Long only by its options, which typer reads from the signature.
    from ..design.bench_profile import load_profile
    from ..design.tree_files import import_tree
    from ..files.prompt_files import check_text

    check_text(prompt)
    if tree is not None and (acceptance is not None or profile is not None):
        raise ValueError("--tree: found it together with --acceptance or --profile, expected one or the other")
    shape = None if tree is None else import_tree(tree)
    vector = vector_of(acceptance, entries)
    hardware = None if profile is None else load_profile(profile, needs_draft=spec.names[1] != NO_DRAFT)
    if vector is not None or (shape is not None and shape.size > 1):
        needed_draft(spec.names[1], "it fills the tree that was asked for")
    with shown_progress(as_json, doing="starting PyTorch"):
        import torch

        from ..decoding.loop import decode
        from ..decoding.tree_policy import policy_of
        from ..models.protocol import dtype_name

        sampling = checked_sampling(temperature, top_p, verifier)
    pair = open_pair(spec)
    source = f"file {tree}"
    policy: TokenTree | TreePolicy | None = shape
    with shown_progress(as_json, doing="choosing trees"):
        if policy is None and pair.draft is None:
            policy, source = _lookup_trees(pair, hardware)
            tell(f"Decodes with {source}.")
        elif policy is None:
            prompted = prompting.record(pair.tokenizer)
            policy, source = default_tree(pair, sampling, verifier, vector, hardware, prompted)
            size, depth = policy.size, policy.depth
            tell(f"Decodes with a static tree of {size} nodes, {depth} deep: {source}; --tree takes another.")
    bounds = policy_of(policy)
    steps, tokens = [], []
    started = time.perf_counter()
    with shown_progress(as_json, doing="reading the prompt") as progress:
        for step in decode(
            encoded(pair, [prompt], prompting)[0], pair, tree=policy, sampling=sampling, max_new_tokens=max_new_tokens,
            verifier=verifier, generator=torch.Generator().manual_seed(seed),
        ):  # fmt: skip
            steps.append(step)
            tokens += step.new_tokens
            progress(1.0 if step.finished else len(tokens) / max_new_tokens, f"{len(tokens)} tokens")
    seconds = time.perf_counter() - started
    text = pair.text(tokens)
    if steps[-1].finished != "eos":
        text = CUT_CHARACTER.sub("", text)
    result = {
        "text": text,
        "tokens": tokens,
        "steps": len(steps),
        "tokens_per_step": len(tokens) / len(steps),
        "seconds": seconds,
        "dtype": dtype_name(pair.target),
        "finished": steps[-1].finished,
        **prompting.record(pair.tokenizer),
        "tree": {"size": bounds.max_size, "depth": bounds.max_depth, "source": source},
    }
    report(result, as_json, generate_parts(result, pair_options(spec), _tokenizer_option(spec)))


def _tokenizer_option(spec: PairSpec) -> list[str]:
    """Return what makes the lookup command encode texts as this pair does, where its default does not."""
    name = spec.tokenizer or spec.target
    if name is None:
        return []
    source = model_source(name)
    return ["--tokenizer", source if is_gguf(source) else model_folder(name) or source]


def _shipped_of(pair: ModelPair, kind: str) -> Iterator[Path]:
    """Yield the shipped files that name a pair's target: reading a vector with its calibration takes 0.1 s."""
    from ..models.protocol import dtype_name

    named = json.dumps(pair.target.name).encode()
    paths = shipped_files(ASSETS / kind, dtype_name(pair.target)).values()
    return (path for path in paths if named in path.read_bytes())


def _lookup_trees(pair: ModelPair, profile: HardwareProfile | None) -> tuple[TreePolicy, str]:
    """Return trees from the text under way for a target alone, by the user's profile or a shipped one."""
    from ..decoding.growing.policies import LookupTree, profile_of_target
    from ..decoding.growing.text_index import TextIndex
    from ..design.profile import HardwareProfile
    from ..models.protocol import dtype_name

    dtype = dtype_name(pair.target)
    shipped = map(HardwareProfile.load, _shipped_of(pair, "profiles"))
    fitting = profile_of_target(shipped, target=pair.target.name, dtype=dtype, offload=pair.target.offload)
    policy = LookupTree(TextIndex(), profile=profile or fitting).timed(pair.target)
    costs = "as costs say" if policy.profile else "no profile tells what more would cost"
    if policy.profile and not (profile or fitting):
        costs = f"as the target's passes cost here: {1e3 * policy.profile.verify_sec[0]:.3g} ms over one token, "
        timed, kept_in = policy.profile.meta["timed"], policy.profile.meta["kept_in"]
        costs += (
            f"{1e3 * policy.profile.verify_sec[-1]:.3g} over {policy.profile.max_size} (timed {timed} and kept; to "
        )
        costs += f"measure again, delete {kept_in})"
    return policy, f"trees of text already seen, at most {policy.max_size} nodes, {costs}"


def default_tree(
    pair: ModelPair,
    sampling: SamplingConfig,
    verifier: str | None,
    vector: AcceptanceVector | None,
    profile: HardwareProfile | None,
    prompted: dict[str, Any],
) -> tuple[TokenTree, str]:
    """Return a tree for a pair and where it comes from: planned from a vector and a profile, as the app plans its own.

    A chain where no vector holds for this decode, or no profile is of this pair.

    Args:
        vector, profile: the user's own, used even under other conditions; None takes shipped ones that hold, or the
            default profile of another machine.
        prompted: how the prompt was made; a vector of other prompts is used, and the source says so.
    """
    from ..design.plain_trees import GUESSED_CHAIN, chain_tree
    from ..design.planning import plan_tree
    from ..design.profile import HardwareProfile
    from ..models.device import describe_device
    from ..models.installation import installation_id
    from ..models.protocol import dtype_name
    from ..native.instruction_sets import instructions_in_use

    assert pair.draft is not None
    wanted = Conditions(
        pair.target.name, pair.draft.name, sampling.temperature, sampling.top_p, measured_as(verifier or SEQUOIA),
        top_k=sampling.top_k,
    )  # fmt: skip
    dtype, instructions = dtype_name(pair.target), instructions_in_use() if pair.target.device.type == "cpu" else None
    of_pair = partial(
        HardwareProfile.differences, target=pair.target.name, draft=pair.draft.name, dtype=dtype,
        offload=pair.target.offload,
    )  # fmt: skip
    here = partial(
        of_pair, device=describe_device(pair.target.device), instructions=instructions, installation=installation_id()
    )
    vectors = map(AcceptanceVector.load, _shipped_of(pair, "acceptance"))
    profiles = list(map(HardwareProfile.load, _shipped_of(pair, "profiles")))
    vector = vector or next((v for v in vectors if not v.differences(wanted)), None)
    fitting = [p for p in profiles if not of_pair(p, device=p.device)]
    profile = profile or min(fitting, key=lambda p: len(here(p)), default=None)
    if vector is None or profile is None:
        lacking = [name for name, evidence in (("acceptance vector", vector), ("profile", profile)) if evidence is None]
        reason = " and no ".join(lacking)
        return chain_tree(GUESSED_CHAIN), f"a chain of {GUESSED_CHAIN}, not planned: no {reason} of this decode"
    unlike = [
        f"{name.replace('_', ' ')} {vector.meta[name] or 'none'}, not {own or 'none'}"
        for name, own in prompted.items()
        if vector.meta.get(name, own) != own
    ]
    faults = vector.differences(wanted) + unlike + here(profile)
    made_for = "this pair, these settings and this machine"
    if faults:
        made_for = f"other measurements: {'; '.join(faults)}"
    return plan_tree(vector, profile), f"planned for {made_for}"


@app.command("bench")
@grouped
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
    """Race autoregressive, transformers' own and assisted generation, the best chain and the planned tree."""
    needed_draft(spec.names[1], "bench races trees that a draft fills")
    from ..decoding.sampling import SamplingConfig
    from ..files.safe_files import json_bytes, write_atomic
    from ..studies.bench import bench

    sampling = SamplingConfig(temperature)
    check_out(out)
    texts = given_prompts(prompts, prompt_count)
    calibration = [] if prompts else given_prompts(None, prompt_count + CALIBRATED)[prompt_count:]
    pair = open_pair(spec)
    ids, others = (encoded(pair, part, prompting, max_new_tokens) for part in (texts, calibration))
    with shown_progress(as_json) as progress:
        result = bench(
            pair, ids, sampling=sampling, max_new_tokens=max_new_tokens, calibration=others, progress=progress
        )
    result.record["settings"] |= prompting.record(pair.tokenizer)
    size, depth = result.record["tree"].values()
    raced = f"a static tree of {size} nodes, {depth} deep" if size > 1 else "no planned tree, since none pays"
    tell(f"Raced {raced}: planned for the acceptance and times of this very run.")
    for name, parted in result.record.get("texts_differ", {}).items():
        tell(
            f"{name} wrote another text than autoregressive on {len(parted)} of {len(ids)} prompts: "
            f"on prompt {parted[0]['prompt']} {parted[0]['words']}."
        )
    if out is not None:
        write_atomic(out, json_bytes(result.record))
    report(result.record, as_json, bench_parts(result.record, result.over_plain, pair_options(spec)))
