"""The timed sections of `gpu.py`; each returns rows with a measurement and its goal."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np
import torch
from gpu_layers import graph_pass
from gpu_machine import VOCAB, Machine, Row
from gpu_replay import WARM_UP, replayed

from scripts.make_random_model import write_random_model
from sequoia_core import autoregressive, load_pair
from sequoia_core.acceptance.what_if import power_law
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import ROOT_ONLY
from sequoia_core.measuring.measure_profile import measure_profile
from sequoia_core.models.language_model import HuggingFaceModel, ModelPair
from sequoia_core.models.protocol import causal_mask, prefill
from sequoia_core.models.transformers_passes import TransformersBackend
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.planning.step_time import autoregressive_sec, step_time
from sequoia_core.trees.optimal import expected_tokens, optimal_tree
from sequoia_extras.cuda_graphs import drafting, judging, phases
from sequoia_extras.cuda_graphs.phases import Phase, visible_slots

PAIRS = (("Llama-2-7B", "Llama-68M"), ("Llama-2-13B", "Llama-68M"), ("Llama-2-7B", "Llama-160M"))
PLAIN_TOKENS, STEPS = 64, 128
# With this many texts, and steps in each, tokens per step vary by 1.5 % between runs.
REPLAYS, REPLAY_STEPS = 32, 40
STREAMED = (1, 128, 256, 512, 768)  # numbers of tokens in streamed passes
STREAMED_STEPS = 6
# An assumption that gives 5.4 tokens per step with 128 nodes and 10 levels.
ACCEPTANCE = power_law(0.7, 1.0, ranks=32)


def copies(machine: Machine) -> list[Row]:
    """Measure the rates of memory copies, of transfers from the host, and of matrix products."""
    memory, host, operations = machine.peaks
    return [
        Row("memory bandwidth, copying", memory / 1e9, "GB/s"),
        Row("host to device", host / 1e9, "GB/s"),
        Row("bfloat16 matrix products", operations / 1e12, "TFLOP/s"),
    ]


def plain(machine: Machine) -> list[Row]:
    """Time a token without speculation, by our engine and by `generate`, eager and compiled."""
    model, count = machine.model("Llama-2-7B"), 8 if machine.rehearse else PLAIN_TOKENS
    prompt = machine.prompt(machine.context)
    steps = [s.seconds for s in autoregressive(prompt, ModelPair(model, None, None), max_new_tokens=count)]
    own = float(np.median(steps[count // 4 :]))
    ids = torch.tensor([prompt], device=machine.device)

    def generate(tokens: int, **options) -> None:
        mask = torch.ones_like(ids)
        model.model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=tokens, pad_token_id=0, **options,
        )  # fmt: skip

    theirs = {}
    compiled = {"cache_implementation": "static", "compile_config": compile_config(machine)}
    for name, options in {"generate, eager": {}, "generate, compiled": compiled}.items():
        first, all_of_them = (machine.seconds(partial(generate, n, **options), 2) for n in (1, count))
        # The difference excludes the prompt.
        theirs[name] = (all_of_them - first) / (count - 1)
    torch._dynamo.reset()
    share = machine.weight_bytes("Llama-2-7B") / machine.peaks.memory / own
    return [
        Row("one token, 7B shape", 1e3 * own, "ms"),
        Row("share of it needed to read the weights", share, "", "at least 0.8", share >= 0.8),
        *(Row(name, 1e3 * sec, "ms per token", "slower than ours", sec > own) for name, sec in theirs.items()),
    ]


def compile_config(machine: Machine):
    """Return the compile settings for `generate`: its defaults on a GPU; in a rehearsal, only tracing."""
    from transformers import CompileConfig

    if not machine.rehearse:
        return CompileConfig()
    found = CompileConfig(backend="eager", mode=None)
    found._compile_all_devices = True
    return found


def fused(machine: Machine) -> list[Row]:
    """Time a pass of the 7B shape in a graph, with our fused operations and with transformers' modules."""
    model, rows = machine.model("Llama-2-7B"), []
    plain = HuggingFaceModel(model.model, "7B", backend=TransformersBackend(model.model))
    for count in (1, machine.size):
        taken = {}
        for name, own in ((model.backend, model), ("transformers", plain)):
            taken[name] = machine.seconds(graph_pass(machine, own, count, machine.context + 2 * machine.size), 20)
            rows.append(Row(f"pass over {count} tokens, {name}", 1e3 * taken[name], "ms"))
        ratio = taken["transformers"] / taken[model.backend]
        rows.append(Row("time of transformers over ours", ratio, "x", "above 1", ratio > 1.0))
    return rows


def outside(machine: Machine) -> list[Row]:
    """Measure the share of a 128-node step outside the passes, which are timed separately on the same buffers."""
    target, draft = (machine.model(name, seed) for seed, name in enumerate(PAIRS[0]))
    tree, rows = optimal_tree(power_law(0.6, 1.0, ranks=8), size=machine.size), []
    for temperature in (0.0, 0.6):
        sampling = SamplingConfig(temperature)
        steps = replayed(machine, target, draft, tree, ACCEPTANCE, steps=4 if machine.rehearse else STEPS,
                         sampling=sampling)  # fmt: skip
        visible = [visible_slots(machine.context + tree.size, one.session.cache.capacity) for one in steps.passes]
        passes = [
            machine.seconds(partial(Phase(one.logits, machine.device), slots))
            for one, slots in zip(steps.passes, visible, strict=True)
        ]
        median = float(np.median(steps.each))
        share = 1.0 - sum(passes) / median
        name = f"outside the passes, n = {tree.size}, T = {temperature}"
        rows.append(Row(name, share, "of a step", "at most 0.05", share <= 0.05, {"step": median, "passes": passes}))
    return rows


def compiled(machine: Machine) -> list[Row]:
    """Compare steps with static shapes in graphs with plain steps whose passes are compiled by `torch.compile`."""
    target, draft = (machine.model(name, seed) for seed, name in enumerate(PAIRS[0]))
    tree = optimal_tree(ACCEPTANCE, size=machine.size, depth=4)
    count, taken = 2 if machine.rehearse else STEPS // 2, {}
    plain = [HuggingFaceModel(one.model, one.name, backend=TransformersBackend(one.model)) for one in (target, draft)]
    for name, models, static, own in (
        ("in graphs", (target, draft), True, False), ("in graphs, by transformers", plain, True, False),
        ("one by one", plain, False, False), ("compiled", plain, False, True),
    ):  # fmt: skip
        for module in (drafting, judging):
            module.is_static = phases.is_static if static else lambda session: False
        try:
            steps = replayed(machine, *models, tree, ACCEPTANCE, steps=count, compiled=own)
        finally:
            for module in (drafting, judging):
                module.is_static = phases.is_static
        taken[name] = float(np.median(steps.each))
    rows = [Row(f"step of {tree.size} nodes, {name}", 1e3 * sec, "ms") for name, sec in taken.items()]
    faster = taken["compiled"] / taken["in graphs"]
    return [*rows, Row("time compiled over in graphs", faster, "x", "at least 1.2", faster >= 1.2)]


def measured_profile(machine: Machine, pair: tuple[str, str]) -> HardwareProfile:
    """Profile a pair of known shapes, once per run."""
    if pair in machine.profiles:
        return machine.profiles[pair]
    target, draft = (machine.model(name, seed) for seed, name in enumerate(pair))
    sizes = [1, machine.size] if machine.rehearse else [1, 2, 4, 8, 16, 32, 64, 128, 256]
    both = ModelPair(target, draft, None)
    profile = measure_profile(both, sizes=sizes, context=machine.context, repeats=machine.repeats)
    machine.profiles[pair] = profile
    return profile


def shapes(machine: Machine) -> list[Row]:
    """Profile pairs of known shapes, and compare t(n) and c with values modelled from bytes and operations."""
    rows = []
    for pair in PAIRS[:1] if machine.rehearse else PAIRS:
        profile, name = measured_profile(machine, pair), " <- ".join(pair)
        sizes, one = profile.sizes.tolist(), float(profile.verify_sec[0])
        bound = partial(machine.peaks.pass_sec, machine.shape(pair[0]), context=machine.context)
        modelled = [bound(n) / bound(1) for n in sizes]
        measured = (profile.verify_sec / one).tolist()
        small = machine.peaks.pass_sec(machine.shape(pair[1]), context=machine.context) / bound(1)
        rows += [
            Row(f"{name}: one token", 1e3 * one, "ms", f"modelled {1e3 * bound(1):.3g}",
                more={"profile": profile.to_json()}),
            Row(f"{name}: c", profile.draft_sec / one, "of a token's pass", f"modelled {small:.3g}"),
            Row(
                f"{name}: t({sizes[-1]})", measured[-1], "of a token's pass", f"modelled {modelled[-1]:.3g}",
                more={"sizes": sizes, "measured": measured, "modelled": modelled},
            ),
        ]  # fmt: skip
    return rows


def replay(machine: Machine) -> list[Row]:
    """Run ReplayGraph for 7B <- 68M, and compare its speedup with the prediction and with the paper's."""
    profile = measured_profile(machine, PAIRS[0])
    target, draft = (machine.model(name, seed) for seed, name in enumerate(PAIRS[0]))
    tree = optimal_tree(ACCEPTANCE, size=machine.size, depth=4 if machine.rehearse else 10)
    texts, count = (2, 2) if machine.rehearse else (REPLAYS, REPLAY_STEPS)
    ran, alone = (
        replayed(machine, target, own, shape, ACCEPTANCE, steps=count, texts=texts)
        for own, shape in ((draft, tree), (None, ROOT_ONLY))
    )
    speedup, expected = ran.speed / alone.speed, expected_tokens(tree, ACCEPTANCE)
    one = autoregressive_sec(profile, context=alone.context, greedy=False)
    predicted = expected * one / step_time(tree, profile, context=ran.context, greedy=False).total_sec
    off = predicted / speedup - 1.0
    return [
        Row("replay: expected tokens per step", expected, "", "at least 5", expected >= 5.0),
        Row("replay: drawn tokens per step", ran.tokens / len(ran.each), ""),
        Row("replay: speedup over our baseline", speedup, "x", "above 4.04", speedup > 4.04),
        Row("first text's warm-up, with graph capture", sum(ran.first[:WARM_UP]), "s", more={"each": ran.first}),
        Row("a later text's warm-up", sum(ran.first[WARM_UP:]) / (texts - 1), "s"),
        Row("replay: predicted / measured - 1", off, "", "within 0.1", abs(off) <= 0.1, {"predicted": predicted}),
    ]


def streaming(machine: Machine) -> list[Row]:
    """Stream a 13B shape from host memory (from disk in a rehearsal): passes of several sizes, and a replay."""
    tier, dtype = ("disk", "float32") if machine.rehearse else ("host", "bfloat16")
    nodes = (1, 8) if machine.rehearse else STREAMED
    with tempfile.TemporaryDirectory() if machine.models is None else nullcontext(machine.models) as folder:
        if not Path(folder, "model", "config.json").exists():
            write_random_model(streamed_sizes(machine), f"{folder}/model", dtype=dtype)
        target = load_pair(f"{folder}/model", "none", device=str(machine.device), dtype=dtype, offload=tier).target
        try:
            taken, rate = streamed_passes(machine, target, nodes)
            draft = machine.model("Llama-68M", vocab=VOCAB)
            tree = optimal_tree(ACCEPTANCE, size=nodes[-1], depth=4 if machine.rehearse else 18)
            ran, alone = (
                replayed(machine, target, own, shape, ACCEPTANCE, steps=STREAMED_STEPS)
                for own, shape in ((draft, tree), (None, ROOT_ONLY))
            )
        finally:
            target.close()
        share, faster = rate / machine.peaks.host, ran.speed / alone.speed
        times = {"seconds": {str(n): taken[n] for n in nodes}}
        rows = [
            Row("13B shape streamed: one token", taken[1], "s"),
            Row("its read rate / bandwidth", share, "", "at least 0.85", share >= 0.85),
            Row(f"t({nodes[-1]}), streamed", taken[nodes[-1]] / taken[1], "of a token's pass", more=times),
            Row(f"replay, streamed, n = {tree.size}: speedup", faster, "x", "above 1", faster > 1.0),
        ]
        return rows + accelerated(machine, f"{folder}/model", ran.speed)


def streamed_sizes(machine: Machine) -> dict:
    shape = machine.shape("Llama-2-13B")
    return {
        "model_type": "llama", "hidden_size": shape.hidden, "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.heads,
        "head_dim": shape.hidden // shape.heads, "vocab_size": VOCAB, "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }  # fmt: skip


def streamed_passes(machine: Machine, target, nodes: Sequence[int]) -> tuple[dict[int, float], float]:
    """Return the seconds of a pass by number of tokens, and the read rate of a pass over one token."""
    session = target.open(machine.context + max(nodes))
    prefill(session, machine.prompt(machine.context))

    def read(count: int) -> None:
        positions = torch.full((count,), machine.context)
        session.forward(torch.zeros(count, dtype=torch.int64), positions, causal_mask(count), keep=count)
        session.commit(machine.context, [])

    taken = {count: machine.seconds(partial(read, count), 2) for count in nodes}
    layers = machine.shape("Llama-2-13B").layers * machine.shape("Llama-2-13B").layer
    return taken, layers * target.dtype.itemsize / taken[1]


def accelerated(machine: Machine, folder: str, speed: float) -> list[Row]:
    """Time the decoding of one token with accelerate's offloading to host memory."""
    if importlib.util.find_spec("accelerate") is None:
        return [Row("accelerate, one token", float("nan"), "", "not installed")]
    from accelerate import cpu_offload
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32 if machine.rehearse else torch.bfloat16)
    cpu_offload(model.eval(), execution_device=machine.device)
    ids = torch.tensor([machine.prompt(machine.context)], device=machine.device)
    with torch.inference_mode():
        cache = model(ids, use_cache=True).past_key_values

        def token() -> None:
            model(ids[:, :1], past_key_values=cache, use_cache=True)

        seconds = machine.seconds(token, 1)
    return [
        Row("accelerate's cpu_offload: one token", seconds, "s"),
        Row("speed of the replay over accelerate", speed * seconds, "x", "above 1", speed * seconds > 1.0),
    ]
