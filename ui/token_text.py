"""Text of tokens in context: decoded alone, a token may lose its leading space or be part of a character."""

from collections.abc import Callable, Sequence
from itertools import chain

TEXT_WINDOW = 6  # number of context tokens that determine the next token's text
MAX_CHARACTER_BYTES = 4  # each byte may be a separate token
PARTIAL_CHARACTER = "\ufffd"
BYTES_LABEL = "<bytes>"  # the label of a partial character


def text_after(decode: Callable[[list[int]], str], before: Sequence[int], tokens: Sequence[int]) -> str:
    """Return the text that tokens add to the text of the tokens before them."""
    lead = decode(list(before))
    whole = decode([*before, *tokens])
    return whole[len(lead) :] if whole.startswith(lead) else decode(list(tokens))


class TokenText:
    """Incremental decoding of a growing sequence.

    Args:
        decode: function that returns the text of token ids.
        context: the prompt's token ids, at least one.
    """

    def __init__(self, decode: Callable[[list[int]], str], context: Sequence[int]) -> None:
        self._decode = decode
        self._anchor = list(context[-1:])
        self._labels: dict[int, str] = {}
        # Each group of tokens ends at the end of a character, so that no window begins inside one.
        windows = [list(context[-size:]) for size in range(TEXT_WINDOW, TEXT_WINDOW + MAX_CHARACTER_BYTES)]
        whole = next((tokens for tokens in windows if not decode(tokens).startswith(PARTIAL_CHARACTER)), windows[0])
        self._groups = [whole]
        self._cut: list[int] = []
        self._lead = decode(whole)

    def label(self, token: int) -> str:
        """Return the label of a single next token; `BYTES_LABEL` stands for a partial character."""
        if token not in self._labels:
            self._labels[token] = text_after(self._decode, self._anchor, [token]).replace(
                PARTIAL_CHARACTER, BYTES_LABEL
            )
        return self._labels[token]

    def passage(self, before: Sequence[int], after: Sequence[int]) -> tuple[str, str]:
        """Return the text of some tokens and the text that more tokens add, without partial characters at the ends."""
        added = text_after(self._decode, before, after)
        return self._decode(list(before)).lstrip(PARTIAL_CHARACTER), added.rstrip(PARTIAL_CHARACTER) or added

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the text that each newly committed token adds; "" while a character is incomplete."""
        return [self._piece(int(token)) for token in tokens]

    def _piece(self, token: int) -> str:
        self._cut.append(token)
        whole = self._decode([*chain(*self._groups), *self._cut])
        if whole.endswith(PARTIAL_CHARACTER):
            return ""
        piece = whole[len(self._lead) :] if whole.startswith(self._lead) else self._decode(self._cut)
        self._groups.append(self._cut)
        self._cut = []
        while sum(map(len, self._groups[1:])) >= TEXT_WINDOW:
            self._groups.pop(0)
        self._lead = self._decode([*chain(*self._groups)])
        return piece

    def whole(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens without an incomplete character at the end."""
        return tokens[: len(tokens) - len(self._cut)]
