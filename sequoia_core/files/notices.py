"""One-time notices about features that work, but more slowly than they could.

Commands print the notices to stderr, the app shows them in its sidebar, and Python programs receive them as warnings.
"""

import warnings

_notices: list[str] = []


class Notice(UserWarning):
    """A notice to the user."""


def notify_once(sentence: str) -> None:
    """Record a notice and issue it as a warning, unless it has already been issued."""
    if sentence not in _notices:
        _notices.append(sentence)
        warnings.warn(sentence, Notice, stacklevel=3)


def notices_so_far() -> list[str]:
    """Return the notices issued in this process so far."""
    return list(_notices)
