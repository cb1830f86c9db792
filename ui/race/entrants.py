"""Who takes part in a race: every way of decoding there is for the pair and the settings chosen."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from sequoia_core.decoding.tree_kinds import TREE_KINDS
from sequoia_core.design.plain_trees import GUESSED_CHAIN, chain_tree
from sequoia_core.design.tree import TokenTree
from ui.phrases import shape
from ui.runs.runs import DecodeRequest
from ui.session import predictions, session, tree_choice, tree_in_use, tree_kinds

if TYPE_CHECKING:
    from sequoia_core import AcceptanceVector
    from sequoia_core.decoding.tree_policy import TreePolicy

AUTOREGRESSIVE = "Autoregressive"
ALONE = tuple(kind.title for kind in TREE_KINDS.values() if not kind.drafted)
DRAFTED = tuple(kind.title for kind in TREE_KINDS.values() if kind.drafted)
PLANNED = "Planned tree"
FIXED = ("Chain", PLANNED, "SpecInfer")
KINDS = (*FIXED, *DRAFTED, *ALONE)  # beside autoregressive
ELSEWHERE = ", planned elsewhere"  # ends the name of a method planned by times of another pair, dtype or machine


def kinds() -> tuple[str, ...]:
    """Return what may run beside autoregressive decoding with the pair in use."""
    return ALONE if session.pair_spec().is_alone else KINDS


def entrants(common: DecodeRequest, among: Collection[str] = KINDS) -> dict[str, DecodeRequest]:
    """Return name -> decode, autoregressive first; for a target alone, that and trees of text already seen."""
    from sequoia_core.decoding.tree_policy import ROOT_ONLY  # with torch, which takes seconds when it comes first

    vector = predictions.vector_for(predictions.conditions(common.temperature, common.top_p, common.verifier))
    drafted = {} if session.pair_spec().is_alone else _drafted(vector, among)
    trees = {AUTOREGRESSIVE: (ROOT_ONLY, "one token per pass"), **drafted, **_alone(among)}
    requests = {}
    for name, (tree, what) in trees.items():
        fixed = isinstance(tree, TokenTree) and vector is not None
        expected = predictions.prediction(tree, vector, prompts=1) if fixed else None
        requests[name] = replace(
            common,
            tree=tree,
            tree_source=f"{name}: {what}",
            verifier=common.verifier if isinstance(tree, TokenTree) else tree.verifiers[0],
            expected_tokens=None if expected is None else expected.tokens_per_step.value,
            predicted_speedup=None if expected is None else expected.speedup.value,
        )
    return requests


def _mark() -> str:
    return ELSEWHERE if session.profile() is not None and predictions.profile_faults() else ""


def _drafted(vector: AcceptanceVector | None, among: Collection[str]) -> dict[str, tuple[TokenTree | TreePolicy, str]]:
    """Return name -> tree that the draft fills, and what it is; None for a vector that does not hold."""
    from sequoia_core.decoding.tree_policy import SPECINFER_TREE
    from sequoia_core.design.prediction import best_chain

    profile = session.profile()
    chosen = tree_choice.best_for(vector)
    planned = tree_in_use.current() if chosen.tree is None else chosen.tree
    origin = tree_in_use.source() if chosen.tree is None else chosen.origin
    if vector is None or profile is None or predictions.profile_of_another_pair():
        chain, chain_name = chain_tree(GUESSED_CHAIN), f"Chain of {GUESSED_CHAIN}"
    else:
        chain, chain_name = best_chain(vector, profile), f"Best chain{_mark()}"
    assert isinstance(planned, TokenTree), "the best tree for a hardware is a fixed one"
    budget = max(planned.size, 2), max(planned.depth, 1)
    if chosen.tree is None and tree_in_use.is_guessed():
        among, budget = [kind for kind in among if kind != PLANNED], tree_in_use.FALLBACK_SIZE_AND_DEPTH
    mark = _mark() if chosen.tree is not None or tree_in_use.follows_profile() else ""
    names = (chain_name, f"{PLANNED}{mark}", "SpecInfer")
    fixed: tuple[tuple[TokenTree | TreePolicy, str], ...] = (
        (chain, f"chain of {chain.depth}"),
        (planned, f"{origin}, {shape(planned.size, planned.depth)}"),
        (SPECINFER_TREE, "5 chains of 8, drawn and verified its way"),
    )
    trees: dict[str, tuple[TokenTree | TreePolicy, str]] = {
        name: tree for kind, name, tree in zip(FIXED, names, fixed, strict=True) if kind in among
    }
    calibrated = profile is not None and vector is not None and vector.calibration is not None
    for name, kind in TREE_KINDS.items():
        if kind.drafted and kind.title in among and (calibrated or not kind.calibrated):
            tree, words = tree_kinds.grown(name, vector, *budget)
            mark = _mark() if kind.calibrated else ""
            size = "" if isinstance(tree, TokenTree) else f", up to {tree.max_size} nodes"
            trees[kind.title + mark] = tree, words + size
    return trees


def _alone(among: Collection[str]) -> dict[str, tuple[TokenTree | TreePolicy, str]]:
    """Return name -> trees that take no draft, and what they are."""
    kinds = {name: kind.title for name, kind in TREE_KINDS.items() if not kind.drafted and kind.title in among}
    return {title: tree_kinds.grown(name) for name, title in kinds.items()}
