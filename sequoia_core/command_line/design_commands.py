"""Commands that need no model: tree, table, score and plan. Slow imports are inside the command functions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from ..acceptance.vector import AcceptanceVector
from ..files.extras import provided
from .design_reports import plan_report, score_report, table_report, tree_report, uniform_depth_note
from .inputs import vector_options, with_note
from .options import Acceptance, Entries, Json, Out, app, existing_file
from .output import check_output_path, report

if TYPE_CHECKING:
    from ..planning.profile import HardwareProfile
    from ..trees.tree import TokenTree

FORMAT_HELP = "native, growmap, umbrella, choices, vllm, graphml, dot or node-link"


@app.command("tree")
def tree_command(
    acceptance: Acceptance,
    size: Annotated[int, typer.Option("--size", help="Number of nodes, including the root.")],
    depth: Annotated[int | None, typer.Option("--depth", help="Maximum depth. Default: no limit.")] = None,
    entries: Entries = None,
    out: Out = None,
    format: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "native",
    as_json: Json = False,
) -> None:
    """Build the optimal tree for an acceptance vector."""
    from ..acceptance.matrix_files import load_acceptance
    from ..trees.optimal import expected_tokens, optimal_tree
    from ..trees.tree_files import VERSION_NOTES, check_format, export_tree

    check_format(format)
    check_output_path(out)
    vector = with_note(load_acceptance(acceptance, entries))
    tree = optimal_tree(vector, size=size, depth=depth)
    if out is not None:
        export_tree(tree, format, out, acceptance=vector if isinstance(vector, AcceptanceVector) else None)
    result: dict[str, Any] = {
        "size": tree.size,
        "depth": tree.depth,
        "parents": tree.parents.tolist(),
        "child_ranks": tree.child_ranks.tolist(),
        "expected_tokens": expected_tokens(tree, vector),
    }
    if format in VERSION_NOTES:
        result["warning"] = VERSION_NOTES[format]
    parts = tree_report(tree, result["expected_tokens"], acceptance, out, result.get("warning"))
    report(result, as_json, parts)


@app.command("table")
def table_command(
    acceptance: Acceptance,
    max_size: Annotated[int, typer.Option("--max-size")],
    max_depth: Annotated[int, typer.Option("--max-depth")],
    entries: Entries = None,
    as_json: Json = False,
) -> None:
    """Compute G(n, d), the highest expected number of tokens for each size and depth."""
    from ..acceptance.matrix_files import load_acceptance
    from ..trees.optimal import expected_tokens_table

    vector = with_note(load_acceptance(acceptance, entries))
    started = time.perf_counter()
    table = expected_tokens_table(vector, max_size=max_size, max_depth=max_depth)
    seconds = time.perf_counter() - started
    rows = [[None if np.isneginf(value) else value for value in row] for row in table.tolist()]
    report({"expected_tokens": rows, "seconds": seconds}, as_json, table_report(table, acceptance))


@app.command("score")
def score_command(
    acceptance: Acceptance,
    tree: Annotated[Path, existing_file("--tree", "Tree file in any supported format.")],
    entries: Entries = None,
    as_json: Json = False,
) -> None:
    """Score a tree with an acceptance vector, and compare it with the best tree of the same size and depth."""
    from ..acceptance.matrix_files import load_acceptance
    from ..trees.optimal import best_expected_tokens, describe_unmeasured_ranks, expected_tokens
    from ..trees.tree_files import import_tree

    vector = with_note(load_acceptance(acceptance, entries))
    shape = import_tree(tree)
    expected = expected_tokens(shape, vector)
    warnings = list(filter(None, [describe_unmeasured_ranks(shape, vector)]))
    best = None
    try:
        best = best_expected_tokens(shape, vector)
    except ValueError as error:  # The search, unlike scoring, is limited to small trees.
        warnings.append(f"The best tree is unknown: {error}.")
    result: dict[str, Any] = {"size": shape.size, "depth": shape.depth, "expected_tokens": expected}
    result["optimal_expected_tokens"] = best
    if warnings:
        result["warning"] = " ".join(warnings)
    report(result, as_json, score_report(shape, expected, best, result.get("warning"), acceptance))


@app.command("plan")
def plan_command(
    acceptance: Acceptance,
    profile: Annotated[Path, existing_file("--profile", "Profile from the profile command, or llama-bench output.")],
    max_size: Annotated[int | None, typer.Option("--max-size", help="Default: the profile's largest size.")] = None,
    max_depth: Annotated[int, typer.Option("--max-depth")] = 24,
    context: Annotated[
        float | None, typer.Option("--context", help="Mean number of cached tokens. Default: as in the profile.")
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", help="Answer length to plan for. Default: as in the measurement.", min=1),
    ] = None,
    entries: Entries = None,
    as_json: Json = False,
) -> None:
    """Choose the tree size and depth with the highest predicted speedup, and report its interval."""
    from ..files.json_models import prefix_errors
    from ..planning.break_even import fastest_within_sizes, larger_tree
    from ..planning.plan import choose_plan, grow_profiled_trees, smallest_good_shape, surface_from_trees
    from ..planning.prediction import predict, prompts_for, without_depth
    from ..planning.profile import load_profile

    vector = with_note(AcceptanceVector.load(acceptance, entries))
    hardware = load_profile(profile)
    if max_new_tokens is not None:
        with prefix_errors(str(acceptance)):
            vector = vector.for_answer_length(max_new_tokens)
    trees = grow_profiled_trees(vector, hardware, max_size=max_size, max_depth=max_depth)
    surface = surface_from_trees(trees, hardware, context=context)
    best, tree = choose_plan(surface, trees, hardware)
    prediction = predict(tree, vector, hardware, context=context)
    small = smallest_good_shape(surface)
    result: dict[str, Any] = {
        "size": best.size,
        "depth": best.depth,
        "predicted_speedup": best.predicted_speedup,
        "expected_tokens": best.expected_tokens,
        "interval": [prediction.speedup.low, prediction.speedup.high],
        "paper_speedup": prediction.paper_speedup,
        "within_2_percent": {"size": small.size, "depth": small.depth, "predicted_speedup": small.predicted_speedup},
        "prompts_for_5_percent": prompts_for(tree, vector),
        "modelled": hardware.modelled,
        "holds_for": None if vector.holds_for is None else vector.holds_for.to_json(),
        "device": hardware.device,
        "warnings": _plan_warnings(tree, vector, hardware),
    }
    remarks = (remark(vector, hardware, best.predicted_speedup, context=context) for remark in provided("plan_remarks"))
    if remark := next(filter(None, remarks), None):
        result["llama_server"] = remark
    flat = without_depth(tree, vector, hardware, max_size=surface.max_size, max_depth=max_depth)
    if flat is not None:
        result["without_depth"] = flat._asdict()
    drafting = fastest_within_sizes(surface, 2, surface.max_size)
    if best.size == 1 and drafting is not None:  # Show the costs of the fastest tree with draft tokens instead.
        tree = trees.tree(drafting.size, drafting.depth)
        prediction = predict(tree, vector, hardware, context=context)
    notes = [*result["warnings"], *filter(None, [remark]), *uniform_depth_note(flat)]
    larger, options = larger_tree(surface, best), vector_options(vector.holds_for)
    parts = plan_report(tree, prediction, small, larger, vector, hardware, notes, (acceptance, profile), options)
    report(result, as_json, parts)


def _plan_warnings(tree: TokenTree, vector: AcceptanceVector, profile: HardwareProfile) -> list[str]:
    from ..models.installation import installation_id
    from ..planning.plan import pair_mismatches, suggest_more_ranks
    from ..planning.profile_files import describe_odd_times

    doubts = [suggest_more_ranks(tree, vector), describe_odd_times(profile.sizes, profile.verify_sec)]
    warnings = [*pair_mismatches(vector, profile), *filter(None, doubts)]
    if not profile.modelled and not profile.measured_by(installation_id()):
        warnings.append(f"The times ({profile.device}) may not have been measured with this installation.")
    return warnings
