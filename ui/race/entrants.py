"""The entrants in a race: every decoding method available for the current pair and settings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from sequoia_core.decoding.tree_kinds import TREE_KINDS
from sequoia_core.trees.plain import DEFAULT_CHAIN_LENGTH, chain_tree
from sequoia_core.trees.tree import TokenTree
from ui.phrases import shape
from ui.runs.runs import DecodeRequest
from ui.session import predictions, session, tree_choice, tree_in_use, tree_kinds

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector
    from sequoia_core.decoding.tree_policy import TreePolicy

    DescribedTree = tuple[TokenTree | TreePolicy, str]

AUTOREGRESSIVE = "Autoregressive"
DRAFTLESS_TITLES = tuple(kind.title for kind in TREE_KINDS.values() if not kind.drafted)
DRAFTED_TITLES = tuple(kind.title for kind in TREE_KINDS.values() if kind.drafted)
PLANNED = "Planned tree"
FIXED_TITLES = ("Chain", PLANNED, "SpecInfer")
METHOD_TITLES = (*FIXED_TITLES, *DRAFTED_TITLES, *DRAFTLESS_TITLES)  # methods other than autoregressive decoding
ELSEWHERE = ", planned elsewhere"  # of trees planned with times of a different pair, dtype or machine


def method_titles() -> tuple[str, ...]:
    """Return the methods that the current pair can run in addition to autoregressive decoding."""
    return DRAFTLESS_TITLES if session.pair_spec().is_alone else METHOD_TITLES


def race_entrants(common: DecodeRequest, among: Collection[str] = METHOD_TITLES) -> dict[str, DecodeRequest]:
    """Return each method's decode request, autoregressive first; a target alone also gets lookup trees."""
    from sequoia_core.decoding.tree_policy import ROOT_ONLY  # importing torch takes seconds

    vector = predictions.vector_for(predictions.conditions(common.temperature, common.top_p, common.verifier))
    drafted = {} if session.pair_spec().is_alone else _drafted_trees(vector, among)
    trees = {AUTOREGRESSIVE: (ROOT_ONLY, "one token per pass"), **drafted}
    for name, kind in TREE_KINDS.items():
        if not kind.drafted and kind.title in among:
            trees[kind.title] = tree_kinds.make_policy(name)
    requests = {}
    for name, (tree, what) in trees.items():
        expected = None
        if isinstance(tree, TokenTree) and vector is not None:
            expected = predictions.prediction(tree, vector, prompts=1)
        requests[name] = replace(
            common,
            tree=tree,
            tree_source=f"{name}: {what}",
            verifier=common.verifier if isinstance(tree, TokenTree) else tree.verifiers[0],
            expected_tokens=None if expected is None else expected.tokens_per_step.value,
            predicted_speedup=None if expected is None else expected.speedup.value,
        )
    return requests


def _drafted_trees(vector: AcceptanceVector | None, among: Collection[str]) -> dict[str, DescribedTree]:
    """Return drafted trees and their descriptions by name; `vector` is None if no vector matches the settings."""
    from sequoia_core.decoding.tree_policy import SPECINFER_TREE
    from sequoia_core.planning.prediction import best_chain

    profile = session.profile()
    chosen = tree_choice.best_tree_for(vector)
    planned = tree_in_use.current_tree() if chosen.tree is None else chosen.tree
    origin = tree_in_use.describe_source() if chosen.tree is None else chosen.origin
    elsewhere = ELSEWHERE if profile is not None and predictions.profile_mismatches() else ""
    if vector is None or profile is None or predictions.profile_is_for_another_pair():
        chain = f"Chain of {DEFAULT_CHAIN_LENGTH}", (chain_tree(DEFAULT_CHAIN_LENGTH), "a usual length")
    else:
        best = best_chain(vector, profile)
        chain = "Best chain", (best, f"chain of {best.depth}{elsewhere}")
    assert isinstance(planned, TokenTree), "the best tree for a profile is a fixed one"
    budget = max(planned.size, 2), max(planned.depth, 1)
    if chosen.tree is None and tree_in_use.is_guessed():
        among = [title for title in among if title != PLANNED]
        budget = tree_in_use.FALLBACK_SIZE_AND_DEPTH
    origin += f", {shape(planned.size, planned.depth)}"
    if chosen.tree is not None or tree_in_use.follows_profile():
        origin += elsewhere
    fixed: dict[str, tuple[str, DescribedTree]] = {
        "Chain": chain,
        PLANNED: (PLANNED, (planned, origin)),
        "SpecInfer": ("SpecInfer", (SPECINFER_TREE, "5 chains of 8, drawn and verified as in SpecInfer")),
    }
    trees = {name: tree for title, (name, tree) in fixed.items() if title in among}
    calibrated = profile is not None and vector is not None and vector.calibration is not None
    for name, kind in TREE_KINDS.items():
        if kind.drafted and kind.title in among and (calibrated or not kind.calibrated):
            tree, words = tree_kinds.make_policy(name, vector, *budget)
            if not isinstance(tree, TokenTree):
                words += f", up to {tree.max_size} nodes"
            trees[kind.title] = tree, words + (elsewhere if kind.calibrated else "")
    return trees
