"""Sections of `gpu.py` on single passes: the time of their kernels by kind, and layers compiled by Inductor."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import torch
from gpu_machine import Machine, Row
from torch.profiler import ProfilerActivity

from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.llama_torch import CAPACITY_STEP, TorchLlama, run_layer
from sequoia_core.models.protocol import causal_mask, prefill
from sequoia_extras.cuda_graphs.compiled_layer import CompiledLayer
from sequoia_extras.cuda_graphs.phases import Phase, StaticPass, visible_slots

CAPACITIES = (384, 2048, 8192)
PROFILED, LISTED = 5, 12  # passes per profile, and names with the longest times in the record
# Patterns of operator and kernel names, in order. Attention kernels are often named after matrix products as well.
# Compiled kernels that prepare attention are named after it.
KINDS = {
    "attention": r"^(?!triton_|cpp_).*(attention|attn|fmha|flash|softmax)",
    "matrix products": r"gemm|gemv|nvjet|cutlass|cublas|splitk|(^|_|::)(add|b|m)?mm(_|$)",
}


def graph_pass(machine: Machine, model: HuggingFaceModel, count: int, capacity: int) -> Callable[[], torch.Tensor]:
    """Return a pass of fixed shape over the last `count` tokens of a text, in a cache with this capacity."""
    session = model.open(capacity)
    prefill(session, machine.prompt(machine.context))
    first = torch.full((1,), machine.context, device=machine.device)
    one = StaticPass(session, causal_mask(count), torch.arange(count), first=first)
    return partial(Phase(one.logits, machine.device), visible_slots(machine.context + count, session.cache.capacity))


def profile(machine: Machine) -> list[Row]:
    """Split the time of passes of the 7B shape into matrix products, attention and the rest, by cache capacity."""
    model, rows = machine.model("Llama-2-7B"), []
    for capacity in CAPACITIES:
        for count in (1, machine.size):
            work = graph_pass(machine, model, count, capacity)
            name = f"{count} tokens, {capacity} slots"
            seconds = machine.seconds(work)
            times = profiled(machine, work)
            kinds = Counter({kind: 0.0 for kind in (*KINDS, "rest")})
            for kernel, sec in times.items():
                kinds[kind_of(kernel)] += sec
            longest = {kernel: 1e3 * sec for kernel, sec in times.most_common(LISTED)}
            rows.append(Row(name, 1e3 * seconds, "ms", more={"longest": longest}))
            rows += [Row(f"{name}: {kind}", 1e3 * sec, "ms") for kind, sec in kinds.items()]
    return rows


def kind_of(name: str) -> str:
    """Return the kind of an operator or a kernel."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE)), "rest")


def profiled(machine: Machine, work: Callable[[], object]) -> Counter[str]:
    """Return the seconds of each kernel in one call of warm work; without a GPU, of each operator."""
    on_gpu = machine.device.type == "cuda"
    activities = [ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(PROFILED):
            work()
        machine.wait()
    times: Counter[str] = Counter()
    for event in found.key_averages():
        if on_gpu and event.device_type == torch.autograd.DeviceType.CPU:
            continue
        microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        times[event.key] += 1e-6 * microseconds / PROFILED
    return times


def inductor(machine: Machine) -> list[Row]:
    """Compare passes of the 7B shape with eager and compiled layers, in graphs, with the time to read the weights."""
    model, rows = machine.model("Llama-2-7B"), []
    passes = model._backend
    assert isinstance(passes, TorchLlama)
    weights = machine.weight_bytes("Llama-2-7B")
    floors = {"the measured bandwidth": weights / machine.peaks.memory}
    if (stated := machine.stated) is not None:
        floors["the data sheet's"] = weights / stated.memory
    for count in (1, machine.size):
        taken = {}
        for name, run in (("eager", run_layer), ("compiled", CompiledLayer(run_layer))):
            passes.run_static_layer = run
            work = graph_pass(machine, model, count, CAPACITY_STEP)
            began = time.perf_counter()
            work()
            machine.wait()
            first = time.perf_counter() - began
            taken[name] = machine.seconds(work, 20)
            if getattr(run, "failed", False):
                raise RuntimeError("the layers could not be compiled; a notice says why")
            if name == "compiled":
                rows.append(Row(f"first pass over {count} tokens, with compilation", first, "s"))
            rows.append(Row(f"pass over {count} tokens, {name}", 1e3 * taken[name], "ms"))
            rows += [Row(f"  over reading at {rate}", taken[name] / sec, "x") for rate, sec in floors.items()]
        rows.append(Row(f"{count} tokens: eager over compiled", taken["eager"] / taken["compiled"], "x"))
    return rows
