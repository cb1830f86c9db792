"""Write the fitted vectors and modelled profiles that the scenarios in `assets/scenarios/*.json` combine.

    python scripts/make_scenarios.py

This takes seconds and needs no models. `roofline` models the times from the peak rates in `assets/devices.json` and a
few published or recorded times, listed below. A fitted vector is the power law that yields two published values of
tokens per step. `make_demo_assets.py` creates the measured profiles and vectors.
"""

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from sequoia_core.acceptance.conditions import Conditions
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.acceptance.what_if import power_law
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.trees.optimal import expected_tokens, optimal_tree
from sequoia_core.trees.plain import independent_chains
from sequoia_extras.hardware_models.model_shapes import ModelShape, find_shape
from sequoia_extras.hardware_models.roofline import (
    PASS_SIZES,
    TUNED,
    Device,
    Software,
    find_device,
    modelled_profile,
    pass_sec,
)

ROOT = Path(__file__).resolve().parent.parent

SCENARIOS = ROOT / "assets" / "scenarios"
RECORD = ROOT / "benchmarks" / "results" / "passes-avx512-2026-11-21.json"
GPU_RECORD = RECORD.with_name("gpu-h200-2026-11-26.json")
PAPER_TARGET_SEC = {"llama-2-7b": 24.2e-3, "llama-2-13b": 31.2e-3, "vicuna-33b": 53.2e-3}  # A100, paper's blog post
PAPER_DRAFT_SEC = 0.5e-3  # JackFram-68M on an A100, Sequoia paper
FOUR_BITS = 0.26  # size relative to 16 bits
FOUR_BITS_SOURCE = "GPTQ, with a scale of 16 bits and a zero of 4 for each 128 weights: 4.16 bits a weight"
PCI_EXPRESS_3 = 15.75e9  # 8 GT/s x 16 lanes x 128/130
LARGE = (*PASS_SIZES, 1536, 2048)  # pass sizes for streamed weights, which make large trees worthwhile


def reaching(software: Software, shape: ModelShape, device: Device, seconds: float, *, dtype: str) -> Software:
    """Return the software with `layer_sec` fitted so that a one-token pass takes a known time."""
    bare = pass_sec(shape, 1, device, dtype=dtype, software=software.model_copy(update={"layer_sec": 0.0}))
    more = {
        "name": f"{software.name}, slowed", "layer_sec": (seconds - float(bare)) / shape.num_hidden_layers,
        "source": f"{software.source}; layer_sec: what brings {shape.name} on {device.title} to {seconds:g} s for one "
        "token",
    }  # fmt: skip
    return Software(**software.model_dump() | more)


def fit_software(
    shape: ModelShape, device: Device, seconds: Mapping[int, float], *, dtype: str, source: str = ""
) -> Software:
    """Fit a software model, with the overlap of `TUNED`, to two measured pass times.

    Args:
        seconds: number of tokens -> pass time in seconds, for one token and for a compute-bound pass.
    """
    at_once = 1e30
    reading = pass_sec(
        shape, list(seconds), device.model_copy(update={"operations_per_sec": {dtype: at_once}}), dtype=dtype
    )
    computing = pass_sec(shape, list(seconds), device.model_copy(update={"bytes_per_sec": at_once}), dtype=dtype)
    # With h = `hiding`, the h-th power of the time is linear in the h-th powers of both slowdown factors.
    powers = np.linalg.solve(
        np.stack([reading, computing], 1) ** TUNED.hiding, np.array([*seconds.values()]) ** TUNED.hiding
    )
    traffic, arithmetic = (powers ** (-1 / TUNED.hiding)).tolist()
    return Software(
        name="fitted", traffic=traffic, arithmetic=arithmetic, hiding=TUNED.hiding, layer_sec=0.0, source=source
    )


class Row(NamedTuple):
    """A row of the Sequoia paper's tables at temperature 0: tokens per step of a tree and of SpecInfer's chains.

    Attributes:
        tree: (nodes, depth in edges, tokens per step).
        chains: (number of chains, length of each, tokens per step).
    """

    pair: str
    target: str
    draft: str
    data: str
    tree: tuple[int, int, float]
    chains: tuple[int, int, float]


ROWS = {  # from arXiv 2402.12374v3, tables 2 and 3, whose depths include the root
    "acceptance/llama2-7b-68m-c4.json": Row(
        "Llama-2-7B ← JackFram-68M", "llama-2-7b", "jackfram-68m", "C4", (128, 9, 5.08), (5, 8, 3.96)
    ),
    "acceptance/llama2-13b-68m-c4.json": Row(
        "Llama-2-13B ← JackFram-68M", "llama-2-13b", "jackfram-68m", "C4", (64, 8, 4.20), (5, 8, 3.64)
    ),
    "acceptance/vicuna-33b-1.3b-c4.json": Row(
        "Vicuna-33B ← Sheared-LLaMA-1.3B", "vicuna-33b", "sheared-llama-1.3b", "C4", (64, 5, 4.28), (5, 8, 3.86)
    ),
    "acceptance/llama2-70b-7b-mt-bench.json": Row(
        "Llama-2-70B-chat ← 7B-chat", "llama-2-70b", "llama-2-7b", "MT-Bench", (768, 17, 10.30), (16, 48, 7.63)
    ),
}


def fitted_vector(row: Row) -> AcceptanceVector:
    """Fit the power law for which the best tree and independent chains yield a row's tokens per step."""
    (size, depth, tokens), (count, length, chain_tokens) = row.tree, row.chains
    chains = independent_chains(count, length)

    def missed(law: np.ndarray) -> list[float]:
        vector = power_law(*law.tolist())
        best = optimal_tree(vector, size=size, depth=depth)
        return [expected_tokens(best, vector) - tokens, expected_tokens(chains, vector) - chain_tokens]

    found = least_squares(missed, (0.7, 0.5), bounds=((0.05, 0.05), (0.99, 3.0)), xtol=1e-15, ftol=1e-15, gtol=1e-15)
    assert max(abs(found.fun)) < 1e-6, f"{row.pair}: no power law yields both values"
    p1, b = found.x.tolist()
    source = (
        f"fitted, not measured: a power law whose best tree of {size} nodes and {depth + 1} levels yields {tokens:.2f} "
        f"tokens per step and whose {count} chains of {length} yield {chain_tokens:.2f}, as the Sequoia paper (Chen et "
        "al., NeurIPS 2024, arXiv 2402.12374) reports; it publishes no vector for this pair"
    )
    return AcceptanceVector(
        power_law(p1, b).probs, meta={"source": source, "pair": row.pair, "data": row.data, "p1": p1, "b": b},
        holds_for=Conditions(find_shape(row.target).model, find_shape(row.draft).model, 0.0, declared=True),
    )  # fmt: skip


def a100_profile(target_name: str, draft_name: str) -> HardwareProfile:
    """Return the profile of one of the paper's pairs on an A100, with software fitted to the paper's one-token times.

    The draft software is fitted to the 68M draft; its time per layer is used for other drafts too.
    """
    device, target, first = find_device("a100-80g"), find_shape(target_name), find_shape("jackfram-68m")
    return modelled_profile(
        target, find_shape(draft_name), device, dtype="float16",
        software=reaching(TUNED, target, device, PAPER_TARGET_SEC[target_name], dtype="float16"),
        draft_software=reaching(TUNED, first, device, PAPER_DRAFT_SEC, dtype="float16"),
    )  # fmt: skip


def l40_profile(target: str, draft: str) -> HardwareProfile:
    """Return the profile of a pair on an L40, with the target streamed from host memory."""
    return modelled_profile(
        find_shape(target), find_shape(draft), find_device("l40"), dtype="float16", offload="host", sizes=LARGE
    )


def four_bit_profile(device: Device) -> HardwareProfile:
    """Return the profile of a streamed 4-bit Llama-2-70B and a 7B draft in eager mode on a consumer GPU."""
    target, draft, dtype = find_shape("llama-2-70b"), find_shape("llama-2-7b"), "float16"
    stored = {"name": "tuned, 4 bits", "stored": FOUR_BITS, "source": f"{TUNED.source}; 4 bits: {FOUR_BITS_SOURCE}"}
    eager = reaching(TUNED, draft, find_device("a100-80g"), PAPER_TARGET_SEC["llama-2-7b"], dtype=dtype)
    return modelled_profile(
        target, draft, device, dtype=dtype, offload="host", sizes=LARGE,
        software=TUNED.model_copy(update=stored), draft_software=eager,
    )  # fmt: skip


def plain_processor_profile() -> HardwareProfile:
    """Return the demo pair's profile on a processor with AVX-512 but no AMX, fitted to passes over 1 and 64 tokens."""
    record = json.loads(RECORD.read_text())
    row, target, draft = record["avx512"], find_shape("demo-target"), find_shape("demo-draft")
    device = Device(
        name="avx512", title=record["device"] + ", AVX-512", bytes_per_sec=1e9 * row["gb_per_sec"], memory_bytes=8e9,
        operations_per_sec={"bfloat16": 1e9 * row["gflop_per_sec"]},
    )  # fmt: skip
    seconds = {n: row["ms"][str(n)] / 1e3 for n in (1, 64)}
    software = fit_software(
        target, device, seconds, dtype="bfloat16", source=f"passes over 1 and 64 tokens of {RECORD.name}"
    )
    return modelled_profile(target, draft, device, dtype="bfloat16", software=software)


def measured_profile(target: str, draft: str, pair: str, record: Path = GPU_RECORD) -> HardwareProfile:
    """Return the profile of a pair of shapes with random weights that a record of `make gpu` contains."""
    rows = json.loads(record.read_text())["sections"]["shapes"]["rows"]
    more = next(row["more"] for row in rows if row["what"] == f"{pair}: one token")
    profile = HardwareProfile.loads(json.dumps(more["profile"]).encode(), record.name)
    names = {"target": find_shape(target).model, "draft": find_shape(draft).model}
    return replace(profile, meta=profile.meta | names | {"record": record.name})


MADE = {
    **{name: partial(fitted_vector, row) for name, row in ROWS.items()},
    "profiles/llama2-7b-68m-a100.json": partial(a100_profile, "llama-2-7b", "jackfram-68m"),
    "profiles/llama2-13b-68m-a100.json": partial(a100_profile, "llama-2-13b", "jackfram-68m"),
    "profiles/vicuna-33b-1.3b-a100.json": partial(a100_profile, "vicuna-33b", "sheared-llama-1.3b"),
    "profiles/llama3-70b-8b-l40-host.json": partial(l40_profile, "llama-3-70b", "llama-3-8b"),
    "profiles/llama2-70b-7b-l40-host.json": partial(l40_profile, "llama-2-70b", "llama-2-7b"),
    "profiles/llama2-70b-4bit-rtx-4090.json": partial(four_bit_profile, find_device("rtx-4090")),
    "profiles/llama2-70b-4bit-rtx-3090.json": partial(
        four_bit_profile, find_device("rtx-3090").model_copy(update={"host_bytes_per_sec": PCI_EXPRESS_3})
    ),
    "profiles/demo-avx512.json": plain_processor_profile,
    "profiles/llama2-7b-68m-h200.json": partial(
        measured_profile, "llama-2-7b", "jackfram-68m", "Llama-2-7B <- Llama-68M"
    ),
    "profiles/llama2-13b-68m-h200.json": partial(
        measured_profile, "llama-2-13b", "jackfram-68m", "Llama-2-13B <- Llama-68M"
    ),
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name, make in MADE.items():
        make().save(SCENARIOS / name)
        print(name)


if __name__ == "__main__":
    main()
