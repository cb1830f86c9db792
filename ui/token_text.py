"""What tokens read as among other tokens: on their own some lose a leading space, some are part of a character."""

from collections.abc import Callable, Sequence

TEXT_WINDOW = 6  # tokens of context that settle what text the next token adds


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
        self._before = list(context[-TEXT_WINDOW:])
        self._anchor = list(context[-1:])
        self._labels: dict[int, str] = {}

    def label(self, token: int) -> str:
        """Return a token's text on its own."""
        if token not in self._labels:
            self._labels[token] = text_after(self._decode, self._anchor, [token])
        return self._labels[token]

    def passage(self, before: Sequence[int], after: Sequence[int]) -> tuple[str, str]:
        """Return the text of some tokens, and what others add to it."""
        return self._decode(list(before)), text_after(self._decode, before, after)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return what each of the next committed tokens adds; "" while a character is incomplete."""
        pieces = []
        for token in tokens:
            before = self._decode(self._before).rstrip("\ufffd")
            self._before = [*self._before, int(token)]
            after = self._decode(self._before)
            complete = after.startswith(before) and not after.endswith("\ufffd")
            pieces.append(after[len(before) :] if complete else "")
            self._before = self._before[-TEXT_WINDOW:]
        return pieces
