"""What tokens read as among other tokens: on their own some lose a leading space, some are part of a character."""

from collections.abc import Callable, Sequence
from itertools import chain

TEXT_WINDOW = 6  # tokens of context that settle what text the next token adds
LONGEST = 4  # bytes of a character, each of which may be a token
CUT = "\ufffd"  # stands for a part of a character
BYTES = "<bytes>"  # the label of such a part


def text_after(decode: Callable[[list[int]], str], before: Sequence[int], tokens: Sequence[int]) -> str:
    """Return the text that tokens add after others."""
    lead, whole = decode(list(before)), decode([*before, *tokens])
    return whole[len(lead) :] if whole.startswith(lead) else decode(list(tokens))


class TokenText:
    """The text that each token of a growing sequence adds after those before it.

    Args:
        decode: token ids -> text.
        context: the prompt's ids, at least one.
    """

    def __init__(self, decode: Callable[[list[int]], str], context: Sequence[int]) -> None:
        self._decode = decode
        self._anchor = list(context[-1:])
        self._labels: dict[int, str] = {}
        # Each group of tokens ends where a character does, so that no window begins within one.
        windows = [list(context[-size:]) for size in range(TEXT_WINDOW, TEXT_WINDOW + LONGEST)]
        whole = next((tokens for tokens in windows if not decode(tokens).startswith(CUT)), windows[0])
        self._groups, self._cut = [whole], list[int]()
        self._lead = decode(whole)

    def label(self, token: int) -> str:
        """Return a token's text on its own, with a name in place of bytes that are no character alone."""
        if token not in self._labels:
            self._labels[token] = text_after(self._decode, self._anchor, [token]).replace(CUT, BYTES)
        return self._labels[token]

    def passage(self, before: Sequence[int], after: Sequence[int]) -> tuple[str, str]:
        """Return the text of some tokens, and what others add to it; without characters that their ends cut."""
        added = text_after(self._decode, before, after)
        return self._decode(list(before)).lstrip(CUT), added.rstrip(CUT) or added

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return what each of the next committed tokens adds; "" while a character is incomplete."""
        return [self._piece(int(token)) for token in tokens]

    def _piece(self, token: int) -> str:
        self._cut.append(token)
        whole = self._decode([*chain(*self._groups), *self._cut])
        if whole.endswith(CUT):
            return ""
        piece = whole[len(self._lead) :] if whole.startswith(self._lead) else self._decode(self._cut)
        self._groups.append(self._cut)
        self._cut = []
        while sum(map(len, self._groups[1:])) >= TEXT_WINDOW:
            self._groups.pop(0)
        self._lead = self._decode([*chain(*self._groups)])
        return piece

    def whole(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return all tokens so far but the last ones that leave a character incomplete."""
        return tokens[: len(tokens) - len(self._cut)]
