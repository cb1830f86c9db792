"""The command line: every command of the engine, with `--json` for exactly one JSON object on stdout.

Bad input ends with exit code 2 and one line on stderr. Heavy modules are imported inside the commands that need them,
so that those without a model start at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from typer.exceptions import TyperException

from ..design.acceptance import AcceptanceVector
from ..design.conditions import Conditions
from ..design.tree import TokenTree
from ..files.faults import OUT_OF_MEMORY, is_out_of_memory, is_panic
from ..files.safe_files import check_replaceable

if TYPE_CHECKING:
    from ..decoding.sampling import SamplingConfig
    from ..design.profile import HardwareProfile
    from ..models.language_model import ModelPair

ASSETS = Path(__file__).resolve().parents[2] / "assets"
DEFAULT_CHAIN = 4  # drafted tokens where nothing was measured: short enough to lose little with any draft
MORE_PROMPTS_FOR = 0.01  # half the width of the interval that `measure` says how many more prompts would give
FORMATS = "native, growmap, umbrella, choices or vllm"

app = typer.Typer(add_completion=False, no_args_is_help=False, help="Sequoia: token trees for speculative decoding.")

Acceptance = Annotated[
    Path, typer.Option("--acceptance", help="Acceptance vector (JSON, CSV, .npy, .safetensors, .pt).")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
Out = Annotated[Path | None, typer.Option("--out", help="File to write.")]
Target = Annotated[
    str | None, typer.Option("--target", help="Target model: local folder or hub id. Default: demo pair.")
]
Draft = Annotated[str | None, typer.Option("--draft", help="Draft model: local folder or hub id. Default: demo pair.")]
Device = Annotated[str | None, typer.Option("--device", help="Such as cpu or cuda; default: CUDA where there is one.")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="float32, bfloat16 or float16.")]
Prompts = Annotated[Path | None, typer.Option("--prompts", help="JSONL, CSV, parquet, or plain text lines.")]
Column = Annotated[str | None, typer.Option("--column", help="Column of the prompts; default: text or prompt.")]
Chat = Annotated[
    bool | None,
    typer.Option("--chat/--raw", help="Use the tokenizer's chat template, or not; default: where it has one."),
]
PromptCount = Annotated[int | None, typer.Option("--prompt-count", help="Use only the first this many prompts.")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 takes the most likely token.")]
TopP = Annotated[float, typer.Option("--top-p", help="Nucleus mass, above 0 and at most 1.")]
VerifierName = Annotated[str, typer.Option("--verifier", help="sequoia, specinfer or topk.")]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", help="Tokens to generate per prompt.")]


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return the exit code (0 done, 2 bad input, 130 interrupted)."""
    try:
        result = typer.main.get_command(app)(args=arguments, prog_name="sequoia_core", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except TyperException as error:
        return _fail(error.format_message())
    except (ValueError, FloatingPointError) as error:
        return _fail(OUT_OF_MEMORY if is_out_of_memory(error) else str(error))
    except OSError as error:  # of the output: what is read or written elsewhere says so by a ValueError
        if is_out_of_memory(error):
            return _fail(OUT_OF_MEMORY)
        with contextlib.suppress(OSError, ValueError):  # nothing more goes there, not when Python ends either
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0 if isinstance(error, BrokenPipeError) else _fail(f"output: cannot be written ({error.strerror})")
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BaseException as error:  # a panic of Rust code is no Exception
        if is_panic(error):
            return _fail(f"a library broke down ({error}), expected files that it can read")
        if is_out_of_memory(error):
            return _fail(OUT_OF_MEMORY)
        raise


def _fail(message: str) -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    return 2


@contextmanager
def _held_stderr() -> Iterator[None]:
    """Hold back what libraries themselves write to stderr in the block; a ValueError's one line takes its place.

    A panic of Rust code prints lines of its own before anybody can catch it.
    """
    try:
        real = os.dup(2)
    except OSError:  # closed: nothing to hold back
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except ValueError:
            held.truncate(0)
            raise
        finally:
            os.dup2(real, 2)
            os.close(real)
            held.seek(0)
            os.write(2, held.read())


def _report(result: dict, as_json: bool) -> None:
    """Print a result: one JSON object, or a table for people (long lists shortened)."""
    if as_json:
        print(json.dumps(result, allow_nan=False), flush=True)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False)
    for key, value in result.items():
        table.add_row(key, value if isinstance(value, str) else _short(value))
    Console().print(table, markup=False)
    sys.stdout.flush()


def _short(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 400 else text[:400] + " …"


def _progress(as_json: bool):
    """Return a progress callback that writes to a terminal, or None where nobody watches."""
    if as_json or not sys.stderr.isatty():
        return None

    def show(fraction: float, message: str) -> None:
        end = "\n" if fraction >= 1.0 else ""
        print(f"\r{fraction:5.0%} {message:<50}", end=end, file=sys.stderr, flush=True)

    return show


def _check_out(out: Path | None) -> None:
    """Refuse an unwritable place before the work, not after it."""
    if out is None:
        return
    if not out.resolve().parent.is_dir():
        raise ValueError(f"--out {out}: found no folder {out.resolve().parent}, expected an existing one")
    check_replaceable(out)


def _pair(target: str | None, draft: str | None, device: str | None = None, dtype: str | None = None) -> ModelPair:
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    from ..models.loading import load_pair

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()  # else each retry is a line of its own on stderr
    with _held_stderr():
        return load_pair(target, draft, device, dtype)


def _prompt_texts(prompts: Path | None, count: int | None, column: str | None = None) -> list[str]:
    from ..files.prompt_files import load_prompts

    if count is not None and count < 1:
        raise ValueError(f"--prompt-count: found {count}, expected at least 1")
    return load_prompts(prompts or ASSETS / "prompts" / "prompts.jsonl", column)[:count]


def _encode(pair: ModelPair, texts: list[str], room: int, chat: bool | None) -> list[list[int]]:
    """Return token ids of each prompt, refusing one that leaves no room for the new tokens."""
    context = min(pair.target.max_context, pair.draft.max_context)
    encoded = _encoded(pair, texts, chat)
    for text, ids in zip(texts, encoded, strict=True):
        if not ids or len(ids) + room > context:
            raise ValueError(
                f"prompt {text[:40]!r}: found {len(ids)} tokens, expected 1 to {context - room} "
                f"(context {context} less {room} new tokens)"
            )
    return encoded


def _encoded(pair: ModelPair, texts: list[str], chat: bool | None) -> list[list[int]]:
    from ..files.prompt_files import encode_prompt

    with _held_stderr():
        return [encode_prompt(pair.tokenizer, text, chat=chat) for text in texts]


def _json_probs(vector: AcceptanceVector) -> dict:
    interval = vector.interval()
    low, high = (a.tolist() for a in interval) if interval else (None, None)
    return {"probs": vector.probs.tolist(), "trials": vector.trials, "ci_low": low, "ci_high": high}


@app.command("tree")
def tree_command(
    acceptance: Acceptance,
    size: Annotated[int, typer.Option("--size", help="Nodes including the root.")],
    depth: Annotated[int | None, typer.Option("--depth", help="Edges on the longest path; default: no limit.")] = None,
    out: Out = None,
    format: Annotated[str, typer.Option("--format", help=FORMATS)] = "native",
    as_json: Json = False,
) -> None:
    """Build the optimal tree for an acceptance vector."""
    from ..design.optimal_trees import expected_tokens, optimal_tree
    from ..design.tree_files import VERSION_NOTES, check_format, export_tree

    check_format(format)
    _check_out(out)
    vector = AcceptanceVector.load(acceptance)
    tree = optimal_tree(vector, size=size, depth=depth)
    if out is not None:
        export_tree(tree, format, out, acceptance=vector)
    note = {"warning": VERSION_NOTES[format]} if out is not None and format in VERSION_NOTES else {}
    _report(_describe(tree) | {"expected_tokens": expected_tokens(tree, vector)} | note, as_json)


def _describe(tree: TokenTree) -> dict:
    return {
        "size": tree.size,
        "depth": tree.depth,
        "parents": tree.parents.tolist(),
        "child_ranks": tree.child_ranks.tolist(),
    }


@app.command("table")
def table_command(
    acceptance: Acceptance,
    max_size: Annotated[int, typer.Option("--max-size")],
    max_depth: Annotated[int, typer.Option("--max-depth")],
    as_json: Json = False,
) -> None:
    """Compute G(n, d), the most expected tokens for every size and depth."""
    from ..design.optimal_trees import expected_tokens_table

    vector = AcceptanceVector.load(acceptance)
    started = time.perf_counter()
    table = expected_tokens_table(vector, max_size=max_size, max_depth=max_depth)
    seconds = time.perf_counter() - started
    rows = [[None if np.isneginf(value) else value for value in row] for row in table.tolist()]
    _report({"expected_tokens": rows, "seconds": seconds}, as_json)


@app.command("score")
def score_command(
    acceptance: Acceptance,
    tree: Annotated[Path, typer.Option("--tree", help="Tree file in any format that can be imported.")],
    as_json: Json = False,
) -> None:
    """Score somebody's tree under a vector, beside the best tree of the same size and depth."""
    from ..design.optimal_trees import best_expected_tokens, expected_tokens
    from ..design.tree_files import import_tree

    vector, shape = AcceptanceVector.load(acceptance), import_tree(tree)
    result = {"size": shape.size, "depth": shape.depth, "expected_tokens": expected_tokens(shape, vector)}
    try:
        best = {"optimal_expected_tokens": best_expected_tokens(shape, vector)}
    except ValueError as error:  # the search has limits; the score has none
        best = {"optimal_expected_tokens": None, "warning": f"the best tree is unknown: {error}"}
    _report(result | best, as_json)


@app.command("measure")
def measure_command(
    target: Target = None,
    draft: Draft = None,
    prompts: Prompts = None,
    column: Column = None,
    chat: Chat = None,
    own_text: Annotated[
        bool, typer.Option("--own-text", help="The prompts are the text to measure on; nothing is generated.")
    ] = False,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    width: Annotated[int, typer.Option("--width", help="Ranks to measure.")] = 32,
    verifier: VerifierName = "sequoia",
    out: Out = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Partial vector to go on from; default: --out, where it is partial.")
    ] = None,
    max_new_tokens: MaxNewTokens = 128,
    prompt_count: PromptCount = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    device: Device = None,
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Measure a pair's acceptance vector on text the target writes, or on your own.

    With --out the vector so far is saved after each prompt; the same command goes on from there when it was cut.
    """
    from ..decoding.sampling import SamplingConfig
    from ..studies.measure_acceptance import measure_acceptance

    sampling = SamplingConfig(temperature, top_p)
    _check_out(out)
    texts = _prompt_texts(prompts, prompt_count, column)
    partial = _partial_vector(resume, out)
    pair = _pair(target, draft, device, dtype)
    ids = _encoded(pair, texts, chat=False) if own_text else _encode(pair, texts, max_new_tokens, chat)
    started = time.perf_counter()
    try:
        vector = measure_acceptance(
            ids, target=pair.target, draft=pair.draft, sampling=sampling, width=width, max_new_tokens=max_new_tokens,
            verifier=verifier, own_text=own_text, seed=seed, resume=partial,
            checkpoint=None if out is None else lambda v: v.save(out), progress=_progress(as_json),
        )  # fmt: skip
    except ValueError as error:
        if not str(error).startswith("resume:"):
            raise
        source = f"--resume {resume}" if resume is not None else f"--out {out} (partial)"
        raise ValueError(f"{source}: {str(error).removeprefix('resume: ')}; or choose another file") from error
    if out is not None:
        vector.save(out)
    more = {"more_prompts": vector.more_prompts(2 * MORE_PROMPTS_FOR), "more_prompts_for": f"±{MORE_PROMPTS_FOR}"}
    resumed = 0 if partial is None else len(partial.prompt_trials)
    _report(
        _json_probs(vector)
        | more
        | {"source": vector.meta["source"], "prompts": len(ids), "resumed_prompts": resumed}
        | {"holds_for": vector.holds_for.to_json()}
        | {"seconds": time.perf_counter() - started},
        as_json,
    )


def _partial_vector(resume: Path | None, out: Path | None) -> AcceptanceVector | None:
    """Return the vector to go on from: the one named, or what a cut run left at --out."""
    from ..studies.measure_acceptance import is_partial

    if resume is not None:
        return AcceptanceVector.load(resume)
    if out is None or not out.is_file():
        return None
    try:
        found = AcceptanceVector.load(out)
    except ValueError:  # some other file: it is replaced, as it would be without a cut
        return None
    return found if is_partial(found) else None


@app.command("profile")
def profile_command(
    target: Target = None,
    draft: Draft = None,
    device: Device = None,
    dtype: Dtype = None,
    sizes: Annotated[
        str, typer.Option("--sizes", help="Tokens per target pass, separated by commas.")
    ] = "1,2,4,8,16,32,64",
    context: Annotated[int, typer.Option("--context", help="Tokens already in the cache.")] = 128,
    out: Out = None,
    repeats: Annotated[int, typer.Option("--repeats")] = 9,
    as_json: Json = False,
) -> None:
    """Measure how long passes of the pair take on this machine."""
    from ..studies.measure_profile import measure_profile

    try:
        wanted = [int(part) for part in sizes.split(",")]
    except ValueError as error:
        raise ValueError(f"--sizes: found {sizes!r}, expected whole numbers separated by commas") from error
    _check_out(out)
    pair = _pair(target, draft, device, dtype)
    profile = measure_profile(
        target=pair.target, draft=pair.draft, sizes=wanted, context=context, repeats=repeats,
        progress=_progress(as_json),
    )  # fmt: skip
    if out is not None:
        profile.save(out)
    _report(profile.to_json(), as_json)


@app.command("plan")
def plan_command(
    acceptance: Acceptance,
    profile: Annotated[Path, typer.Option("--profile", help="Hardware profile written by the profile command.")],
    max_size: Annotated[int | None, typer.Option("--max-size", help="Default: largest size profiled.")] = None,
    max_depth: Annotated[int, typer.Option("--max-depth")] = 16,
    as_json: Json = False,
) -> None:
    """Choose the tree size and depth with the largest predicted speedup."""
    from ..design.planning import best_shape, mixture, speedup_surface
    from ..design.profile import HardwareProfile

    vector, hardware = AcceptanceVector.load(acceptance), HardwareProfile.load(profile)
    best = best_shape(speedup_surface(vector, hardware, max_size=max_size, max_depth=max_depth))
    result = {
        "size": best.size,
        "depth": best.depth,
        "predicted_speedup": best.predicted_speedup,
        "expected_tokens": best.expected_tokens,
        "holds_for": None if vector.holds_for is None else vector.holds_for.to_json(),
        "device": hardware.device,
        "warnings": mixture(vector, hardware),
    }
    _report(result, as_json)


@app.command("generate")
def generate_command(
    prompt: Annotated[str, typer.Option("--prompt")],
    target: Target = None,
    draft: Draft = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    tree: Annotated[
        Path | None,
        typer.Option("--tree", help="Tree file; default: planned where vector and profile are of this very decode."),
    ] = None,
    acceptance: Annotated[
        Path | None, typer.Option("--acceptance", help="Vector to plan the tree from; default: the demo pair's own.")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="Profile to plan the tree from; default: the demo pair's own.")
    ] = None,
    verifier: VerifierName = "sequoia",
    chat: Chat = None,
    device: Device = None,
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Decode a prompt with a token tree."""
    import torch

    from ..decoding.loop import decode
    from ..decoding.sampling import SamplingConfig
    from ..decoding.verifiers import choose_verifier
    from ..design.tree_files import import_tree

    sampling = SamplingConfig(temperature, top_p)
    choose_verifier(verifier, greedy=sampling.greedy)
    if tree is not None and (acceptance is not None or profile is not None):
        raise ValueError("--tree: found it together with --acceptance or --profile, expected one or the other")
    shape = None if tree is None else import_tree(tree)
    given = [None if path is None else read(path) for path, read in _planning_files(acceptance, profile)]
    pair = _pair(target, draft, device, dtype)
    source = f"file {tree}"
    if shape is None:
        shape, source = _default_tree(pair, sampling, verifier, *given)
    started = time.perf_counter()
    steps = list(
        decode(
            _encoded(pair, [prompt], chat)[0], target=pair.target, draft=pair.draft, tree=shape,
            sampling=sampling, max_new_tokens=max_new_tokens, verifier=verifier,
            generator=torch.Generator().manual_seed(seed),
        )
    )  # fmt: skip
    seconds = time.perf_counter() - started
    tokens = [token for step in steps for token in step.new_tokens]
    result = {
        "text": pair.tokenizer.decode(tokens),
        "tokens": tokens,
        "steps": len(steps),
        "tokens_per_step": len(tokens) / len(steps),
        "seconds": seconds,
        "finished": steps[-1].finished,
        "tree": {"size": shape.size, "depth": shape.depth, "source": source},
    }
    _report(result, as_json)


def _planning_files(acceptance: Path | None, profile: Path | None) -> list[tuple[Path | None, Callable]]:
    from ..design.profile import HardwareProfile

    return [(acceptance, AcceptanceVector.load), (profile, HardwareProfile.load)]


def _default_tree(
    pair: ModelPair,
    sampling: SamplingConfig,
    verifier: str,
    vector: AcceptanceVector | None,
    profile: HardwareProfile | None,
) -> tuple[TokenTree, str]:
    """Return a tree and where it comes from: planned where a vector and a profile hold for this decode, else a chain.

    Args:
        vector, profile: the user's own, used as told; or None to look for one that holds among those that ship.
    """
    from ..design.optimal_trees import chain_tree
    from ..design.profile import HardwareProfile
    from ..models.device import describe_device
    from ..studies.race import plan_tree

    wanted = Conditions(
        pair.target.name, pair.draft.name, sampling.temperature, sampling.top_p, verifier, top_k=sampling.top_k
    )
    here = {
        "target": pair.target.name,
        "draft": pair.draft.name,
        "dtype": str(pair.target.dtype).removeprefix("torch."),
        "device": describe_device(pair.target.device),
    }
    faults = ([] if vector is None else vector.differences(wanted)) + (
        [] if profile is None else profile.differences(**here)
    )
    vectors = [AcceptanceVector.load(path) for path in sorted((ASSETS / "acceptance").glob("*.json"))]
    profiles = [HardwareProfile.load(path) for path in sorted((ASSETS / "profiles").glob("*.json"))]
    vector = vector or next((v for v in vectors if not v.differences(wanted)), None)
    profile = profile or next((p for p in profiles if not p.differences(**here)), None)
    if vector is None or profile is None:
        lacking = [name for name, found in (("acceptance vector", vector), ("profile", profile)) if found is None]
        reason = " and no ".join(lacking)
        return chain_tree(DEFAULT_CHAIN), f"a chain of {DEFAULT_CHAIN}, not planned: no {reason} of this decode"
    made_for = f"other measurements: {'; '.join(faults)}" if faults else "this pair, these settings and this machine"
    return plan_tree(vector, profile), f"planned for {made_for}"


@app.command("bench")
def bench_command(
    target: Target = None,
    draft: Draft = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    prompts: Prompts = None,
    prompt_count: PromptCount = 8,
    chat: Chat = None,
    device: Device = None,
    dtype: Dtype = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Race autoregressive, transformers' own and assisted generation, the best chain and the planned tree."""
    from ..decoding.sampling import SamplingConfig
    from ..files.safe_files import json_bytes, write_atomic
    from ..studies.race import bench

    sampling = SamplingConfig(temperature)
    _check_out(out)
    texts = _prompt_texts(prompts, prompt_count)
    pair = _pair(target, draft, device, dtype)
    ids = _encode(pair, texts, max_new_tokens, chat)
    result = bench(pair, ids, sampling=sampling, max_new_tokens=max_new_tokens, progress=_progress(as_json))
    if out is not None:
        write_atomic(out, json_bytes(result))
    _report(result, as_json)
