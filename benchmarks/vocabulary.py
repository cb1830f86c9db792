"""Measure the cost of a large vocabulary outside the models' passes, relative to the time in the passes.

    python benchmarks/vocabulary.py --target FOLDER --draft FILE.gguf     # also measures this pair
    python benchmarks/vocabulary.py --sizes 4096,32768                    # without another pair

The demo pair has 4,096 tokens. Other sizes use random models with 8 layers of width 640 and an output layer scaled so
that rows are as peaked as those of real models. Their draft is the same model with noise added to that layer. Measures
`measure` (also in ms per position), a step with three sampling settings, and a step with the details that the page
shows. Prints a table, then one JSON line.
"""

import copy
import json
import time
from collections.abc import Callable

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import torch
from step import Clocked
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.common import ROOT, Options
from sequoia_core import SamplingConfig, decode, load_pair, optimal_tree
from sequoia_core.acceptance.what_if import power_law
from sequoia_core.decoding.record import StepDetails
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.measuring.measure_acceptance import measure_acceptance
from sequoia_core.models.language_model import HuggingFaceModel, ModelPair
from sequoia_core.models.processor import processor_name

DEMO, HIDDEN, LAYERS = 4096, 640, 8
# Standard deviations of a random target's logits, and of the draft's deviations from them.
PEAKED, NOISE = 5.0, 1.0
SAMPLINGS = {"T=0": SamplingConfig(0.0), "T=0.7": SamplingConfig(0.7), "T=1, top-p 0.9": SamplingConfig(1.0, top_p=0.9)}
LIKELY = 8  # number of tokens of each row that the page shows


def random_models(vocab_size: int) -> ModelPair:
    """Return a random bfloat16 pair whose rows are as peaked and agree as much as those of real models."""
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=HIDDEN, intermediate_size=4 * HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=10, num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    target = LlamaForCausalLM(config).to(torch.bfloat16)
    draft = copy.deepcopy(target)
    # Hidden states have a root mean square of 1, so these weights give the standard deviations above.
    with torch.no_grad():
        target.lm_head.weight.normal_(0.0, PEAKED / HIDDEN**0.5)
        draft.lm_head.weight.normal_(0.0, NOISE / HIDDEN**0.5).add_(target.lm_head.weight)
    models = HuggingFaceModel(target, "random target"), HuggingFaceModel(draft, "random draft")
    return ModelPair(*models, load_pair().tokenizer)


def shares(pair: ModelPair, prompts: list[list[int]], width: int, tokens: int) -> dict[str, dict[str, float]]:
    """Return the seconds inside and outside the passes for each row of the table."""
    target, draft = Clocked(pair.target), Clocked(pair.draft)
    pair = ModelPair(target, draft, pair.tokenizer)
    tree = optimal_tree(power_law(0.7, 1.0, ranks=8), size=16, depth=4)

    def clocked(run: Callable[[list[int]], int]) -> dict[str, float]:
        # Warm up.
        run(prompts[0])
        began, before = time.perf_counter(), target.sec + draft.sec
        counts = [run(prompt) for prompt in prompts]
        inside = target.sec + draft.sec - before
        outside = time.perf_counter() - began - inside
        return {"outside_sec": outside, "passes_sec": inside, "share": outside / inside, "count": sum(counts)}

    def measured(sampling: SamplingConfig) -> Callable[[list[int]], int]:
        return lambda prompt: (
            measure_acceptance([prompt], pair, sampling=sampling, width=width, max_new_tokens=tokens).trials
        )

    def decoded(sampling: SamplingConfig, likely: int) -> Callable[[list[int]], int]:
        details = StepDetails(probabilities=bool(likely), likely=likely)
        options = {"details": details, "sampling": sampling, "max_new_tokens": tokens}
        return lambda prompt: sum(1 for _ in decode(prompt, pair, tree=tree, **options))

    found = {}
    for name, sampling in SAMPLINGS.items():
        found[f"measure, {name}"] = clocked(measured(sampling))
        for kind, likely in (("step", 0), ("explained step", LIKELY)):
            found[f"{kind}, {name}"] = clocked(decoded(sampling, likely))
    return found


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--sizes", default="4096,32768,151936,262144")
    parser.add_argument("--target", help="model that replaces the random one at the last size")
    parser.add_argument("--draft")
    parser.add_argument("--width", type=int, default=48, help="number of ranks to measure")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    args = parser.read(sizes="5000", width=4, prompts=1, max_new_tokens=4)
    sizes = [int(size) for size in args.sizes.split(",")]
    texts = load_prompts(ROOT / "assets" / "prompts" / "prompts.jsonl")[: args.prompts]
    found = {}
    for size in sizes:
        if args.target and size == sizes[-1]:
            pair = load_pair(args.target, args.draft)
        else:
            pair = load_pair(dtype="bfloat16") if size == DEMO else random_models(size)
        prompts = [pair.tokenizer.encode(text)[:256] for text in texts]
        found[f"{pair.target.vocab_size:,}"] = shares(pair, prompts, args.width, args.max_new_tokens)
        del pair
    print(f"{processor_name()}, {torch.get_num_threads()} threads; seconds outside ÷ inside passes, by vocabulary")
    print(f"{'':<32}" + "".join(f"{size:>10}" for size in found))
    for row in next(iter(found.values())):
        print(f"{row:<32}" + "".join(f"{part[row]['share']:10.3f}" for part in found.values()))
        if row.startswith("measure"):
            each = [1e3 * part[row]["outside_sec"] / part[row]["count"] for part in found.values()]
            print(f"{f'  ms per position, {args.width} ranks':<32}" + "".join(f"{ms:10.2f}" for ms in each))
    print(json.dumps({"processor": processor_name(), "width": args.width, "vocabularies": found}))


if __name__ == "__main__":
    main()
