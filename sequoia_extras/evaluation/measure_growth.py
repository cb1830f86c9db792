"""Measured tokens per step by tree size: optimal trees, chains, SpecInfer trees and, if installed, SpecExec trees."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sequoia_core.acceptance.conditions import SEQUOIA, SPECINFER, Conditions
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_kinds import TREE_KINDS
from sequoia_core.decoding.tree_policy import FixedTree, TreePolicy
from sequoia_core.files.model_names import require_draft
from sequoia_core.measuring.measure_acceptance import pair_settings
from sequoia_core.measuring.prompt_loop import Progress
from sequoia_core.measuring.ranks_along_text import DEFAULT_SEED
from sequoia_core.models.language_model import ModelPair
from sequoia_core.trees.grown import searchable_table
from sequoia_core.trees.optimal import expected_tokens, optimal_tree
from sequoia_core.trees.plain import best_chains, independent_chains
from sequoia_core.trees.tree import TokenTree

from .verifier_comparison import Method, TreeRun, decode_in_turns

GROWTH_SIZES = (8, 16, 32, 41, 64, 128, 256, 512, 1024)  # 41 is the size of the 5 × 8 tree in the Sequoia paper
GROWTH_DEPTH = 24
SPECINFER_CHAIN = 8  # length of each chain in tokens
GROWTH_KINDS = STATIC, CHAINS, SPECINFER_CHAINS, SPECEXEC = ("static", "chains", "specinfer", "specexec")


@dataclass(frozen=True, slots=True, eq=False)
class GrowthPoint:
    """The result for one kind of tree at one size.

    Attributes:
        size: number of nodes, including the root; an upper bound for SpecExec.
        predicted: expected tokens according to the vector; None if the vector does not describe the trees.
    """

    size: int
    predicted: float | None
    run: TreeRun

    def to_json(self) -> dict[str, Any]:
        tokens = self.run.tokens_per_step
        return {
            "kind": self.run.verifier,
            "size": self.size,
            "predicted": self.predicted,
            "tokens_per_step": tokens.value,
            "low": tokens.low,
            "high": tokens.high,
            "steps": int(self.run.steps.sum()),
        }


@dataclass(frozen=True, slots=True, eq=False)
class GrowthStudy:
    points: tuple[GrowthPoint, ...]
    settings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"settings": self.settings, "points": [point.to_json() for point in self.points]}


def measure_growth(
    prompts: Sequence[Sequence[int]],
    pair: ModelPair,
    *,
    acceptance: AcceptanceVector,
    sampling: SamplingConfig | None = None,
    sizes: Sequence[int] = GROWTH_SIZES,
    depth: int = GROWTH_DEPTH,
    max_new_tokens: int = 64,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> GrowthStudy:
    """Decode the same prompts with trees of each size and kind, as in the paper's figure on tree growth.

    Args:
        acceptance: vector measured at this sampling setting; static trees and chains are planned for it and use its
            verifier.
        sizes: maximum tree sizes in nodes; kinds that stop growing earlier have fewer points.
        depth: maximum tree depth, reduced if the longest prompt and its new tokens leave less room in the context.
    """
    require_draft(pair.draft, "tree growth is measured with drafted trees")
    sampling = sampling or SamplingConfig()
    if not prompts or not sizes or min(sizes) < 2:
        raise ValueError(
            f"found {len(prompts)} prompts and sizes {list(sizes)}, expected at least one of each, and sizes of at "
            "least 2"
        )
    available = pair.max_context - max(map(len, prompts)) - max_new_tokens
    depth = max(min(depth, available), 1)  # if not even one level fits, fewer tokens are decoded
    verifier = SEQUOIA if acceptance.holds_for is None else acceptance.holds_for.verifier
    trees = growing_trees(acceptance, sizes, depth)
    methods = [
        Method(kind, sampling, tree, verifier if isinstance(tree, TokenTree) else None)
        for (kind, _), tree in trees.items()
    ]
    runs = decode_in_turns(prompts, methods, pair, max_new_tokens=max_new_tokens, progress=progress, cancel=cancel)
    points = tuple(
        GrowthPoint(size, expected_tokens(tree, acceptance) if isinstance(tree, TokenTree) else None, run)
        for ((_, size), tree), run in zip(trees.items(), runs, strict=True)
    )
    names = pair_settings(pair)
    conditions = Conditions(
        names["target"], names["draft"], sampling.temperature, sampling.top_p, verifier, top_k=sampling.top_k
    )
    settings = names | {
        "conditions": conditions.to_json(),
        "prompts": len(runs[0].steps),
        "max_new_tokens": max_new_tokens,
        "max_depth": depth,
        "seed": DEFAULT_SEED,
    }
    return GrowthStudy(points, settings)


def growing_trees(
    acceptance: AcceptanceVector, sizes: Sequence[int], depth: int
) -> dict[tuple[str, int], TokenTree | TreePolicy]:
    """Return trees by (kind, number of nodes), the smallest first; each kind and size occurs at most once."""
    table = searchable_table(acceptance, max_size=max(sizes), max_depth=depth)
    trees: dict[tuple[str, int], TokenTree | TreePolicy] = {}
    for size in sorted(sizes):
        if np.isfinite(table[size, depth]):
            trees[STATIC, size] = optimal_tree(acceptance, size=size, depth=depth)
        chains = best_chains(acceptance, size=size, depth=depth)
        trees[CHAINS, chains.size] = chains
        length = min(SPECINFER_CHAIN, size - 1, depth)
        shape = independent_chains((size - 1) // length, length)
        trees[SPECINFER_CHAINS, shape.size] = FixedTree(shape, verifiers=(SPECINFER,))
        if SPECEXEC in TREE_KINDS:
            trees[SPECEXEC, size] = TREE_KINDS[SPECEXEC].make(max_size=size, max_depth=depth)
    return trees
