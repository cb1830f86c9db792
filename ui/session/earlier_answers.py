"""What this session decoded earlier, one index of text for each target: lookup trees may draft from it."""

from sequoia_core.decoding.growing.text_index import TextIndex
from ui.session import session
from ui.session.state import get, put

MAX_TOKENS = 1 << 16  # of an index, in about 4 MB
MAX_TARGETS = 4


def index() -> TextIndex:
    """Return the index of the target in use; the one worker thread adds the text of each finished decode."""
    target = session.pair_spec().names[0]
    held = dict(get("earlier_answers", {}))
    found = held.pop(target, None) or TextIndex(max_tokens=MAX_TOKENS)
    put("earlier_answers", dict([*held.items(), (target, found)][-MAX_TARGETS:]))
    return found
