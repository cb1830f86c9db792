"""Compare the default tree policy with plain decoding: tokens per second, and the ratio of default to plain.

    python benchmarks/default.py [--folder FOLDER] [--file FILE.gguf]

Measures the demo target and pair and, with both options, a real model as a folder alone, a file alone, and the folder
with the file as its draft. Both methods decode each prompt, in alternating order; ratios are those of the summed
seconds per token. Prints a table, then one JSON line.
"""

import json
import time

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np
import torch

from benchmarks.common import ROOT, Options
from sequoia_core import SamplingConfig, autoregressive, decode, load_pair
from sequoia_core.command_line.decode_commands import default_tree
from sequoia_core.decoding.record import TOKENS_ONLY
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.models.processor import processor_name
from sequoia_extras.dynamic_trees import LookupTree
from sequoia_extras.dynamic_trees.text_index import TextIndex

SAMPLINGS = (0.0, 0.7, 1.0)


def seconds_per_token(prompt: list[int], pair, tree, sampling: SamplingConfig, tokens: int, seed: int) -> float:
    options = {"sampling": sampling, "max_new_tokens": tokens, "generator": torch.Generator().manual_seed(seed)}
    started = time.perf_counter()
    if tree is None:
        steps = autoregressive(prompt, pair, **options)
    else:
        steps = decode(prompt, pair, tree=tree, details=TOKENS_ONLY, **options)
    count = sum(len(step.new_tokens) for step in steps)
    return (time.perf_counter() - started) / count


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--folder")
    parser.add_argument("--file")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    args = parser.read(prompts=1, max_new_tokens=8)
    models = {"demo target alone": (None, "none"), "demo pair": (None, None)}
    if args.folder:
        models["folder alone"] = args.folder, "none"
    if args.file:
        models["file alone"] = args.file, "none"
    if args.folder and args.file:
        models["folder drafted by file"] = args.folder, args.file
    texts = load_prompts(ROOT / "assets" / "prompts" / "prompts.jsonl")[: args.prompts]
    found = {}
    for name, (target, draft) in models.items():
        pair = load_pair(target, draft)
        prompts = [pair.tokenizer.encode(text)[:256] for text in texts]
        for temperature in SAMPLINGS:
            sampling = SamplingConfig(temperature)
            tree = LookupTree(TextIndex())
            if pair.draft is not None:
                tree, _ = default_tree(pair, sampling, None, None, None, {})
            for way in (None, tree):
                # The warm-up also times passes.
                seconds_per_token(prompts[0], pair, way, sampling, 16, 0)
            taken = []
            for turn, prompt in enumerate(prompts):
                ways = (None, tree) if turn % 2 else (tree, None)
                by_way = {
                    way is None: seconds_per_token(prompt, pair, way, sampling, args.max_new_tokens, turn)
                    for way in ways
                }
                taken.append([by_way[True], by_way[False]])
            plain, default = np.array(taken).T
            found[f"{name}, T={temperature:g}"] = {
                "plain_tokens_per_sec": len(plain) / plain.sum(),
                "default_tokens_per_sec": len(default) / default.sum(),
                "ratio": plain.sum() / default.sum(),
                "median_ratio_of_a_prompt": float(np.median(plain / default)),
                "least_ratio_of_a_prompt": float((plain / default).min()),
            }
            row = found[f"{name}, T={temperature:g}"]
            print(
                f"{name + f', T={temperature:g}':<34}" + "".join(f"{value:10.2f}" for value in row.values()), flush=True
            )
    print(json.dumps({"processor": processor_name(), "threads": torch.get_num_threads(), "found": found}))


if __name__ == "__main__":
    main()
