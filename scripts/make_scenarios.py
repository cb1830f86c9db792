"""Write the modelled profiles of scenarios. `assets/scenarios/*.json` say which vector belongs to each, and what both
show.

    python scripts/make_scenarios.py

Takes seconds and no model: `design.roofline` makes the times, from peaks of `assets/devices.json` and the few published
or recorded times named below. `make_demo_assets.py` measures the profiles and vectors that are measured; the fitted
vector is the power law whose numbers it holds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sequoia_core.design.model_shapes import ModelShape, find_shape
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.roofline import TUNED, Device, Software, find_device, modelled_profile, pass_sec

ROOT = Path(__file__).resolve().parent.parent

SCENARIOS = ROOT / "assets" / "scenarios"
RECORD = ROOT / "benchmarks" / "results" / "passes-avx512-2026-11-21.json"
PAPER_TARGET_SEC, PAPER_DRAFT_SEC = 24.2e-3, 0.5e-3  # Sequoia paper, Llama-2-7B <- JackFram-68M on an A100


def reaching(software: Software, shape: ModelShape, device: Device, seconds: float, *, dtype: str) -> Software:
    """Return the software with the `layer_sec` that brings a pass over one token to a known time."""
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
    """Return the software, hiding as `TUNED`, whose passes over two numbers of tokens take what was measured.

    Args:
        seconds: tokens -> seconds of a pass, for one token and for a number that is bound by arithmetic.
    """
    at_once = 1e30
    reading = pass_sec(
        shape, list(seconds), device.model_copy(update={"operations_per_sec": {dtype: at_once}}), dtype=dtype
    )
    computing = pass_sec(shape, list(seconds), device.model_copy(update={"bytes_per_sec": at_once}), dtype=dtype)
    # the h-th powers of what slows both enter linearly
    powers = np.linalg.solve(
        np.stack([reading, computing], 1) ** TUNED.hiding, np.array([*seconds.values()]) ** TUNED.hiding
    )
    traffic, arithmetic = (powers ** (-1 / TUNED.hiding)).tolist()
    return Software(
        name="fitted", traffic=traffic, arithmetic=arithmetic, hiding=TUNED.hiding, layer_sec=0.0, source=source
    )


def a100_profile() -> HardwareProfile:
    """Return Llama-2-7B <- 68M on an A100 through the paper's software: both one-token times are the paper's."""
    device, target, draft = find_device("a100-80g"), find_shape("llama-2-7b"), find_shape("jackfram-68m")
    return modelled_profile(
        target, draft, device, dtype="float16",
        software=reaching(TUNED, target, device, PAPER_TARGET_SEC, dtype="float16"),
        draft_software=reaching(TUNED, draft, device, PAPER_DRAFT_SEC, dtype="float16"),
    )  # fmt: skip


def l40_profile() -> HardwareProfile:
    """Return Llama-3-70B <- 8B on an L40, the target streamed from host memory."""
    target, draft = find_shape("llama-3-70b"), find_shape("llama-3-8b")
    return modelled_profile(target, draft, find_device("l40"), dtype="float16", offload="host")


def plain_processor_profile() -> HardwareProfile:
    """Return the demo pair on the recorded processor with AVX-512 and no matrix unit, from passes over 1 and 64."""
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


MADE = {
    "profiles/llama2-7b-68m-a100.json": a100_profile,
    "profiles/llama3-70b-8b-l40-host.json": l40_profile,
    "profiles/demo-avx512.json": plain_processor_profile,
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for name, make in MADE.items():
        make().save(SCENARIOS / name)
        print(name)


if __name__ == "__main__":
    main()
