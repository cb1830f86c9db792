"""Read prompts from the files people have. Knows text, not tokens; imports nothing heavy."""

from __future__ import annotations

import json
from pathlib import Path

from .files import kind_of, read_bytes

MAX_PROMPT_BYTES = 16 * 2**20


def load_prompts(path: str | Path) -> list[str]:
    """Read prompts: JSONL with a "text" (or "prompt") key per line, or plain text with one prompt per line.

    Raises:
        ValueError: naming the file and line, what was found and what was expected.
    """
    data = read_bytes(path, limit=MAX_PROMPT_BYTES)
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: found {kind_of(data)} that is not UTF-8, expected text or JSONL") from error
    prompts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        if str(path).endswith((".jsonl", ".json")):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{path}: line {number}: found no JSON, expected an object with a text") from error
            text = (row.get("text") or row.get("prompt")) if isinstance(row, dict) else None
            if not isinstance(text, str) or not text:
                raise ValueError(f'{path}: line {number}: found {line[:40]!r}, expected an object with a "text"')
            prompts.append(text)
        else:
            prompts.append(line)
    if not prompts:
        raise ValueError(f"{path}: found no prompts, expected at least one line")
    return prompts
