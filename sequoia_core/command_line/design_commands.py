"""Commands that need no model: tree, table, score, plan, lookup. Heavy modules are imported inside the commands."""

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ..design.acceptance import AcceptanceVector
from .design_words import lookup_parts, plan_parts, score_parts, table_parts, tree_parts, without_depth_words
from .inputs import options_of, told
from .options import READ, Acceptance, Entries, Json, Out, app
from .output import check_out, report
from .progress import shown_progress

FORMATS = "native, growmap, umbrella, choices, vllm, graphml, dot or node-link"


@app.command("tree")
def tree_command(
    acceptance: Acceptance,
    size: Annotated[int, typer.Option("--size", help="Nodes including the root.")],
    depth: Annotated[int | None, typer.Option("--depth", help="Edges on the longest path; default: no limit.")] = None,
    entries: Entries = None,
    out: Out = None,
    format: Annotated[str, typer.Option("--format", help=FORMATS)] = "native",
    as_json: Json = False,
) -> None:
    """Build the optimal tree for an acceptance vector."""
    from ..design.matrix_files import load_acceptance
    from ..design.optimal_trees import expected_tokens, optimal_tree
    from ..design.tree_files import VERSION_NOTES, check_format, export_tree

    check_format(format)
    check_out(out)
    vector = told(load_acceptance(acceptance, entries))
    tree = optimal_tree(vector, size=size, depth=depth)
    if out is not None:
        export_tree(tree, format, out, acceptance=vector if isinstance(vector, AcceptanceVector) else None)
    note = {"warning": VERSION_NOTES[format]} if format in VERSION_NOTES else {}
    expected = expected_tokens(tree, vector)
    people = tree_parts(tree, expected, acceptance, out, note.get("warning"))
    shape = {"size": tree.size, "depth": tree.depth}
    shape |= {"parents": tree.parents.tolist(), "child_ranks": tree.child_ranks.tolist()}
    report(shape | {"expected_tokens": expected} | note, as_json, people)


@app.command("table")
def table_command(
    acceptance: Acceptance,
    max_size: Annotated[int, typer.Option("--max-size")],
    max_depth: Annotated[int, typer.Option("--max-depth")],
    entries: Entries = None,
    as_json: Json = False,
) -> None:
    """Compute G(n, d), the most expected tokens for every size and depth."""
    from ..design.matrix_files import load_acceptance
    from ..design.optimal_trees import expected_tokens_table

    vector = told(load_acceptance(acceptance, entries))
    started = time.perf_counter()
    table = expected_tokens_table(vector, max_size=max_size, max_depth=max_depth)
    seconds = time.perf_counter() - started
    rows = [[None if np.isneginf(value) else value for value in row] for row in table.tolist()]
    report({"expected_tokens": rows, "seconds": seconds}, as_json, table_parts(table, acceptance))


@app.command("score")
def score_command(
    acceptance: Acceptance,
    tree: Annotated[Path, typer.Option("--tree", help="Tree file in any format that can be imported.", **READ)],
    entries: Entries = None,
    as_json: Json = False,
) -> None:
    """Score somebody's tree under a vector, beside the best tree of the same size and depth."""
    from ..design.matrix_files import load_acceptance
    from ..design.optimal_trees import best_expected_tokens, expected_tokens, ranks_not_measured
    from ..design.tree_files import import_tree

    vector, shape = told(load_acceptance(acceptance, entries)), import_tree(tree)
    result = {"size": shape.size, "depth": shape.depth, "expected_tokens": expected_tokens(shape, vector)}
    warnings, best = list(filter(None, [ranks_not_measured(shape, vector)])), None
    try:
        best = best_expected_tokens(shape, vector)
    except ValueError as error:  # the search has limits; the score has none
        warnings.append(f"The best tree is unknown: {error}.")
    warned = {"warning": " ".join(warnings)} if warnings else {}
    people = score_parts(shape, result["expected_tokens"], best, warned.get("warning"), acceptance)
    report(result | {"optimal_expected_tokens": best} | warned, as_json, people)


@app.command("plan")
def plan_command(
    acceptance: Acceptance,
    profile: Annotated[
        Path, typer.Option("--profile", help="Profile written by the profile command, or llama-bench's output.", **READ)
    ],
    max_size: Annotated[int | None, typer.Option("--max-size", help="Default: largest size profiled.")] = None,
    max_depth: Annotated[int, typer.Option("--max-depth")] = 24,
    context: Annotated[
        float | None, typer.Option("--context", help="Tokens in the cache on average; default: as profiled.")
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", help="Length of the answers to plan for; default: as measured.", min=1),
    ] = None,
    entries: Entries = None,
    as_json: Json = False,
) -> None:
    """Choose the tree size and depth with the largest predicted speedup, and say how sure that is."""
    from ..design.bench_profile import load_profile
    from ..design.break_even import fastest_of_sizes, larger_tree
    from ..design.optimal_trees import optimal_tree
    from ..design.planning import more_ranks_wanted, pair_mismatches, plan_on, smallest_good_shape, speedup_surface
    from ..design.prediction import predict, prompts_for, without_depth
    from ..design.profile_files import odd_times
    from ..files.json_models import naming
    from ..models.installation import installation_id
    from ..servers.flags import llama_server_sentence

    vector, hardware = told(AcceptanceVector.load(acceptance, entries)), load_profile(profile)
    if max_new_tokens is not None:
        with naming(str(acceptance)):
            vector = vector.of_answers(max_new_tokens)
    surface = speedup_surface(vector, hardware, max_size=max_size, max_depth=max_depth, context=context)
    (best, tree), small = plan_on(surface, vector, hardware), smallest_good_shape(surface)
    prediction = predict(tree, vector, hardware, context=context)
    doubts = more_ranks_wanted(tree, vector), odd_times(hardware.sizes, hardware.verify_sec)
    warnings = [*pair_mismatches(vector, hardware), *filter(None, doubts)]
    if not hardware.modelled and not hardware.measured_by(installation_id()):
        warnings.append(f"Times: {hardware.device}; nothing says that this installation measured them.")
    result: dict[str, Any] = {
        "size": best.size,
        "depth": best.depth,
        "predicted_speedup": best.predicted_speedup,
        "expected_tokens": best.expected_tokens,
        "interval": [prediction.speedup.low, prediction.speedup.high],
        "paper_speedup": prediction.paper_speedup,
        "within_2_percent": {
            "size": small.size,
            "depth": small.depth,
            "predicted_speedup": small.predicted_speedup,
        },
        "prompts_for_5_percent": prompts_for(tree, vector),
        "modelled": hardware.modelled,
        "holds_for": None if vector.holds_for is None else vector.holds_for.to_json(),
        "device": hardware.device,
        "warnings": warnings,
    }
    if (words := llama_server_sentence(vector, hardware, best.predicted_speedup, context=context)) is not None:
        result["llama_server"] = words
    drafting = fastest_of_sizes(surface, 2, surface.max_size)
    flat = without_depth(tree, vector, hardware, max_size=surface.max_size, max_depth=max_depth)
    if flat is not None:
        result["without_depth"] = flat._asdict()
    if best.size == 1 and drafting is not None:  # for people: what drafting would cost all the same
        tree = optimal_tree(vector, size=drafting.size, depth=drafting.depth)
        prediction = predict(tree, vector, hardware, context=context)
    said = [*warnings, *filter(None, [words]), *without_depth_words(flat)]
    larger, options = larger_tree(surface, best), options_of(vector.holds_for)
    people = plan_parts(tree, prediction, small, larger, vector, hardware, said, (acceptance, profile), options)
    report(result, as_json, people)


@app.command("lookup")
def lookup_command(
    responses: Annotated[
        Path, typer.Option("--responses", help="Prompts and answers: JSONL or a JSON list, text or token ids.", **READ)
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option("--tokenizer", help="tokenizer.json, its folder, or GGUF file; default: the demo's.", exists=True),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="Hardware profile that tells the best size.", **READ)
    ] = None,
    as_json: Json = False,
) -> None:
    """Replay recorded answers: what trees from text already seen would do for them. Loads no model."""
    from ..design.bench_profile import load_profile
    from ..files.model_names import DEMO_PAIR
    from ..files.response_logs import load_responses
    from ..studies.lookup_replay import encode_requests, replay_log, text_encoder

    hardware = None if profile is None else load_profile(profile, needs_draft=False)
    recorded = load_responses(responses)
    with shown_progress(as_json) as progress:
        encoded = encode_requests(recorded, text_encoder(tokenizer or DEMO_PAIR / "target"), progress=progress)
        replayed = replay_log(encoded.requests, progress=progress)
    both = {"own": replayed.own, "shared": replayed.shared}
    best = replayed.own.best_size(hardware)
    estimates = {name: {size: part.tokens_per_step(size) for size in part.sizes} for name, part in both.items()}
    warnings = _replay_warnings(encoded.exact, encoded.left_out, hardware is None)
    result = {
        "requests": len(encoded.requests),
        "tokens": int(replayed.own.tokens.sum()),
        "exact": encoded.exact,
        "tokens_per_step": {name: {n: e.value for n, e in part.items()} for name, part in estimates.items()},
        "interval": {name: {n: [e.low, e.high] for n, e in part.items()} for name, part in estimates.items()},
        "best_n": best,
        "predicted_speedup": None if hardware is None else replayed.own.predicted_speedup(best, hardware),
        "best_n_shared": replayed.shared.best_size(hardware),
        "servers": replayed.server_settings(hardware),
        "warnings": warnings,
    }
    report(result, as_json, lookup_parts(result, estimates, responses, hardware is not None))


def _replay_warnings(exact: bool, left_out: int, unprofiled: bool) -> list[str]:
    warnings = []
    if not exact:
        warnings.append("An estimate: text was encoded again, which may have been other tokens when it was written.")
    if left_out:
        warnings.append(f"The last {left_out:,} requests were left out: too many tokens before them.")
    if unprofiled:
        warnings.append("best_n without a profile: the least size with 95 % of what the largest tree gains.")
    return warnings
