"""Tokens per step as trees grow, by decoding: best trees of a vector, independent chains, SpecInfer's, SpecExec's."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..decoding.growing.policies import SpecExecTree
from ..decoding.sampling import SamplingConfig
from ..decoding.tree_policy import FixedTree, TreePolicy
from ..design.acceptance import AcceptanceVector
from ..design.conditions import SEQUOIA, SPECINFER, Conditions
from ..design.optimal_trees import expected_tokens, optimal_tree, table_within_reach
from ..design.plain_trees import best_chains, independent_chains
from ..design.tree import TokenTree
from ..files.model_names import needed_draft
from ..models.language_model import ModelPair
from .measure_acceptance import pair_settings
from .prompt_loop import Progress
from .ranks_along_text import SEED
from .verifier_comparison import TreeRun, decode_in_turns

SIZES = (8, 16, 32, 41, 64, 128, 256, 512, 1024)  # 41 is the 5 × 8 that the Sequoia paper compares with
DEPTH = 24
CHAIN = 8  # tokens of one of SpecInfer's chains
KINDS = STATIC, CHAINS, SPECINFER_CHAINS, SPECEXEC = ("static", "chains", "specinfer", "specexec")


@dataclass(frozen=True, slots=True, eq=False)
class GrowthPoint:
    """What trees of one kind and size yielded.

    Attributes:
        size: nodes, root included; of SpecExec's at most.
        predicted: expected tokens by the vector; None where it does not describe the trees.
    """

    size: int
    predicted: float | None
    run: TreeRun

    def to_json(self) -> dict[str, Any]:
        tokens = self.run.tokens_per_step
        return {
            "kind": self.run.verifier, "size": self.size, "predicted": self.predicted, "tokens_per_step": tokens.value,
            "low": tokens.low, "high": tokens.high, "steps": int(self.run.steps.sum()),
        }  # fmt: skip


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
    sizes: Sequence[int] = SIZES,
    depth: int = DEPTH,
    max_new_tokens: int = 64,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> GrowthStudy:
    """Decode the same prompts with trees of each size and kind (the paper's figure of growth with the tree).

    Args:
        acceptance: the vector that static trees and chains are planned for, of this way of sampling; its verifier
            decides on them.
        sizes: nodes of a tree at most. Kinds that stop growing before have fewer points.
        depth: edges at most; less where the shorter context leaves less room after the longest prompt and its text.
    """
    needed_draft(pair.draft, "the growth of trees is that of drafted ones")
    sampling = sampling or SamplingConfig()
    if not prompts or not sizes or min(sizes) < 2:
        raise ValueError(
            f"found {len(prompts)} prompts and sizes {list(sizes)}, expected some of each, and sizes from 2"
        )
    room = pair.max_context - max(map(len, prompts)) - max_new_tokens
    depth = max(min(depth, room), 1)  # where no level has room, less is decoded
    verifier = SEQUOIA if acceptance.holds_for is None else acceptance.holds_for.verifier
    trees = growing_trees(acceptance, sizes, depth)
    methods = [
        (kind, sampling, tree, verifier if isinstance(tree, TokenTree) else None) for (kind, _), tree in trees.items()
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
        "conditions": conditions.to_json(), "prompts": len(runs[0].steps), "max_new_tokens": max_new_tokens,
        "max_depth": depth, "seed": SEED,
    }  # fmt: skip
    return GrowthStudy(points, settings)


def growing_trees(
    acceptance: AcceptanceVector, sizes: Sequence[int], depth: int
) -> dict[tuple[str, int], TokenTree | TreePolicy]:
    """Return (kind, nodes) -> tree, small ones first, for each kind at most one for each of these sizes."""
    table = table_within_reach(acceptance, max_size=max(sizes), max_depth=depth)
    trees: dict[tuple[str, int], TokenTree | TreePolicy] = {}
    for size in sorted(sizes):
        if np.isfinite(table[size, depth]):
            trees[STATIC, size] = optimal_tree(acceptance, size=size, depth=depth)
        chains = best_chains(acceptance, size=size, depth=depth)
        trees[CHAINS, chains.size] = chains
        length = min(CHAIN, size - 1, depth)
        shape = independent_chains((size - 1) // length, length)
        trees[SPECINFER_CHAINS, shape.size] = FixedTree(shape, verifiers=(SPECINFER,))
        trees[SPECEXEC, size] = SpecExecTree(max_size=size, max_depth=depth)
    return trees
