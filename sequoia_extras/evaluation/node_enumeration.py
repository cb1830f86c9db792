"""Prove that verifiers are lossless by enumerating all draws, decisions and bonus tokens at one node.

P = target row, Q = draft row, V = vocabulary, k = children.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from sequoia_core.decoding.sampling import sample_with_replacement, sample_without_replacement, take_most_likely
from sequoia_core.decoding.verifiers import GREEDY_VERIFIER, VERIFIERS, DraftSampling

Draws = Callable[[np.ndarray, Sequence[int], int], Iterator[tuple[int, float]]]


def _draw_without_replacement(draft: np.ndarray, drawn: Sequence[int], k: int) -> Iterator[tuple[int, float]]:
    left = draft.copy()
    left[list(drawn)] = 0.0
    if left.sum() <= 0.0:  # if no mass is left, the remaining tokens are equally likely
        left[:] = 1.0
        left[list(drawn)] = 0.0
    yield from enumerate(left / left.sum())


def _draw_with_replacement(draft: np.ndarray, drawn: Sequence[int], k: int) -> Iterator[tuple[int, float]]:
    yield from enumerate(draft)


def _draw_most_likely(draft: np.ndarray, drawn: Sequence[int], k: int) -> Iterator[tuple[int, float]]:
    yield int(take_most_likely(torch.from_numpy(draft)[None], k)[0, len(drawn)]), 1.0


_NEXT_DRAWS: dict[DraftSampling, Draws] = {
    sample_without_replacement: _draw_without_replacement,
    sample_with_replacement: _draw_with_replacement,
    take_most_likely: _draw_most_likely,
}


def next_token_distribution(
    target: np.ndarray, draft: np.ndarray, k: int, verifier_name: str, first: np.ndarray | None = None
) -> tuple[np.ndarray, float]:
    """Enumerate all draws, accept decisions and bonus tokens at a node with k children.

    Args:
        target, draft: float64 [V], the rows P and Q, each summing to 1; V is at most 6.
        k: number of children, 1 to V.
        verifier_name: "sequoia", "specinfer", "topk", or "greedy", which uses the target's row at temperature 0.
        first: float64 [V], the row that the first child is drawn from if it differs from Q, as with top-p; None for Q.

    Returns:
        The distribution of the next token, float64 [V] (exactly P for a lossless verifier), and the probability that
        one of the children is accepted.
    """
    verifier = (VERIFIERS | {GREEDY_VERIFIER.name: GREEDY_VERIFIER})[verifier_name]
    target = target / target.sum()
    draft = draft / draft.sum()
    if len(target) != len(draft):
        raise ValueError(f"rows: found {len(target)} and {len(draft)} tokens, expected equal vocabulary sizes")
    if not 1 <= k <= len(target):
        raise ValueError(f"k: found {k} children, expected 1 to {len(target)} (the vocabulary size)")
    if verifier is GREEDY_VERIFIER:
        target = np.eye(len(target))[target.argmax()]
    draws = _NEXT_DRAWS[verifier.draft_sampling]
    distribution = np.zeros(len(target))
    accepted = 0.0
    first_row = {} if first is None else {"first": first / first.sum()}

    def offer_next(drawn: list[int], reach: float) -> None:
        nonlocal distribution, accepted
        row = draft if drawn or first is None else first_row["first"]
        for token, probability in draws(row, drawn, k):
            here = reach * probability
            if here <= 0.0:
                continue
            *_, offer = verifier.rule(target, draft, [*drawn, token], **first_row)
            distribution[token] += here * offer.accept_prob
            accepted += here * offer.accept_prob
            rejected = here * (1.0 - offer.accept_prob)
            if rejected > 0.0 and len(drawn) + 1 < k:
                offer_next([*drawn, token], rejected)
            else:
                distribution += rejected * offer.residual

    offer_next([], 1.0)
    return distribution, float(accepted)
