"""Compare the beams found for engines that grow trees themselves with an exhaustive search and with runs.

    python benchmarks/beams.py            # about five minutes on two cores
    python benchmarks/beams.py --quick
    python benchmarks/beams.py --target FOLDER --draft FOLDER --dtype bfloat16 --prompts 8    # a pair of your own

For the demo pair and the demo head, and for profiles with cheap and with expensive passes, the best beam is compared
with the fastest one of all widths, depths and sizes, on more rows and another seed. Then prompts are decoded with the
best beams, and with wide ones, in this engine: the predicted tokens per step should lie within the run's 95 % interval.
The shipped vectors were measured on the same prompts, among others; that of another pair is measured here on as many
other prompts. Prints one JSON line and writes a dated file to results/.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np
import torch

from benchmarks.common import ROOT, Options, write_record
from sequoia_core.acceptance.bootstrap import Estimate, ratio_estimate
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.record import TOKENS_ONLY
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.measuring.measure_acceptance import measure_acceptance
from sequoia_core.models.language_model import ModelPair
from sequoia_core.models.loading import load_pair
from sequoia_core.planning.profile import load_profile
from sequoia_extras.dynamic_trees.beams import WIDTHS, Beam, BeamSearch, best_beams
from sequoia_extras.dynamic_trees.policies import BeamTree
from sequoia_extras.evaluation.verifier_comparison import count_yielded_tokens

ASSETS = ROOT / "assets"
DRAFTS = {"demo": "draft", "demo-head": "head"}
PROFILES = (
    "profiles/cpu-2core.json",
    "scenarios/profiles/llama2-7b-68m-a100.json",
    "scenarios/profiles/llama2-70b-4bit-rtx-4090.json",
)


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--trees", type=int, default=960)
    parser.add_argument("--target", default=ASSETS / "demo" / "target")
    parser.add_argument("--draft", help="default: the demo's draft and head, each with its shipped vector")
    parser.add_argument("--dtype")
    args = parser.read(prompts=2, max_new_tokens=8, trees=8)
    texts = load_prompts(ASSETS / "prompts" / "prompts.jsonl")
    step = len(texts) // args.prompts
    others = texts[step // 2 :: step][: args.prompts]
    texts = texts[::step][: args.prompts]
    record = {}
    drafts = DRAFTS if args.draft is None else {Path(args.draft).name: args.draft}
    for name, draft in drafts.items():
        pair = load_pair(args.target, ASSETS / "demo" / draft, dtype=args.dtype).ignore_eos()
        prompts = [pair.tokenizer.encode(text) for text in texts]
        if args.draft is None:
            vector = AcceptanceVector.load(ASSETS / "acceptance" / f"{name}-t0.json")
        else:
            measured = [pair.tokenizer.encode(text) for text in others]
            vector = measure_acceptance(measured, pair, sampling=SamplingConfig(0), max_new_tokens=args.max_new_tokens)
            print("first children accepted at each depth:", vector.levels[:, 0].round(3))
        for path in PROFILES:
            profile = load_profile(ASSETS / path)
            beams = best_beams(vector, profile)[:3]
            share = share_of_best(beams[0], BeamSearch(vector, profile, trees=args.trees, seed=1))
            print(f"{name}, {Path(path).stem}: {share:.1%} of the best speed", flush=True)
            runs = []
            for beam in beams:
                predicted = beam.prediction.tokens_per_step
                run = decode_with(beam, prompts, pair, args.max_new_tokens)
                inside = run.low is None or run.low <= predicted.value <= run.high
                print(f"  {beam[:3]}: predicted {predicted.value:.2f}, run {run} {'' if inside else 'outside'}")
                runs.append(
                    {"beam": beam[:3], "predicted": predicted.to_json(), "run": run.to_json(), "inside": inside}
                )
            record[f"{name}, {Path(path).stem}"] = {"share_of_best": share, "runs": runs}
    write_record("beams" if args.draft is None else f"beams-{Path(args.target).name}", record, args)
    print(json.dumps(record))


def share_of_best(beam: Beam, search: BeamSearch) -> float:
    """Return the beam's speed divided by that of the fastest beam of any width."""
    speeds = {width: search.speeds(width, search.tokens(width)) for width in range(1, WIDTHS[-1] + 1)}
    return float(speeds[beam.width][beam.depth, beam.size] / max(table.max() for table in speeds.values()))


def decode_with(beam: Beam, prompts: Sequence[Sequence[int]], pair: ModelPair, length: int) -> Estimate:
    tree = BeamTree(max_size=beam.size, max_depth=beam.depth, beam=beam.width, branch=beam.width)
    counts = np.zeros((2, len(prompts)))
    for index, prompt in enumerate(prompts):
        generator = torch.Generator().manual_seed(index)
        for step in decode(prompt, pair, tree=tree, max_new_tokens=length, details=TOKENS_ONLY, generator=generator):
            counts[:, index] += count_yielded_tokens([step]), 1
    return ratio_estimate(*counts)


if __name__ == "__main__":
    main()
