"""Compare predictions with measurements on a real model, Gemma 3 270M; prints tables, then one JSON line.

    python -m sequoia_core.models.gemma      # creates the folder in bfloat16 and the file in 4 bits
    python benchmarks/real.py                # takes half an hour; resumes after an interruption
    python benchmarks/real.py --quick        # a trial with the demo target in both roles

Each temperature has three sections. "texts": the file answers other prompts. "folder": the folder is the target and the
file its draft. Acceptance and step times are measured on those prompts, and predictions are made. Then plain decoding,
the best chain, the planned tree, and adaptive, hybrid and lookup trees take turns on each prompt; on every fourth
prompt, so does transformers' `generate` (plain, assisted, with prompt lookup). "file": the same with only plain
decoding and lookup trees, compared with llama.cpp's server in separate processes (plain, with n-grams).

Each finished section is appended to a JSON Lines file next to --out and is not measured again with the same settings.
Speedups compare seconds per token with plain decoding of the same prompt: the median over prompts, and the ratio of
totals, which is what predictions refer to. Prefill is excluded, except for transformers' methods and the plain decoding
that they are compared with. transformers cannot run 4-bit files of this type, so its assistant is the folder: the same
weights in bfloat16. Answers do not stop at an end-of-text token: our methods ignore it, and llama.cpp's server never
draws it.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import date
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np
import torch
from prediction_on_texts import predict_on_texts
from servers import as_gguf
from transformers import AutoModelForCausalLM

from benchmarks.common import ROOT, Options, require
from benchmarks.running_server import running_server
from benchmarks.server_check import REQUEST_SEC, server_command
from sequoia_core import SamplingConfig, TokenTree, load_pair
from sequoia_core.acceptance.bootstrap import RESAMPLES, estimate, ratio_estimate
from sequoia_core.decoding.tree_policy import ROOT_ONLY
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.files.safe_files import write_atomic
from sequoia_core.measuring import race
from sequoia_core.measuring.first_difference import first_difference
from sequoia_core.measuring.measure_acceptance import measure_acceptance
from sequoia_core.measuring.measure_profile import measure_profile
from sequoia_core.models import gemma
from sequoia_core.models.language_model import HuggingFaceModel, ModelPair
from sequoia_core.models.processor import processor_name
from sequoia_core.models.protocol import LanguageModel
from sequoia_core.models.transformers_passes import TransformersBackend
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.prediction import Prediction, best_chain, predict
from sequoia_core.planning.profile import LLAMA_CPP
from sequoia_core.planning.reasons import Measured, reasons
from sequoia_core.planning.step_time import StepTime
from sequoia_extras.cpu_kernels.instruction_sets import instructions_in_use
from sequoia_extras.dynamic_trees import AdaptiveTree, HybridTree, LookupTree
from sequoia_extras.dynamic_trees.lookup_replay import EncodedRequest
from sequoia_extras.dynamic_trees.text_index import TextIndex
from sequoia_extras.servers.local_server import ask

PROMPTS = {
    "prose": (
        "The lighthouse had been dark for eleven years when the letter came. Marta read it twice, then",
        "Bread is older than writing. Long before anyone kept accounts of grain, people in the hills",
        "The city council voted on Tuesday to close the old bridge to cars. Supporters of the plan say that",
        "My first winter in the north taught me three things about snow. The first is that",
    ),
    "chat": (
        "User: How do I keep basil alive on a windowsill?\nAssistant:",
        "User: What is the difference between weather and climate? Please keep it short.\nAssistant:",
        "User: Write a friendly note to a colleague who is leaving after ten years.\nAssistant:",
        "User: I slept badly and have an exam at nine. What should I do this morning?\nAssistant: Don't panic.",
    ),
    "code": (
        'def moving_average(values: list[float], width: int):\n    """Return the mean of each window."""\n',
        "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
        "#include <stdio.h>\n\nint main(void) {\n    int numbers[10];\n    for (int i = 0; i < 10; i++) {\n",
        "CREATE TABLE customers (\n    id INTEGER PRIMARY KEY,\n    name TEXT NOT NULL,\n",
    ),
}
# These prompts are answered before the race.
OTHERS = {
    "prose": "prose.jsonl",
    "chat": "chat.jsonl",
    "code": "not-looping.jsonl",
}
SIZES = (1, 2, 4, 8, 16)  # sizes of timed trees; larger trees were slower here
EVERY = 4  # transformers also decodes every fourth prompt; topics alternate
TRANSFORMERS = "transformers"
# Number of tokens that transformers looks up, as in its documentation, and number that the server drafts.
LOOKED_UP, DRAFTED = 10, 8


class Asked(NamedTuple):
    """The inputs of a race: prompts as token ids, their topics, the answers' length, and answers to other prompts."""

    prompts: Sequence[Sequence[int]]
    kinds: Sequence[str]
    tokens: int
    sampling: SamplingConfig
    known: Sequence[EncodedRequest]

    @property
    def context(self) -> int:
        """Mean number of tokens before a step; steps are timed at this context."""
        return round(sum(map(len, self.prompts)) / len(self.prompts) + self.tokens / 2)


@cache
def in_transformers(folder: str, vocab_size: int) -> ModelPair:
    """Return a pair in which both models are the folder's, run by transformers alone."""
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16) for _ in range(2)]
    own = [HuggingFaceModel(m, folder, vocab_size=vocab_size, backend=TransformersBackend(m)) for m in models]
    return ModelPair(*own, tokenizer=None)  # type: ignore[arg-type]  # no text is encoded here


def on_every_fourth(method: race.Method) -> race.Method:
    return lambda prompt, length, turn, report: None if turn % EVERY else method(prompt, length, turn, report)


def compared(plain: np.ndarray, own: np.ndarray, kinds: Sequence[str]) -> dict:
    """Compare a method with plain decoding, given seconds per token on the same prompts, float64 [m], by topic."""
    ratios, of_kind = plain / own, np.array(kinds)
    again = np.random.default_rng(0).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    return {
        "tokens_per_sec": float(len(own) / own.sum()),
        "median_over_plain": estimate(float(np.median(ratios)), np.median(ratios[again], axis=1)).to_json(),
        "over_plain": ratio_estimate(plain, own, few=True).to_json(),
        "median_by_kind": {kind: float(np.median(ratios[of_kind == kind])) for kind in dict.fromkeys(kinds)},
        "sec_per_token": own.tolist(),
    }


def beside(prediction: Prediction, result: race.MethodResult, plain: race.MethodResult) -> dict:
    """Return the prediction, whether its interval contains the measurement, and the parts that differ."""
    draft, verify, walk, commit = (result.phase_sec[phase] / sum(result.steps) for phase in race.PHASES)
    per_step = sum(result.tokens) / sum(result.steps)
    measured = Measured(per_step, StepTime(verify, draft, walk + commit), plain.sec_per_token)
    return {
        "predicted": prediction.speedup.to_json(),
        "inside": prediction.holds(plain.sec_per_token / result.sec_per_token),
        "predicted_tokens_per_step": prediction.tokens_per_step.to_json(),
        "predicted_step_ms": 1e3 * prediction.step.total_sec,
        "step_ms": 1e3 * measured.step.total_sec,
        "reasons": [asdict(reason) for reason in reasons(prediction, measured)],
    }


def run_race(
    methods: Mapping[str, race.Method], asked: Asked, predictions: Mapping[str, Prediction], target: LanguageModel
) -> dict[str, dict]:
    """Race methods, of which the first is plain decoding, and return a row for each."""
    results, lanes = {name: race.MethodResult() for name in methods}, {}
    for name, method in methods.items():
        foreign = name.startswith(TRANSFORMERS)
        lanes[name] = on_every_fourth(race.disable_on_failure(method, results[name])) if foreign else method
    for name, one in race.take_turns(lanes, asked.prompts, asked.tokens):
        results[name].add(one)
    rows, plain = {}, results["plain"]
    for name, result in results.items():
        if result.left_out:
            rows[name] = {"left_out": result.left_out}
            continue
        few, clock = slice(None), plain.step_sec
        if name.startswith(TRANSFORMERS):
            few, clock = slice(None, None, EVERY), plain.seconds
        before, own = np.array(clock) / plain.tokens, np.array(result.step_sec or result.seconds) / result.tokens
        rows[name] = row = compared(before[few], own, asked.kinds[few])
        row["tokens_per_step"] = sum(result.tokens) / sum(result.steps)
        if name in predictions:
            row |= beside(predictions[name], result, plain)
        if asked.sampling.greedy:
            texts = zip(asked.prompts[few], plain.outputs[few], result.outputs, strict=True)
            parted = [first_difference(*each, target) for each in texts]
            row["same_text"] = parted.count(None)
            row["texts_differ"] = [asdict(one) | {"near_tie": one.near_tie} for one in parted if one is not None]
    return rows


def folder_section(pair: ModelPair, asked: Asked, args: argparse.Namespace) -> dict:
    sampling, target, draft = asked.sampling, pair.target, pair.draft
    vector = measure_acceptance(
        [each.prompt_ids for each in asked.known], pair, sampling=sampling,
        max_new_tokens=asked.tokens,
    )  # fmt: skip
    profile = measure_profile(pair, sizes=SIZES, context=asked.context, repeats=args.repeats)
    planned = plan_tree(vector, profile)
    costs = {
        "calibration": vector.calibration, "profile": profile, "holds_for": vector.holds_for, "planned": planned,
    }  # fmt: skip
    trees = {
        "best chain": best_chain(vector, profile), "planned tree": planned,
        "adaptive": AdaptiveTree(**costs), "hybrid": HybridTree(index=TextIndex(), **costs),
        "lookup": LookupTree(TextIndex(), profile=profile),
    }  # fmt: skip
    many = len(asked.prompts)
    fixed = {name: tree if isinstance(tree, TokenTree) else tree.fixed for name, tree in trees.items()}
    predictions = {
        name: predict(fixed[name], vector, profile, prompts=many) if fixed[name] is not None
        else tree.predict(vector, profile, prompts=many) if name == "adaptive"
        else predict_on_texts(
            tree, asked.known, profile, draft=draft, temperature=sampling.temperature, prompts=many
        )
        for name, tree in trees.items()
    }  # fmt: skip
    # These methods run the target without a draft.
    alone = {"plain": ROOT_ONLY, "lookup": trees["lookup"]}
    methods = {
        name: race.tree_method(replace(pair, draft=None) if name in alone else pair, tree, sampling)
        for name, tree in (alone | trees).items()
    }
    beside_it = in_transformers(args.folder, target.vocab_size)
    lanes = {"generate": {}, "assisted": {"assisted": True}, "prompt lookup": {"prompt_lookup": LOOKED_UP}}
    for lane, options in lanes.items():
        methods[f"{TRANSFORMERS} {lane}"] = race.transformers_method(beside_it, sampling, **options)
    return {
        "rows": run_race(methods, asked, predictions, target),
        "acceptance": vector.probs.tolist(),
        "profile": profile.to_json(),
        "shapes": {name: [tree.size, tree.depth] for name, tree in fixed.items() if tree is not None},
        "recipes": {name: trees[name].recipe for name in ("adaptive", "hybrid")},
    }


def write_texts(method: race.Method, prompts: Sequence[Sequence[int]], tokens: int) -> dict:
    return {"texts": [method(ids, tokens, turn, lambda share: None).output for turn, ids in enumerate(prompts)]}


def server_method(address: str, sampling: SamplingConfig) -> race.Method:
    """Return a method in which llama.cpp's server generates as many tokens, drawn from the target's distribution."""
    law = {"temperature": sampling.temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True}
    # The prompt is not cached, since passes after a cached prompt round differently.
    law |= {"return_tokens": True, "cache_prompt": False}

    def run(prompt: Sequence[int], length: int, turn: int, report) -> race.Decoded:
        body = json.dumps({"prompt": list(prompt), "n_predict": length, "seed": turn, **law}).encode()
        answer = json.loads(ask(address, "/completion", body, seconds=REQUEST_SEC))
        ids, timings = answer["tokens"], answer["timings"]
        # The server's time starts at the first token.
        seconds = 1e-3 * timings["predicted_ms"] * len(ids) / (len(ids) - 1)
        return race.Decoded(ids, len(ids) - timings.get("draft_n_accepted", 0), seconds)

    return run


def file_section(pair: ModelPair, asked: Asked, args: argparse.Namespace) -> dict:
    file, sampling, threads = pair.target, asked.sampling, torch.get_num_threads()
    profile = measure_profile(replace(pair, draft=file), sizes=SIZES, context=asked.context, repeats=args.repeats)
    trees = {"plain": ROOT_ONLY, "lookup": LookupTree(TextIndex(), profile=profile)}
    predicted = predict_on_texts(
        trees["lookup"], asked.known, profile, temperature=sampling.temperature, prompts=len(asked.prompts)
    )
    methods = {name: race.tree_method(pair, tree, sampling) for name, tree in trees.items()}
    program = (
        f"{sys.executable} {ROOT / 'scripts' / 'llama_server.py'} --parallel 1 --threads {threads} --threads-batch "
        f"{threads} --ctx-size {max(map(len, asked.prompts)) + 2 * asked.tokens}"
    )
    with ExitStack() as running:
        for name, k in (("llama.cpp server", 0), ("llama.cpp server, n-grams", DRAFTED)):
            command = server_command(LLAMA_CPP, program, args.file, None, k, method="ngram")
            methods[name] = server_method(running.enter_context(running_server(command)), sampling)
        return {"rows": run_race(methods, asked, {"lookup": predicted}, file), "profile": profile.to_json()}


def show(name: str, found: dict) -> None:
    print(f"\n{name}: {found['seconds']:.0f} s")
    if "rows" in found:
        columns = ("÷ plain, median", "of all prompts", "predicted")
        print(f"{'':<27}{'tokens/s':>9}" + "".join(f"{each:>19}" for each in columns) + "           per step same text")
    for method, row in found.get("rows", {}).items():
        if "left_out" in row:
            print(f"{method:<27} left out: {row['left_out']}")
            continue
        line = f"{method:<27}{row['tokens_per_sec']:>9.1f}"
        for key in ("median_over_plain", "over_plain", "predicted"):
            one = row.get(key, {"value": None})
            bounds = f" [{one['low']:.2f}, {one['high']:.2f}]" if one.get("low") is not None else ""
            line += f"{'' if one['value'] is None else format(one['value'], '.2f') + bounds:>19}"
        inside = {None: "", True: "inside", False: "outside"}[row.get("inside")]
        steps, same, texts = (row.get(key, "") for key in ("tokens_per_step", "same_text", "sec_per_token"))
        print(f"{line} {inside:>8}{steps and f'{steps:.2f}':>10} " + ("" if same == "" else f"{same} of {len(texts)}"))
    sys.stdout.flush()


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--folder", default=str(gemma.folder()))
    parser.add_argument("--file", default=str(gemma.file()))
    parser.add_argument("--prompts", type=int, default=12, help="number of prompts, at most 12")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.6, 1.0])
    parser.add_argument("--repeats", type=int, default=4, help="number of profile rounds")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / f"real-{date.today()}.json")
    with tempfile.TemporaryDirectory() as scratch:
        folder, file, out = str(DEMO_PAIR / "target"), f"{scratch}/target.gguf", Path(scratch, "real.json")
        args = parser.read(folder=folder, file=file, out=out, prompts=2, tokens=6, temperatures=[0.0], repeats=1)
        require("xllamacpp")
        if args.quick:
            require("gguf")
            as_gguf(args.folder, Path(scratch), "q8_0")
        compare_all(args)


def compare_all(args: argparse.Namespace) -> None:
    """Run the sections at every temperature and write the record."""
    settings = {
        **{name: getattr(args, name) for name in ("folder", "file", "prompts", "tokens", "repeats")},
        "processor": processor_name(), "threads": torch.get_num_threads(), "instructions": instructions_in_use(),
        "versions": {name: version(name) for name in ("torch", "transformers", "xllamacpp")},
    }  # fmt: skip
    pair = load_pair(args.folder, args.file)
    file = ModelPair(pair.draft, None, pair.tokenizer)
    files = [load_prompts(ROOT / "assets" / "prompts" / name) for name in OTHERS.values()]
    known, raced = (
        [pair.tokenizer.encode(text) for of_each_kind in zip(*texts, strict=False) for text in of_each_kind]
        for texts in (files, PROMPTS.values())
    )
    known, raced = known[: max(2, args.prompts // 2)], raced[: args.prompts]
    kinds = (list(PROMPTS) * len(raced))[: len(raced)]
    state = args.out.with_suffix(".jsonl.part")
    sections: dict[str, dict] = {}

    def section(name: str, make: Callable[..., dict], *given) -> dict:
        """Return a section's results from the file of finished sections, or run the section."""
        lines = state.read_text().splitlines() if state.exists() else []
        done = (one["found"] for one in map(json.loads, lines) if (one["section"], one["settings"]) == (name, settings))
        started = time.perf_counter()
        sections[name] = found = next(done, None) or make(*given)
        if "seconds" not in found:
            found["seconds"] = time.perf_counter() - started
            lines.append(json.dumps({"section": name, "settings": settings, "found": found}))
            write_atomic(state, "".join(f"{line}\n" for line in lines).encode())
        show(name, found)
        return found

    for temperature in args.temperatures:
        sampling, at = SamplingConfig(temperature), f"T = {temperature:g}"
        write = race.tree_method(file, ROOT_ONLY, sampling)
        texts = section(f"texts, {at}", write_texts, write, known, args.tokens)["texts"]
        requests = [EncodedRequest(*each) for each in zip(known, texts, strict=True)]
        asked = Asked(raced, kinds, args.tokens, sampling, requests)
        section(f"folder, {at}", folder_section, pair, asked, args)
        section(f"file, {at}", file_section, file, asked, args)
    told = {
        f"{name}, {method}": row for name, found in sections.items() for method, row in found.get("rows", {}).items()
        if row.get("inside") is not None
    }  # fmt: skip
    outside = {
        name: ", ".join(f"{reason['part']} ×{reason['effect']:.2f}" for reason in row["reasons"])
        for name, row in told.items() if not row["inside"]
    }  # fmt: skip
    print(f"\n{len(told) - len(outside)} of {len(told)} prediction intervals contain the measurement")
    print("".join(f"outside: {name}: {parts}\n" for name, parts in outside.items()), end="")
    result = {"benchmark": "real", "date": str(date.today()), **settings}
    result |= {"predictions": len(told), "outside": outside, "sections": sections}
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
