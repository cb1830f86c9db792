"""Where two greedy texts part, and whether the target was nearly undecided there."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..design.near_ties import gap_words, is_near_tie
from ..models.protocol import LanguageModel, causal_mask, dtype_name, prefill


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token in which two texts differ.

    Attributes:
        index: tokens before it, which both have.
        tokens: that of each text; None where it has ended.
        gap: the first one's logit less the second one's, in a plain pass of the target; None where a text has ended.
        exact: whether the target computes in float32.
    """

    index: int
    tokens: tuple[int | None, int | None]
    gap: float | None
    exact: bool

    @property
    def near_tie(self) -> bool:
        return self.gap is not None and is_near_tie(self.gap, exact=self.exact)

    def words(self, decode: Callable[[list[int]], str]) -> str:
        """Say it for people; `decode` makes a text of token ids."""
        wanted, found = ("the end" if token is None else repr(decode([token])) for token in self.tokens)
        how = "" if self.gap is None else f"; {gap_words(self.gap, exact=self.exact)}"
        return f"token {self.index + 1} is {found}, not {wanted}{how}"


@torch.inference_mode()
def first_difference(
    prompt: Sequence[int], wanted: Sequence[int], found: Sequence[int], target: LanguageModel
) -> Difference | None:
    """Return where two continuations of a prompt part; None where they are equal."""
    if list(wanted) == list(found):
        return None
    exact = dtype_name(target) == "float32"
    pairs = zip(wanted, found, strict=False)
    index = next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(wanted), len(found)))
    if index in (len(wanted), len(found)):
        ended = tuple(text[index] if index < len(text) else None for text in (wanted, found))
        return Difference(index, (ended[0], ended[1]), None, exact)
    before, tokens = [*prompt, *wanted[:index]], (wanted[index], found[index])
    session = target.open(len(before))
    prefill(session, before[:-1], cancel=threading.Event())
    position = torch.tensor([len(before) - 1])
    row = session.forward(torch.tensor(before[-1:]), position, causal_mask(1), keep=1)[-1].float()
    return Difference(index, tokens, float(row[tokens[0]] - row[tokens[1]]), exact)
