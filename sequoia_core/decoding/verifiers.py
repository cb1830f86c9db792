"""Verifiers: given a node's drafted children and both models' rows, say how likely each is accepted, in turn.

A verifier is a draft sampling together with the rule that is exact for it. Rules work on one node and are generators,
which a test can enumerate. `rows_walk` and `rows_traverse` in C and `gpu/walk_by_rank.py` repeat them: change all.

P = target row, Q = draft row, V = vocabulary, k = children of the node.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from ..design.conditions import SEQUOIA, SPECINFER, TOPK, TRAVERSAL
from .rank_acceptance import (
    OutcomeRule,
    RankRule,
    accepted_ranks,
    accepted_ranks_of_most_likely,
    rank_acceptance,
    rank_acceptance_of_most_likely,
    rank_acceptance_with_replacement,
)
from .sampling import (
    SamplingConfig,
    remove_token,
    residual,
    residual_share,
    sample_with_replacement,
    sample_without_replacement,
    take_most_likely,
)


class Offer:
    """One child offered to the target: accepted when `uniform < target_mass / draft_mass`.

    Attributes:
        target_mass: R[s], what the (residual) target gives the child's token.
        draft_mass: D[s], what the (remaining) draft gave it.
        residual: float64 [V], the target's residual if this child is rejected; computed on first use.
    """

    __slots__ = ("target_mass", "draft_mass", "_compute", "_residual")

    def __init__(self, target_mass: float, draft_mass: float, compute: Callable[[], np.ndarray]) -> None:
        self.target_mass, self.draft_mass = float(target_mass), float(draft_mass)
        self._compute = compute
        self._residual: np.ndarray | None = None

    @property
    def residual(self) -> np.ndarray:
        if self._residual is None:
            self._residual = self._compute()
        return self._residual

    @property
    def accept_prob(self) -> float:
        # only possible through rounding: the draft sampling never draws a token without mass
        if self.draft_mass <= 0.0:
            return 1.0 if self.target_mass > 0.0 else 0.0
        return min(1.0, self.target_mass / self.draft_mass)


DraftSampling = Callable[..., torch.Tensor]  # of rows, how many children, a generator, and rows of the first child
Rule = Callable[..., Iterator[Offer]]  # of the rows P and Q and the children


def sequoia_rule(
    target: np.ndarray,
    draft: np.ndarray,
    children: Sequence[int],
    looked_up: int = 0,
    first: np.ndarray | None = None,
) -> Iterator[Offer]:
    """Offer the looked-up children first, then those drawn without replacement (Sequoia, Algorithm 2).

    Each child is offered against the residual that those before it left, with the law by which it was proposed: all
    mass on a looked-up token, and for a drawn one the draft's row without the tokens before it. As each law depends on
    nothing but what was proposed before, the output follows the target exactly.

    Args:
        target, draft: float64 [V] rows P and Q, each summing to 1; Q is not read where no child was drawn.
        children: tokens [k] in the order proposed, all different.
        looked_up: how many of them, the first ones, were proposed before any was drawn.
        first: float64 [V], the row that the first drawn child came from, without looked-up tokens; None where it was Q.
    """
    return _in_turn(target, draft, children, residual, looked_up, first)


def traversal_rule(
    target: np.ndarray, draft: np.ndarray, children: Sequence[int], first: np.ndarray | None = None
) -> Iterator[Offer]:
    """Offer children drawn without replacement, each with all that is below it (traversal verification, 2505.12398).

    An offer's `accept_prob` is the chance that the child is kept, averaged over what is drawn below it;
    `walk_from_leaves` decides. The root is always kept, and at one node with leaves this is Sequoia's rule.

    Args:
        target: float64 [V], row P times the chance that the node itself is kept; so is every `residual`.
    """
    return _in_turn(target, draft, children, residual_share, first=first)


def _in_turn(
    target: np.ndarray,
    draft: np.ndarray,
    children: Sequence[int],
    residual_of: Callable[[np.ndarray, np.ndarray], np.ndarray],
    looked_up: int = 0,
    first: np.ndarray | None = None,
) -> Iterator[Offer]:
    target_residual, mass = target, draft if looked_up == len(children) else draft.copy()
    for position, token in enumerate(children):
        if position < looked_up:
            offer = Offer(target_residual[token], 1.0, partial(_without, target_residual, token))
        else:
            law = first if position == looked_up and first is not None else mass
            offer = Offer(target_residual[token], law[token], partial(residual_of, target_residual, law))
        yield offer
        target_residual = offer.residual
        if looked_up == len(children):
            continue  # the draft may not have read the node
        if remove_token(mass, token) <= 0.0:  # exhausted: uniform over the tokens not rejected so far
            mass[:] = 1.0
            mass[list(children[: position + 1])] = 0.0
            mass /= max(1.0, mass.sum())


def specinfer_rule(
    target: np.ndarray, draft: np.ndarray, children: Sequence[int], first: np.ndarray | None = None
) -> Iterator[Offer]:
    """Offer children drawn with replacement: the draft row stays as it is (SpecInfer, multi-step sampling)."""
    target_residual = target
    for position, token in enumerate(children):
        law = draft if position or first is None else first
        offer = Offer(target_residual[token], law[token], partial(residual, target_residual, law))
        yield offer
        target_residual = offer.residual


def topk_rule(target: np.ndarray, draft: np.ndarray, children: Sequence[int]) -> Iterator[Offer]:
    """Offer the draft's most likely tokens: a child is accepted when the target's own sample is that child.

    Child s is accepted with probability R[s], else R is conditioned on "not s"; this holds for looked-up ones, too.
    """
    return _in_turn(target, draft, children, residual, looked_up=len(children))


def _without(row: np.ndarray, token: int) -> np.ndarray:
    others = row.copy()
    return others if remove_token(others, token) > 0.0 else row


# the one draft sampling that each rule is exact for; after any other its output is biased
EXACT_SAMPLING: dict[Rule, DraftSampling] = {
    sequoia_rule: sample_without_replacement,
    traversal_rule: sample_without_replacement,
    specinfer_rule: sample_with_replacement,
    topk_rule: take_most_likely,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """A draft sampling, the rule that is exact for it, and the properties of the pair (paper §3.2).

    Attributes:
        name: in options, files and records, and of the rule in compiled code (`native.sampling_ops.RULES`), if any.
        draft_sampling: draws children: float [m, V], k, generator, first -> int64 [m, k].
        rule: decides on them; must be the one that `EXACT_SAMPLING` has for that draft sampling.
        ranks: how likely the child of each rank is the accepted one, for many pairs of rows at once.
        outcomes: draws the rank accepted given the committed token, for many pairs of rows at once.
        optimal_transport: with one child, acceptance is 1 - ||P - Q||_1 / 2, the most that any rule can reach for a
            draw from Q.
        cover: if only k tokens have mass in the draft's row, and no others have mass in the target's, then one of k
            children is always accepted.

    `GREEDY` has both properties only where both rows are one-hot.
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
                f"verifier {self.name!r}: found rule {_name(self.rule)}, "
                f"expected one tied to a draft sampling in EXACT_SAMPLING"
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
            name=SEQUOIA, draft_sampling=sample_without_replacement, rule=sequoia_rule,
            ranks=rank_acceptance, outcomes=accepted_ranks, optimal_transport=True, cover=True,
        ),
        Verifier(
            name=SPECINFER, draft_sampling=sample_with_replacement, rule=specinfer_rule,
            ranks=rank_acceptance_with_replacement,
            outcomes=partial(accepted_ranks, replacement=True), optimal_transport=True, cover=False,
        ),
        Verifier(
            name=TOPK, draft_sampling=take_most_likely, rule=topk_rule,
            ranks=rank_acceptance_of_most_likely, outcomes=accepted_ranks_of_most_likely,
            optimal_transport=False, cover=True,
        ),
        Verifier(
            name=TRAVERSAL, draft_sampling=sample_without_replacement, rule=traversal_rule,
            ranks=rank_acceptance, outcomes=accepted_ranks, optimal_transport=True, cover=True,
        ),
    )
}  # fmt: skip
GREEDY = replace(VERIFIERS[TOPK], name="greedy", optimal_transport=True)  # every verifier at temperature 0


def sampling_of_draft(sampling: SamplingConfig, verifier: Verifier) -> SamplingConfig:
    """Return the draft's sampling: the target's temperature, and top-p and top-k for the rows of first children.

    At temperature 0 the most likely children do not depend on the temperature; 1 keeps the shown numbers useful.
    """
    if sampling.greedy or verifier.draft_sampling is take_most_likely:
        return SamplingConfig(temperature=sampling.temperature or 1.0)
    return sampling


def same_draft_sampling(name: str) -> tuple[str, ...]:
    """Return the names of the verifiers that draw children as that one does, itself first."""
    draft_sampling = VERIFIERS[name].draft_sampling
    return (
        name,
        *(
            other
            for other, verifier in VERIFIERS.items()
            if verifier.draft_sampling is draft_sampling and other != name
        ),
    )


def choose_verifier(name: str, *, greedy: bool) -> Verifier:
    """Return the verifier of that name; at temperature 0 all of them are the greedy one."""
    if name not in VERIFIERS:
        raise ValueError(f"verifier: found {name!r}, expected one of {', '.join(VERIFIERS)}")
    return GREEDY if greedy else VERIFIERS[name]


def choose_verifiers(names: Sequence[str], *, greedy: bool) -> dict[str, Verifier]:
    """Return name -> verifier for some names; at temperature 0 the one entry "greedy"."""
    if not names:
        raise ValueError(f"verifiers: found none, expected some of {', '.join(VERIFIERS)}")
    chosen = [choose_verifier(name, greedy=greedy) for name in names]
    return {verifier.name: verifier for verifier in chosen}
