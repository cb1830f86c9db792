"""Write the log that the replay page shows first: the demo target's greedy answers as token ids.

    python scripts/make_lookup_log.py

A minute of computing. In float32, so that any processor writes the same.
"""

from __future__ import annotations

import json
from pathlib import Path

from sequoia_core import autoregressive, load_pair
from sequoia_core.files.model_names import ASSETS
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.files.safe_files import write_atomic
from sequoia_core.models.chat import encode_prompt

OUT = ASSETS / "responses" / "demo-greedy.jsonl"
NEW_TOKENS = 128


def main(out: Path = OUT, prompts: int | None = None, new_tokens: int = NEW_TOKENS) -> None:
    """Write prompt and answer of each of the prompts that do not loop, in their order."""
    pair = load_pair(draft="none", dtype="float32")
    lines = []
    for text in load_prompts(ASSETS / "prompts" / "not-looping.jsonl")[:prompts]:
        prompt = encode_prompt(pair.tokenizer, text)
        steps = autoregressive(prompt, target=pair.target, max_new_tokens=new_tokens)
        answer = [token for step in steps for token in step.new_tokens]
        lines.append(json.dumps({"prompt_ids": prompt, "token_ids": answer}, separators=(",", ":")))
    out.parent.mkdir(exist_ok=True)
    write_atomic(out, ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
