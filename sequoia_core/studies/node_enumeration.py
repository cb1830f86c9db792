"""One node with a few children, enumerated: every draw, every decision, the bonus token; proves verifiers lossless.

P = target row, Q = draft row, V = vocabulary, k = children.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from ..decoding.sampling import sample_with_replacement, sample_without_replacement, take_most_likely
from ..decoding.verifiers import GREEDY, VERIFIERS, DraftSampling

Draws = Callable[[np.ndarray, Sequence[int], int], Iterator[tuple[int, float]]]


def _draw_without_replacement(draft: np.ndarray, drawn: Sequence[int], k: int) -> Iterator[tuple[int, float]]:
    left = draft.copy()
    left[list(drawn)] = 0.0
    if left.sum() <= 0.0:  # mass used up: uniform over the tokens not drawn yet
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
    """Enumerate one node with k children: every draw of the draft, every accept decision, the bonus token.

    Args:
        target, draft: float64 [V] rows P and Q, V up to 6, each summing to 1.
        k: children, 1 to V.
        verifier_name: "sequoia", "specinfer", "topk" or "greedy"; the last takes the target's row at temperature 0.
        first: float64 [V], what the first child is drawn from, as where top-p cuts its row; None for Q.

    Returns:
        The distribution of the next token, float64 [V] (exactly P for a lossless verifier), and the probability that
        one of the children is accepted.
    """
    verifier = (VERIFIERS | {GREEDY.name: GREEDY})[verifier_name]
    target, draft = target / target.sum(), draft / draft.sum()
    if len(target) != len(draft):
        raise ValueError(f"rows: found {len(target)} and {len(draft)} tokens, expected the same vocabulary")
    if not 1 <= k <= len(target):
        raise ValueError(f"k: found {k} children, expected 1 to the vocabulary of {len(target)}")
    if verifier is GREEDY:
        target = np.eye(len(target))[target.argmax()]
    draws, distribution, accepted = _NEXT_DRAWS[verifier.draft_sampling], np.zeros(len(target)), 0.0

    known = {} if first is None else {"first": first / first.sum()}

    def offer_next(drawn: list[int], reach: float) -> None:
        nonlocal distribution, accepted
        law = draft if drawn or first is None else known["first"]
        for token, probability in draws(law, drawn, k):
            here = reach * probability
            if here <= 0.0:
                continue
            *_, offer = verifier.rule(target, draft, [*drawn, token], **known)
            distribution[token] += here * offer.accept_prob
            accepted += here * offer.accept_prob
            rejected = here * (1.0 - offer.accept_prob)
            if rejected > 0.0 and len(drawn) + 1 < k:
                offer_next([*drawn, token], rejected)
            else:
                distribution += rejected * offer.residual

    offer_next([], 1.0)
    return distribution, float(accepted)
