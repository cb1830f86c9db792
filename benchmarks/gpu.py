"""What a rented GPU is to show, in one command: the tests that need one, then every figure beside its goal.

    make gpu                                               # a table, and one JSON file that grows by sections
    python benchmarks/gpu.py --rehearse                    # all of it on the CPU: sizes and figures mean nothing
    python benchmarks/gpu.py --sections copies,exactness   # some of it

A section that FILE (`--out`) already has for this device is not run again; one that fails is written down with its
error, the others go on, and the exit code is 1. Needs PyTorch, transformers, NumPy and SciPy: no network, no pydantic.
Speed depends on shapes, so large models have random weights. What such models accept means nothing: a replay runs the
real steps and draws which children are accepted from a given acceptance vector.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sequoia_core  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np
import torch
from gpu_machine import SHAPES, Machine

from sequoia_core import AcceptanceVector, SamplingConfig, autoregressive, check_losslessness, decode, load_pair
from sequoia_core.decoding.assemble import assemble
from sequoia_core.decoding.loop import End, take_step
from sequoia_core.decoding.tree_policy import ROOT_ONLY, policy_of
from sequoia_core.decoding.verifiers import VERIFIERS, choose_verifier
from sequoia_core.decoding.walk import Walk
from sequoia_core.design.optimal_trees import expected_tokens, optimal_tree
from sequoia_core.design.prediction import predicted_speedup
from sequoia_core.design.what_if import power_law
from sequoia_core.models.prefill import prefill
from sequoia_core.models.protocol import causal_mask
from sequoia_core.models.random_models import write_random_model
from sequoia_core.studies.measure_profile import measure_profile

ROOT = Path(__file__).resolve().parent.parent
PAIRS = (("Llama-2-7B", "Llama-68M"), ("Llama-2-13B", "Llama-68M"), ("Llama-2-7B", "Llama-160M"))
Row = dict[str, Any]


def row(what: str, value: float, unit: str, goal: str = "", met: bool | None = None, **more: Any) -> Row:
    return {"what": what, "value": value, "unit": unit, "goal": goal, "met": met, **more}


def run_tests(machine: Machine) -> list[Row]:
    """Run the tests marked gpu; in a rehearsal only see that there are some."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "tests/core/test_other_device.py"]
    done = subprocess.run(
        command + ["--collect-only"] * machine.rehearse, cwd=ROOT, capture_output=True, text=True, check=False
    )
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-300:]]
    return [row("tests marked gpu", done.returncode, "exit code", "0", done.returncode == 0, said=last[0])]


def time_copies(machine: Machine) -> list[Row]:
    """Time how fast memory is read and written, and how fast weights come from the host."""
    count = 2**16 if machine.rehearse else 2**30
    here = torch.ones(count, dtype=torch.uint8, device=machine.device)
    there = torch.empty_like(here)
    host = torch.ones(count, dtype=torch.uint8, pin_memory=not machine.rehearse)
    return [
        row("memory bandwidth", 2 * count / machine.seconds(lambda: there.copy_(here)) / 1e9, "GB/s"),
        row("host to device", count / machine.seconds(lambda: there.copy_(host, non_blocking=True)) / 1e9, "GB/s"),
    ]


def time_plain_decoding(machine: Machine) -> list[Row]:
    """Time tokens without speculation, ours and those of `generate`, against the reading of all weights."""
    bandwidth = time_copies(machine)[0]["value"] * 1e9
    model, count = machine.model("Llama-2-7B"), 8 if machine.rehearse else 64
    prompt = machine.prompt(machine.context)
    steps = [s.seconds for s in autoregressive(prompt, target=model, max_new_tokens=count)]
    own = float(np.median(steps[count // 4 :]))
    ids = torch.tensor([prompt], device=machine.device)
    options = {"do_sample": False, "max_new_tokens": count, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    with torch.inference_mode():
        theirs = machine.seconds(lambda: model.model.generate(ids, **options), 2) / count
    read = sum(weights.nbytes for weights in model.model.model.layers.parameters()) + model.model.lm_head.weight.nbytes
    share = read / bandwidth / own
    return [
        row("one token, 7B shape", 1e3 * own, "ms"),
        row("its share of weight bytes / bandwidth", share, "", "at least 0.8", share >= 0.8),
        row("one token by generate", 1e3 * theirs, "ms", "slower than ours", theirs > own),
    ]


def time_steps(machine: Machine) -> list[Row]:
    """Time what is outside the models' passes in a step over 128 nodes."""
    target, draft = (machine.model(name, seed) for seed, name in enumerate(PAIRS[0]))
    tree, rows = optimal_tree(power_law(0.6, 1.0, ranks=8), size=machine.size), []
    for temperature in (0.0, 0.6):
        steps = decode(
            machine.prompt(machine.context), target=target, draft=draft, tree=tree, explain=False,
            sampling=SamplingConfig(temperature), max_new_tokens=32 if machine.rehearse else 128,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        later = list(steps)
        later = later[len(later) // 4 :]
        outside = sum(s.walk_sec + s.commit_sec for s in later) / sum(s.seconds for s in later)
        name = f"walk and commit, n = {tree.size}, T = {temperature}"
        rows.append(row(name, outside, "of a step", "at most 0.05", outside <= 0.05))
    return rows


def profile_of(machine: Machine, pair: Sequence[str]):
    target, draft = (machine.model(name, seed) for seed, name in enumerate(pair))
    sizes = [1, 4, machine.size] if machine.rehearse else [1, 2, 4, 8, 16, 32, 64, 128, 256]
    profile = measure_profile(target=target, draft=draft, sizes=sizes, context=machine.context, repeats=machine.repeats)
    return target, draft, profile


def time_shapes(machine: Machine) -> list[Row]:
    """Profile pairs of known shapes: t(n) and c."""
    rows = []
    for pair in PAIRS[:1] if machine.rehearse else PAIRS:
        profile, name = profile_of(machine, pair)[2], " <- ".join(pair)
        ratio = (profile.verify_sec / profile.verify_sec[0]).tolist()
        rows.append(row(f"{name}: one token", 1e3 * float(profile.verify_sec[0]), "ms"))
        rows.append(row(f"{name}: c", profile.draft_sec / float(profile.verify_sec[0]), "of a token's pass"))
        rows.append(
            row(f"{name}: t(n)", ratio[-1], f"at n = {profile.sizes[-1]}", sizes=profile.sizes.tolist(), t=ratio)
        )
    return rows


class Replayed:
    """A judge whose work is done, but whose accepted path is drawn from an acceptance vector."""

    def __init__(self, judge, acceptance: AcceptanceVector, seed: int) -> None:
        self.judge, self.cumulative = judge, np.cumsum(acceptance.probs)
        self.generator = np.random.default_rng(seed)

    def __getattr__(self, name: str):
        return getattr(self.judge, name)

    def walk(self, draft) -> Walk:
        found, path, node = self.judge.walk(draft), [0], 0
        while children := draft.tree.children(node):
            rank = int(np.searchsorted(self.cumulative, self.generator.random(), side="right"))
            if rank >= len(children):
                break
            node = children[rank]
            path.append(node)
        return Walk(tuple(path), found.bonus_token, ())

    def commit(self, draft, path) -> None:
        self.judge.session.commit(draft.root_position, path)


def replay(machine: Machine) -> list[Row]:
    """Replay 7B <- 68M: real steps, acceptance drawn from a vector; the prediction, and the paper's speedup."""
    target, draft, profile = profile_of(machine, PAIRS[0])
    acceptance = power_law(0.7, 1.0, ranks=32)
    tree = optimal_tree(acceptance, size=machine.size, depth=4 if machine.rehearse else 10)
    seconds, tokens = _replayed(machine, target, draft, tree, acceptance)
    plain, count = _replayed(machine, target, None, ROOT_ONLY, acceptance)
    speedup = (tokens / seconds) / (count / plain)
    predicted = predicted_speedup(tree, acceptance, profile)
    off, expected = predicted / speedup - 1.0, expected_tokens(tree, acceptance)
    return [
        row("replay: tokens per step", expected, "expected", "at least 5", expected >= 5.0),
        row("replay: speedup over our own baseline", speedup, "x", "above 4.04", speedup > 4.04),
        row("replay: predicted", predicted, "x", "within 10 %", abs(off) <= 0.1, off=off),
    ]


def _replayed(machine: Machine, target, draft, tree, acceptance) -> tuple[float, int]:
    """Return the seconds of steps after the first few, and the tokens that they would have committed."""
    steps, policy = (6 if machine.rehearse else 60), policy_of(tree)
    sequence = machine.prompt(machine.context)
    length = len(sequence) + (steps + 1) * (tree.depth + 1)
    drafter, judge, sessions = assemble(
        target, draft, policy, verifier=choose_verifier("sequoia", greedy=False), sampling=SamplingConfig(0.6),
        capacity=length, context=2048, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    for session in sessions:
        prefill(session, sequence[:-1])
    judge, taken = Replayed(judge, acceptance, 0), []
    end = End(eos_ids=frozenset(), length=length + 1, reason="length")
    for _ in range(steps):
        taken.append(take_step(drafter, judge, sequence, end, sessions=sessions, cancel=threading.Event()))
    later = taken[steps // 4 :]
    return sum(step.seconds for step in later), sum(len(step.new_tokens) for step in later)


def stream_layers(machine: Machine) -> list[Row]:
    """Stream a 13B shape from the host's memory (in a rehearsal from disk): one token, and trees, in one reading."""
    hidden, inner, layers, heads = (64, 96, 2, 4) if machine.rehearse else SHAPES["Llama-2-13B"]
    sizes = {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": hidden // heads, "vocab_size": 32_000,
        "max_position_embeddings": 4096, "tie_word_embeddings": False,
    }  # fmt: skip
    tier, dtype = ("disk", "float32") if machine.rehearse else ("host", "bfloat16")
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(sizes, f"{folder}/model", dtype=dtype)
        target = load_pair(f"{folder}/model", "none", device=str(machine.device), dtype=dtype, offload=tier).target
        nodes = (1, 8) if machine.rehearse else (1, 128, 256, 512, 768)
        session, taken = target.open(machine.context + max(nodes)), {}
        prefill(session, machine.prompt(machine.context))
        before = target.bytes_read

        def read(count: int) -> None:
            positions = torch.full((count,), machine.context)
            session.forward(torch.zeros(count, dtype=torch.int64), positions, causal_mask(count), keep=count)
            session.commit(machine.context, [])

        for count in nodes:
            taken[count] = machine.seconds(partial(read, count), 2)
        rate = (target.bytes_read - before) / (3 * len(nodes)) / taken[1] / 1e9
        target.close()
    bandwidth = time_copies(machine)[1]["value"]
    ratio = taken[nodes[-1]] / taken[1]
    return [
        row("13B shape streamed: one token", taken[1], "s"),
        row("its reading / bandwidth", rate / bandwidth, "", "at least 0.85", rate >= 0.85 * bandwidth),
        row(f"t({nodes[-1]}), streamed", ratio, "of a token's pass", times={str(n): taken[n] for n in nodes}),
    ]


def prove_exactness(machine: Machine) -> list[Row]:
    """Test the law of what is written on the device, and greedy text against `generate` in float32."""
    rows, (target, draft) = [], (machine.model("Llama-68M", seed, torch.float32) for seed in (0, 1))
    tree = optimal_tree(power_law(0.6, 1.0, ranks=4), size=8)
    for temperature in (0.6, 1.0):
        for verifier in VERIFIERS:
            report = check_losslessness(
                machine.prompt(3), target=target, draft=draft, tree=tree, verifier=verifier, new_tokens=1,
                sampling=SamplingConfig(temperature, top_k=16), samples=20 if machine.rehearse else 500,
                generator=torch.Generator().manual_seed(0),
            )  # fmt: skip
            rows.append(row(f"law, {verifier}, T = {temperature}", report.p_value, "p", "not refuted", report.passed))
    prompt, count = machine.prompt(16), 32
    ids = torch.tensor([prompt], device=machine.device)
    wanted = target.model.generate(
        ids, do_sample=False, max_new_tokens=count, pad_token_id=0, attention_mask=torch.ones_like(ids)
    )[0, 16:].tolist()
    found = [
        t for s in decode(prompt, target=target, draft=draft, tree=tree, max_new_tokens=count) for t in s.new_tokens
    ]
    same = sum(a == b for a, b in zip(found, wanted, strict=True)) / count
    return [*rows, row("greedy text as generate writes it", same, "of tokens", "all", same == 1.0)]


def race_the_demo(machine: Machine) -> list[Row]:
    """Decode with the shipped pair, with a tree and without."""
    pair = load_pair(device=str(machine.device), dtype="float32" if machine.rehearse else None)
    prompt = pair.tokenizer.encode("def fibonacci(n):\n")
    tree, count = optimal_tree(power_law(0.7, 1.5, ranks=8), size=16), 16 if machine.rehearse else 128
    seconds = {}
    for name, own in (("one by one", ROOT_ONLY), ("a tree of 16", tree)):
        steps = list(
            decode(prompt, target=pair.target, draft=pair.draft, tree=own, max_new_tokens=count, explain=False)
        )
        seconds[name] = sum(s.seconds for s in steps[2:]) / max(1, sum(len(s.new_tokens) for s in steps[2:]))
    return [row(f"demo pair, {name}", 1e3 * sec, "ms a token") for name, sec in seconds.items()]


SECTIONS: dict[str, Callable[[Machine], list[Row]]] = {
    "tests": run_tests,
    "copies": time_copies,
    "exactness": prove_exactness,
    "demo": race_the_demo,
    "plain": time_plain_decoding,
    "steps": time_steps,
    "replay": replay,
    "shapes": time_shapes,
    "streaming": stream_layers,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    args = parser.parse_args()
    machine = Machine(args.rehearse)
    found = json.loads(args.out.read_text()) if args.out.exists() else {}
    if {key: found.get(key) for key in machine.facts()} != machine.facts():
        found = machine.facts() | {"sections": {}}
    for name in args.sections.split(","):
        if name in found["sections"] and "error" not in found["sections"][name]:
            continue
        began = time.perf_counter()
        try:
            found["sections"][name] = {"rows": SECTIONS[name](machine)}
        except Exception as error:  # an hour on a rented machine goes on with what else works
            found["sections"][name] = {"error": f"{type(error).__name__}: {error}"}
        found["sections"][name]["seconds"] = time.perf_counter() - began
        args.out.write_text(json.dumps(found, indent=1))
        _print(name, found["sections"][name])
        if machine.device.type == "cuda":
            torch.cuda.empty_cache()
    print(json.dumps(found))
    return int(any("error" in section for section in found["sections"].values()))


def _print(name: str, section: Row) -> None:
    print(f"{name}: {section['seconds']:.1f} s", section.get("error", ""))
    for entry in section.get("rows", ()):
        verdict = {True: "met", False: "NOT MET", None: ""}[entry["met"]]
        print(f"  {entry['what']:48} {entry['value']:10.4g} {entry['unit']:18} {entry['goal']:16} {verdict}")


if __name__ == "__main__":
    sys.exit(main())
