"""Sentences that people should read once: what works, but more slowly than it could.

Commands print them on stderr, the app shows them in its sidebar, and Python programs get them as warnings.
"""

import warnings

_said: list[str] = []


class Notice(UserWarning):
    """A sentence for people who run a program."""


def say_once(sentence: str) -> None:
    """Keep a sentence, and warn with it; one that was said before is not repeated."""
    if sentence not in _said:
        _said.append(sentence)
        warnings.warn(sentence, Notice, stacklevel=3)


def said() -> list[str]:
    """Return the sentences so far."""
    return list(_said)
