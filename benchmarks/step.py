"""Break down the time of a decoding step into the two models' passes and everything around them.

python benchmarks/step.py --dtype bfloat16 --size 64 --depth 8      # prints a table, then one JSON line
"""

import json
import statistics
import time

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import torch

from benchmarks.common import ROOT, Options
from sequoia_core import AcceptanceVector, SamplingConfig, autoregressive, decode, load_pair, optimal_tree
from sequoia_core.decoding.record import TOKENS_ONLY
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.models.language_model import ModelPair


class Clocked:
    """A language model that accumulates the time of its passes."""

    def __init__(self, model) -> None:
        self.model, self.own_sec, self.sessions = model, 0.0, []

    @property
    def sec(self) -> float:
        drafting = [session.drafting_sec.value for session in self.sessions if hasattr(session, "drafting_sec")]
        # Compiled drafting does not call `forward`, so its time is added.
        return self.own_sec + sum(drafting)

    def __getattr__(self, name: str):
        return getattr(self.model, name)

    def open(self, capacity: int, state_indices=()):
        session = self.model.open(capacity, state_indices)
        append = session.forward

        def timed(*args, **options) -> torch.Tensor:
            started = time.perf_counter()
            logits = append(*args, **options)
            self.own_sec += time.perf_counter() - started
            return logits

        session.forward = timed
        self.sessions.append(session)
        return session


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    args = parser.read(size=8, depth=3, prompts=1, max_new_tokens=8)
    pair = load_pair(dtype=args.dtype)
    texts = load_prompts(ROOT / "assets" / "prompts" / "prompts.jsonl")[: args.prompts]
    results = {}
    for temperature in (0.0, 0.6):
        name = "demo-t0" if temperature == 0 else "demo-t0.6"
        tree = optimal_tree(
            AcceptanceVector.load(ROOT / "assets" / "acceptance" / f"{name}.json"), size=args.size, depth=args.depth
        )
        target, draft = Clocked(pair.target), Clocked(pair.draft)
        clocked = ModelPair(target, draft, pair.tokenizer)
        options = {"sampling": SamplingConfig(temperature), "max_new_tokens": args.max_new_tokens}
        rows, plain = [], []
        # The first run is a warm-up.
        for number, text in enumerate([texts[0], *texts]):
            ids = pair.tokenizer.encode(text)[-256:]
            before = (draft.sec, target.sec)
            for step in decode(ids, clocked, tree=tree, details=TOKENS_ONLY, **options):
                draft_sec, target_sec = draft.sec - before[0], target.sec - before[1]
                before = (draft.sec, target.sec)
                # The first step includes prefill, so it is skipped.
                if number and step.index:
                    rows.append(
                        {
                            "draft forward": draft_sec,
                            "draft around it": step.draft_sec - draft_sec,
                            "verify forward": target_sec,
                            "verify around it": step.verify_sec - target_sec,
                            "walk": step.walk_sec,
                            "commit": step.commit_sec,
                        }
                    )
            if number:
                steps = autoregressive(ids, pair, **options)
                plain.extend(step.seconds for step in steps if step.index)
        medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        whole = statistics.median(sum(row.values()) for row in rows)
        outside = statistics.median(
            1 - (row["draft forward"] + row["verify forward"]) / sum(row.values()) for row in rows
        )
        print(f"T = {temperature:g}, {args.dtype}, n = {args.size}, d = {args.depth}, {len(rows)} steps, medians")
        for key, value in medians.items():
            print(f"  {key:<17}{value * 1e3:8.2f} ms {value / whole:6.1%}")
        print(f"  step             {whole * 1e3:8.2f} ms, outside the passes {outside:.1%}")
        print(f"  one token alone  {statistics.median(plain) * 1e3:8.2f} ms")
        results[f"T={temperature:g}"] = {
            "phases_sec": medians, "step_sec": whole, "outside_forwards": outside,
            "autoregressive_sec": statistics.median(plain),
        }  # fmt: skip
    print(json.dumps({"dtype": args.dtype, "size": args.size, "depth": args.depth, **results}))


if __name__ == "__main__":
    main()
