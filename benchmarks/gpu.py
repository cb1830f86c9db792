"""Run everything that needs a GPU in one command: the tests, then every measurement with its goal.

    make gpu                                               # prints a table; adds each section to one JSON file
    python benchmarks/gpu.py --rehearse                    # everything without a GPU; the figures are meaningless
    python benchmarks/gpu.py --quick                       # a rehearsal without tests, which writes no file
    python benchmarks/gpu.py --sections copies,exactness   # only these sections

A section that FILE (`--out`) already contains for this device is not run again. If a section fails, its error is
recorded and the others still run. The exit code is 1 if a section, a test or a check of exactness fails; missed speed
goals are only printed. Large models have random weights, since times depend only on shapes.

Requires PyTorch and transformers, but no network. Other requirements can be copied as wheels:

    pip download --no-deps --only-binary=:all: --python-version 3.12 --implementation cp -d wheels \\
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 \\
        scipy pytest pytest-timeout pluggy iniconfig packaging pygments psutil accelerate \\
        pydantic pydantic-core annotated-types typing-inspection  # use the pydantic-core version that pydantic requires
    python3 -m pip install --no-index --no-deps --target site wheels/*.whl  # on the GPU machine
    PYTHONPATH=.:site python3 benchmarks/gpu.py
"""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import gpu_layers
import gpu_speed
import torch
from gpu_machine import EAGER_LAYER_SEC, SHAPES, Machine, Peaks, Row, Shape
from gpu_replay import WARM_UP

from benchmarks.common import ROOT, Options
from sequoia_core import SamplingConfig, decode, load_pair
from sequoia_core.acceptance.what_if import power_law
from sequoia_core.decoding.record import TOKENS_ONLY
from sequoia_core.decoding.tree_policy import ROOT_ONLY
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.measuring.measure_profile import measure_profile
from sequoia_core.models.language_model import ModelPair
from sequoia_core.trees.optimal import optimal_tree
from sequoia_extras.evaluation.losslessness import check_losslessness

LAW_SAMPLES, DEMO_TOKENS = 500, 128
BUDGET_SEC = 20 * 60  # limit on the estimates of all sections
TESTS = (
    "tests/extras/cuda_graphs/test_other_device.py", "tests/extras/cuda_graphs/test_gpu_path.py",
    "tests/extras/offloading/test_offloading.py",
)  # fmt: skip


def tests(machine: Machine) -> list[Row]:
    """Run the tests marked gpu; in a rehearsal, run them on a pretend device."""
    marked = (
        ["-k", "pretend or test_weights_stored_twice or test_needs_are_predicted or test_parallel_walk"]
        if machine.rehearse
        else ["-m", "gpu"]
    )
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *marked, *TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    passed = sum(int(count) for count in re.findall(r"(\d+) passed", done.stdout))
    return [Row("tests passed, none failed", passed, "tests", "above 0", passed > 0)]


def exactness(machine: Machine) -> list[Row]:
    """Check the distribution of text generated on the device, and compare greedy text with `generate` in float32."""
    rows, pair = [], ModelPair(*(machine.model("Llama-68M", seed, torch.float32) for seed in (0, 1)), tokenizer=None)
    tree = optimal_tree(power_law(0.6, 1.0, ranks=4), size=8)
    for temperature in (0.6, 1.0):
        for verifier in VERIFIERS:
            report = check_losslessness(
                machine.prompt(3), pair, tree=tree, verifier=verifier, new_tokens=1,
                sampling=SamplingConfig(temperature, top_k=16), samples=3 if machine.rehearse else LAW_SAMPLES,
                generator=torch.Generator().manual_seed(0),
            )  # fmt: skip
            rows.append(Row(f"law, {verifier}, T = {temperature}", report.p_value, "p", "not refuted", report.passed))
    prompt, count = machine.prompt(16), 32
    ids = torch.tensor([prompt], device=machine.device)
    wanted = pair.target.model.generate(
        ids, do_sample=False, max_new_tokens=count, pad_token_id=0, attention_mask=torch.ones_like(ids)
    )[0, 16:].tolist()
    found = [t for s in decode(prompt, pair, tree=tree, max_new_tokens=count) for t in s.new_tokens]
    same = sum(a == b for a, b in zip(found, wanted, strict=True)) / count
    drawn = decode(
        prompt, pair, tree=tree, sampling=SamplingConfig(1.0), max_new_tokens=4,
        generator=torch.Generator(machine.device).manual_seed(0),
    )  # fmt: skip
    tokens = sum(len(step.new_tokens) for step in drawn)
    return [
        *rows,
        Row("greedy text equal to that of generate", same, "of tokens", "all", same == 1.0),
        Row("tokens drawn with a generator on the device", tokens, "", "4", tokens == 4),
    ]


def demo(machine: Machine) -> list[Row]:
    """Decode with the shipped pair, with and without a tree."""
    pair = load_pair(device=str(machine.device), dtype="float32" if machine.rehearse else None)
    prompt = pair.tokenizer.encode("def fibonacci(n):\n")
    tree = optimal_tree(power_law(0.7, 1.5, ranks=8), size=16)
    taken = {}
    for name, own in (("one by one", ROOT_ONLY), ("a tree of 16", tree)):
        count = 8 if machine.rehearse else DEMO_TOKENS
        steps = list(decode(prompt, pair, tree=own, max_new_tokens=count, details=TOKENS_ONLY))[2:]
        taken[name] = sum(s.seconds for s in steps) / max(1, sum(len(s.new_tokens) for s in steps))
    sizes = [1, 2] if machine.rehearse else [1, 2, 4, 8, 16, 32, 64]
    profile = measure_profile(pair, sizes=sizes, context=min(128, machine.context), repeats=machine.repeats)
    more = {"profile": profile.to_json()}
    rows = [Row(f"demo pair, {name}", 1e3 * sec, "ms per token", more=more) for name, sec in taken.items()]
    return [*rows, Row("demo pair, speedup", taken["one by one"] / max(1e-9, taken["a tree of 16"]), "x")]


def estimates(peaks: Peaks) -> dict[str, float]:
    """Return conservative estimates of the seconds of each section, at half of a device's peak rates.

    Passes are assumed to be launched from Python, without graphs. Other assumptions: 10 s to start, 4 minutes for tests
    and 2.5 for compilation, a minute to compile a layer, 5 s to create a model or start a profile, 0.25 GB/s to write
    a model and 1 GB/s to read it.
    """

    def passing(shape: Shape, tokens: int = 1) -> float:
        return max(2 * peaks.pass_sec(shape, tokens), shape.layers * EAGER_LAYER_SEC)

    def step(target: Shape, draft: Shape, tokens: int, levels: int) -> float:
        return passing(target, tokens) + levels * passing(draft, 16) + 2e-3

    def profiling(pair: Sequence[str]) -> float:
        target, draft = (SHAPES[name] for name in pair)
        timers, rounds = 18, 5 + 1
        return 10 + timers * 4 * rounds * step(target, draft, 256, 5)

    seven, thirteen, small = (SHAPES[name] for name in ("Llama-2-7B", "Llama-2-13B", "Llama-68M"))
    demo_shape = Shape(384, 1024, 10, 6)
    layers = 2 * thirteen.layers * thirteen.layer / peaks.host * 2
    files = 2 * thirteen.parameters * (1 / 2.5e8 + 2 / 1e9)
    streamed = 4 * len(gpu_speed.STREAMED) + (WARM_UP + gpu_speed.STREAMED_STEPS) * 2 + 2
    return {
        "tests": 240.0,
        "copies": 10.0,
        "exactness": 5 + len(VERIFIERS) * 2 * LAW_SAMPLES * (step(small, small, 8, 3) + 2 * passing(small)),
        "demo": 10 + 2 * DEMO_TOKENS * step(demo_shape, demo_shape, 16, 4),
        "plain": 5 + 150 + (1 + 2 * 4) * gpu_speed.PLAIN_TOKENS * passing(seven),
        "fused": 20.0,
        "compiled": 120.0,
        "profile": 5 + 2 * len(gpu_layers.CAPACITIES) * (5 + (2 + 5 + gpu_layers.PROFILED) * passing(seven, 128)),
        "inductor": 5 + 2 * (60 + 2 * 23 * passing(seven, 128)),
        "outside": 5 + 2 * (gpu_speed.STEPS + WARM_UP) * step(seven, small, 128, 8),
        "replay": profiling(gpu_speed.PAIRS[0])
        + gpu_speed.REPLAYS * (gpu_speed.REPLAY_STEPS + WARM_UP) * (step(seven, small, 128, 10) + passing(seven)),
        "shapes": sum(profiling(pair) for pair in gpu_speed.PAIRS),
        "streaming": files + streamed * max(layers, passing(thirteen, 768)) + 10 * layers,
    }


# Name -> function, and whether it is rehearsed on a pretend device, which cannot compile and has no memory.
WORK: dict[str, tuple[Callable[[Machine], Sequence[Row]], bool]] = {
    "tests": (tests, False),
    "copies": (gpu_speed.copies, False),
    "exactness": (exactness, True),
    "demo": (demo, True),
    "plain": (gpu_speed.plain, False),
    "fused": (gpu_speed.fused, True),
    "compiled": (gpu_speed.compiled, False),
    "profile": (gpu_layers.profile, False),
    "inductor": (gpu_layers.inductor, False),
    "outside": (gpu_speed.outside, True),
    "replay": (gpu_speed.replay, True),
    "shapes": (gpu_speed.shapes, True),
    "streaming": (gpu_speed.streaming, False),
}


def main() -> int:
    parser = Options(__doc__)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--sections", default=",".join(WORK))
    parser.add_argument("--models", type=Path, help="folder in which the streamed model is kept for later runs")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    args = parser.read(rehearse=True, sections=",".join(name for name in WORK if name != "tests"), out=None)
    machine, expected = Machine(args.rehearse, args.models), estimates(Peaks.stated())
    assert sum(expected.values()) <= BUDGET_SEC, "the machine is rented for this long"
    found = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    if {key: found.get(key) for key in machine.facts()} != machine.facts():
        found = machine.facts() | {"sections": {}}
    done = found["sections"]
    names = [name for name in args.sections.split(",") if "rows" not in done.get(name, {})]
    print(f"{', '.join(names)}: at most {sum(expected[n] for n in names) / 60:.0f} minutes on an H100 (estimate)")
    for name in names:
        began = time.perf_counter()
        done[name] = run(name, machine)
        done[name] |= {"seconds": time.perf_counter() - began, "estimated_sec": expected[name]}
        if args.out:
            args.out.write_text(json.dumps(found, indent=1))
    print(json.dumps(found))
    proofs = [entry for name in ("tests", "exactness") for entry in done.get(name, {}).get("rows", ())]
    return int(any("error" in section for section in done.values()) or any(not entry["met"] for entry in proofs))


def run(name: str, machine: Machine) -> dict[str, Any]:
    """Run one section and print it."""
    work, pretends = WORK[name]
    print(f"{name}: {(work.__doc__ or '').splitlines()[0]}")
    try:
        with machine.pretending() if pretends else nullcontext():
            rows = work(machine)
    # The other sections should still use the rented machine.
    except Exception as error:
        print(f"  {type(error).__name__}: {error}")
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        # Models have reference cycles, and the next one needs the memory.
        gc.collect()
        if machine.device.type == "cuda":
            torch.cuda.empty_cache()
    print(*rows, sep="\n", flush=True)
    return {"rows": [row._asdict() for row in rows]}


if __name__ == "__main__":
    sys.exit(main())
