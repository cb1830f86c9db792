"""Compare the acceptance rate by position of the demo head's chains in vLLM and in our engine at temperature 0.

    python benchmarks/heads_in_vllm.py FOLDER --vllm OTHER/bin/python --out

FOLDER stores vLLM's answers, one file per k, which later runs reuse. vLLM (`method: eagle3`, float32, one request at a
time) interprets the layer ids in `eagle_config` as indices of states, which are one less than intended by the program
that wrote them. It therefore gets a copy with the states that the head was trained on. The last line is the record.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np

from benchmarks.common import ROOT, Options, unavailable, write_record

DEMO = ROOT / "assets" / "demo"
TOKENS, IDS = 96, "eagle_aux_hidden_state_layer_ids"
COUNTED = "vllm:spec_decode_num_"


def ask_vllm(head: str, k: int, out: Path) -> None:
    """Generate answers to the prompts (token ids) on standard input; runs in vLLM's environment."""
    from vllm import LLM, SamplingParams

    model = LLM(
        model=str(DEMO / "target"), dtype="float32", max_model_len=384, max_num_seqs=1, enforce_eager=True,
        disable_log_stats=False, enable_prefix_caching=False, gpu_memory_utilization=0.3,  # needed on a CPU too
        speculative_config={"method": "eagle3", "model": head, "num_speculative_tokens": k},
    )  # fmt: skip
    prompts = [{"prompt_token_ids": ids} for ids in json.load(sys.stdin)]
    answers = model.generate(prompts, SamplingParams(temperature=0.0, max_tokens=TOKENS))
    metrics = {each.name: getattr(each, "values", None) or getattr(each, "value", None) for each in model.get_metrics()}
    kept = {name: value for name, value in metrics.items() if COUNTED in name}
    out.write_text(json.dumps({"metrics": kept, "texts": [list(each.outputs[0].token_ids) for each in answers]}))


def ours(prompts: list[list[int]], k: int) -> tuple[int, list[int], list[list[int]]]:
    """Return our engine's number of drafts, the number accepted at each position, and the texts."""
    from sequoia_core import decode, load_pair
    from sequoia_core.trees.plain import chain_tree

    pair = load_pair(DEMO / "target", DEMO / "head", device="cpu", dtype="float32")
    runs = [list(decode(ids, pair, tree=chain_tree(k), max_new_tokens=TOKENS)) for ids in prompts]
    taken = np.array([len(step.new_tokens) - 1 + step.cut_by_length for steps in runs for step in steps])
    return len(taken), [int((taken >= place).sum()) for place in range(1, k + 1)], [
        [token for step in steps for token in step.new_tokens] for steps in runs
    ]  # fmt: skip


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--vllm", default=sys.executable, help="a Python with vLLM installed")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--out", action="store_true", help="write the record to benchmarks/results")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.set_defaults(lengths=(1, 2, 4))
    with tempfile.TemporaryDirectory() as scratch:
        args = parser.read(folder=Path(scratch), prompts=1, lengths=(1,))
        if args.folder is None:
            parser.error("found no FOLDER, expected a folder for vLLM's answers")
        if args.one:
            ask_vllm(args.one[0], int(args.one[1]), args.folder)
        else:
            compare(args)


def compare(args: argparse.Namespace) -> None:
    """Run both engines, print the acceptance rate at each position, and write the record."""
    from tokenizers import Tokenizer

    lines = (DEMO.parent / "prompts" / "prompts.jsonl").read_text().splitlines()[: args.prompts]
    tokenizer = Tokenizer.from_file(str(DEMO / "target" / "tokenizer.json"))
    prompts, record = [tokenizer.encode(json.loads(line)["text"]).ids for line in lines], {}
    for k in args.lengths:
        drafts, accepted, texts = ours(prompts, k)
        kept = args.folder / f"{k}.json"
        if not kept.exists():
            if subprocess.run([args.vllm, "-c", "import vllm"], stderr=subprocess.DEVNULL, check=False).returncode:
                unavailable(f"This benchmark needs vLLM, which {args.vllm} does not provide.")
            with tempfile.TemporaryDirectory() as folder:
                config = json.loads((DEMO / "head" / "config.json").read_text())
                config["eagle_config"][IDS] = [number + 1 for number in config["eagle_config"][IDS]]
                (Path(folder) / "config.json").write_text(json.dumps(config))
                (Path(folder) / "model.safetensors").symlink_to(DEMO / "head" / "model.safetensors")
                words = [args.vllm, __file__, str(kept), "--one", folder, str(k)]
                subprocess.run(
                    words, input=json.dumps(prompts), text=True, check=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
                )
        theirs = json.loads(kept.read_text())
        record[k] = {
            "vllm": {"drafts": theirs["metrics"][f"{COUNTED}drafts"],
                     "accepted": theirs["metrics"][f"{COUNTED}accepted_tokens_per_pos"]},
            "ours": {"drafts": drafts, "accepted": accepted},
            "same_texts": sum(one == other for one, other in zip(texts, theirs["texts"], strict=True)),
        }  # fmt: skip
        for who in ("vllm", "ours"):
            found = record[k][who]
            print(f"k = {k} {who:>5}", *(f"{count / found['drafts']:7.1%}" for count in found["accepted"]))
    whole = {"prompts": len(prompts), "tokens": TOKENS, "k": record}
    if args.out:
        write_record("heads-in-vllm", whole, args)
    print(json.dumps(whole))


if __name__ == "__main__":
    main()
