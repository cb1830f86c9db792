"""Verifiers: given a node's drafted children and both models' rows, offer each child in turn.

A verifier is a draft sampling method together with the rule that is exact for it. A rule is a generator over one node's
children, whose outcomes the tests enumerate. `rows_walk` and `rows_traverse` in C and `walk_by_rank.py` in cuda_graphs
reimplement the rules.

P = target row, Q = draft row, V = vocabulary size, k = number of children of the node.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from ..acceptance.conditions import SEQUOIA, SPECINFER, TOPK, TRAVERSAL
from .rank_acceptance import (
    OutcomeRule,
    RankRule,
    accepted_ranks,
    rank_acceptance,
    rank_acceptance_with_replacement,
    top_k_accepted_ranks,
    top_k_rank_acceptance,
)
from .row_operations import row_operations
from .sampling import (
    SamplingConfig,
    residual_share,
    sample_with_replacement,
    sample_without_replacement,
    take_most_likely,
)


class Offer:
    """One child offered to the target; it is accepted if `uniform < target_mass / draft_mass`.

    Attributes:
        target_mass: R[s], the probability of the child's token in the (residual) target row.
        draft_mass: D[s], its probability in the (remaining) draft row.
        residual: float64 [V], the target's residual if this child is rejected; computed on first use.
    """

    __slots__ = ("target_mass", "draft_mass", "_compute", "_residual")

    def __init__(self, target_mass: float, draft_mass: float, compute: Callable[[], np.ndarray]) -> None:
        self.target_mass = float(target_mass)
        self.draft_mass = float(draft_mass)
        self._compute = compute
        self._residual: np.ndarray | None = None

    @property
    def residual(self) -> np.ndarray:
        if self._residual is None:
            self._residual = self._compute()
        return self._residual

    @property
    def accept_prob(self) -> float:
        # Only rounding can make the draft mass 0: no sampling method draws a zero-probability token.
        if self.draft_mass <= 0.0:
            return 1.0 if self.target_mass > 0.0 else 0.0
        return min(1.0, self.target_mass / self.draft_mass)


DraftSampling = Callable[..., torch.Tensor]  # (rows, k, generator, first)
Rule = Callable[..., Iterator[Offer]]  # (P, Q, children)


def sequoia_rule(
    target: np.ndarray,
    draft: np.ndarray,
    children: Sequence[int],
    looked_up: int = 0,
    first: np.ndarray | None = None,
) -> Iterator[Offer]:
    """Offer the looked-up children first, then those drawn without replacement (Sequoia, Algorithm 2).

    Each child is offered against the residual left by the children before it, with the distribution that proposed it:
    all mass on a looked-up token, or the draft's row without the earlier tokens for a drawn one. Each distribution
    depends only on earlier proposals, so the output follows the target exactly.

    Args:
        target, draft: float64 [V], rows P and Q, each summing to 1; Q is not read if no child was drawn.
        children: distinct tokens [k], in the order proposed.
        looked_up: number of leading children that were looked up rather than drawn.
        first: float64 [V], the row of the first drawn child, without looked-up tokens; None for Q.
    """
    return _in_turn(target, draft, children, row_operations().residual, looked_up, first)


def traversal_rule(
    target: np.ndarray, draft: np.ndarray, children: Sequence[int], first: np.ndarray | None = None
) -> Iterator[Offer]:
    """Offer children drawn without replacement together with their subtrees (traversal verification, 2505.12398).

    An offer's `accept_prob` is the probability of keeping the child, averaged over the draws below it;
    `walk_from_leaves` decides. The root is always kept. For a node whose children are leaves, this is Sequoia's rule.

    Args:
        target: float64 [V], row P times the probability of keeping the node itself; every `residual` is scaled in the
            same way.
    """
    return _in_turn(target, draft, children, residual_share, first=first)


def _in_turn(
    target: np.ndarray,
    draft: np.ndarray,
    children: Sequence[int],
    compute_residual: Callable[[np.ndarray, np.ndarray], np.ndarray],
    looked_up: int = 0,
    first: np.ndarray | None = None,
) -> Iterator[Offer]:
    target_residual = target
    mass = draft if looked_up == len(children) else draft.copy()
    for position, token in enumerate(children):
        if position < looked_up:
            offer = Offer(target_residual[token], 1.0, partial(_without, target_residual, token))
        else:
            law = first if position == looked_up and first is not None else mass
            offer = Offer(target_residual[token], law[token], partial(compute_residual, target_residual, law))
        yield offer
        target_residual = offer.residual
        if looked_up == len(children):
            continue  # the draft may not have read the node
        if row_operations().remove_token(mass, token) <= 0.0:  # exhausted: make it uniform over the remaining tokens
            mass[:] = 1.0
            mass[list(children[: position + 1])] = 0.0
            mass /= max(1.0, mass.sum())


def specinfer_rule(
    target: np.ndarray, draft: np.ndarray, children: Sequence[int], first: np.ndarray | None = None
) -> Iterator[Offer]:
    """Offer children drawn with replacement, leaving the draft row unchanged (SpecInfer, multi-step sampling)."""
    target_residual = target
    for position, token in enumerate(children):
        law = draft if position or first is None else first
        offer = Offer(target_residual[token], law[token], partial(row_operations().residual, target_residual, law))
        yield offer
        target_residual = offer.residual


def topk_rule(target: np.ndarray, draft: np.ndarray, children: Sequence[int]) -> Iterator[Offer]:
    """Offer the draft's most likely tokens: a child is accepted if it is the token sampled from the target.

    Child s is accepted with probability R[s]; otherwise R is conditioned on "not s". This also suits looked-up
    children.
    """
    return _in_turn(target, draft, children, row_operations().residual, looked_up=len(children))


def _without(row: np.ndarray, token: int) -> np.ndarray:
    others = row.copy()
    return others if row_operations().remove_token(others, token) > 0.0 else row


# Each rule is exact for only one draft sampling method; with any other, the output is biased.
EXACT_SAMPLING: dict[Rule, DraftSampling] = {
    sequoia_rule: sample_without_replacement,
    traversal_rule: sample_without_replacement,
    specinfer_rule: sample_with_replacement,
    topk_rule: take_most_likely,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """A draft sampling method, the rule that is exact for it, and the properties of the combination (paper §3.2).

    Attributes:
        name: its name in options, files and records, and that of the compiled rule, if any (`RULES` in cpu_kernels).
        draft_sampling: function that draws children: (float [m, V], k, generator, first) -> int64 [m, k].
        rule: function that decides on the children; `EXACT_SAMPLING` must pair it with the draft sampling.
        ranks: function that computes the probability of accepting the child of each rank, for many pairs of rows.
        outcomes: function that draws the accepted rank given the committed token, for many pairs of rows.
        optimal_transport: whether acceptance with one child is 1 - ||P - Q||_1 / 2, the maximum for a draw from Q.
        cover: whether one of k children is always accepted if all mass of both rows lies on the same k tokens.

    `GREEDY_VERIFIER` has both properties only for one-hot rows.
    """

    name: str
    draft_sampling: DraftSampling
    rule: Rule
    ranks: RankRule
    outcomes: OutcomeRule
    optimal_transport: bool
    cover: bool

    def __post_init__(self) -> None:
        partner = EXACT_SAMPLING.get(self.rule)
        if partner is None:
            raise ValueError(
                f"verifier {self.name!r}: found rule {_name(self.rule)}, expected one of the rules in EXACT_SAMPLING"
            )
        if self.draft_sampling is not partner:
            raise ValueError(
                f"verifier {self.name!r}: found draft sampling {_name(self.draft_sampling)} "
                f"with rule {_name(self.rule)}, "
                f"expected draft sampling {_name(partner)} (any other pairing is biased)"
            )


def _name(function: Callable) -> str:
    return getattr(function, "__name__", repr(function))


VERIFIERS = {
    verifier.name: verifier
    for verifier in (
        Verifier(
            name=SEQUOIA,
            draft_sampling=sample_without_replacement,
            rule=sequoia_rule,
            ranks=rank_acceptance,
            outcomes=accepted_ranks,
            optimal_transport=True,
            cover=True,
        ),
        Verifier(
            name=SPECINFER,
            draft_sampling=sample_with_replacement,
            rule=specinfer_rule,
            ranks=rank_acceptance_with_replacement,
            outcomes=partial(accepted_ranks, replacement=True),
            optimal_transport=True,
            cover=False,
        ),
        Verifier(
            name=TOPK,
            draft_sampling=take_most_likely,
            rule=topk_rule,
            ranks=top_k_rank_acceptance,
            outcomes=top_k_accepted_ranks,
            optimal_transport=False,
            cover=True,
        ),
        Verifier(
            name=TRAVERSAL,
            draft_sampling=sample_without_replacement,
            rule=traversal_rule,
            ranks=rank_acceptance,
            outcomes=accepted_ranks,
            optimal_transport=True,
            cover=True,
        ),
    )
}
# Every verifier reduces to this one at temperature 0.
GREEDY_VERIFIER = replace(VERIFIERS[TOPK], name="greedy", optimal_transport=True)


def draft_sampling_config(sampling: SamplingConfig, verifier: Verifier) -> SamplingConfig:
    """Return the draft's settings: the target's temperature, with top-p and top-k for the rows of first children.

    At temperature 0, the most likely children do not depend on the draft's temperature, so 1 is used, which makes the
    displayed probabilities informative.
    """
    if sampling.greedy or verifier.draft_sampling is take_most_likely:
        return SamplingConfig(temperature=sampling.temperature or 1.0)
    return sampling


def same_draft_sampling(name: str) -> tuple[str, ...]:
    """Return the names of all verifiers that share the named one's draft sampling, starting with the named one."""
    draft_sampling = VERIFIERS[name].draft_sampling
    names = [other for other in VERIFIERS if VERIFIERS[other].draft_sampling is draft_sampling]
    return tuple(sorted(names, key=name.__ne__))


def choose_verifier(name: str, *, greedy: bool) -> Verifier:
    """Return the named verifier; at temperature 0, always the greedy one."""
    if name not in VERIFIERS:
        raise ValueError(f"verifier: found {name!r}, expected one of {', '.join(VERIFIERS)}")
    return GREEDY_VERIFIER if greedy else VERIFIERS[name]


def choose_verifiers(names: Sequence[str], *, greedy: bool) -> dict[str, Verifier]:
    """Return the named verifiers, keyed by name; at temperature 0, only "greedy"."""
    if not names:
        raise ValueError(f"verifiers: found none, expected at least one of {', '.join(VERIFIERS)}")
    chosen = [choose_verifier(name, greedy=greedy) for name in names]
    return {verifier.name: verifier for verifier in chosen}
