"""Find the first difference between two greedy outputs, and check whether it is a near-tie in the target's logits."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..models.protocol import LanguageModel, causal_mask, dtype_name, prefill
from ..planning.near_ties import describe_gap, is_near_tie


@dataclass(frozen=True, slots=True)
class Difference:
    """The first position at which two token sequences differ.

    Attributes:
        index: number of equal tokens before the difference.
        tokens: token id of each sequence at that position; None if the sequence has ended.
        gap: logit of the first sequence's token minus the logit of the second's, from a target pass without a tree;
            None if a sequence has ended.
        exact: whether the target runs in float32.
    """

    index: int
    tokens: tuple[int | None, int | None]
    gap: float | None
    exact: bool

    @property
    def near_tie(self) -> bool:
        return self.gap is not None and is_near_tie(self.gap, exact=self.exact)

    def words(self, decode: Callable[[list[int]], str]) -> str:
        """Describe the difference in words; `decode` turns token ids into text."""
        wanted, found = ("the end" if token is None else repr(decode([token])) for token in self.tokens)
        how = "" if self.gap is None else f"; {describe_gap(self.gap, exact=self.exact)}"
        return f"token {self.index + 1} is {found}, not {wanted}{how}"


@torch.inference_mode()
def first_difference(
    prompt: Sequence[int], wanted: Sequence[int], found: Sequence[int], target: LanguageModel
) -> Difference | None:
    """Return the first difference between two continuations of a prompt, or None if they are equal."""
    if list(wanted) == list(found):
        return None
    exact = dtype_name(target) == "float32"
    shortest = min(len(wanted), len(found))
    index = next((index for index in range(shortest) if wanted[index] != found[index]), shortest)
    if index == shortest:
        ended = [text[index] if index < len(text) else None for text in (wanted, found)]
        return Difference(index, (ended[0], ended[1]), None, exact)
    before = [*prompt, *wanted[:index]]
    session = target.open(len(before))
    prefill(session, before[:-1], cancel=threading.Event())
    position = torch.tensor([len(before) - 1])
    row = session.forward(torch.tensor(before[-1:]), position, causal_mask(1), keep=1)[-1].float()
    gap = float(row[wanted[index]] - row[found[index]])
    return Difference(index, (wanted[index], found[index]), gap, exact)
