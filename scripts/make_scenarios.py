"""Write the scenarios: modelled profiles, a fitted acceptance vector, and the files that name them.

    python scripts/make_scenarios.py

Takes seconds and no model: `design.roofline` makes the times, from peaks of `assets/devices.json` and the few published
or recorded times named below. Measured profiles and vectors are only pointed to; `make_demo_assets.py` measures them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from scipy.optimize import brentq

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.conditions import Conditions
from sequoia_core.design.devices import Device, find_device
from sequoia_core.design.model_shapes import find_shape
from sequoia_core.design.optimal_trees import expected_tokens, optimal_tree
from sequoia_core.design.plain_trees import independent_chains
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.roofline import TUNED, fit_software, modelled_profile, reaching
from sequoia_core.design.what_if import power_law
from sequoia_core.files.safe_files import json_bytes, write_atomic

ROOT = Path(__file__).resolve().parent.parent

SCENARIOS = ROOT / "assets" / "scenarios"
RECORD = ROOT / "benchmarks" / "results" / "passes-avx512-2026-11-21.json"
PAPER = "Sequoia paper (Chen et al., NeurIPS 2024, arXiv 2402.12374)"
PAPER_TREE, PAPER_TREE_TOKENS = {"size": 128, "depth": 9}, 5.08  # its "(128, 10)" on C4 at temperature 0
PAPER_CHAINS, PAPER_CHAINS_TOKENS = (5, 8), 3.96  # SpecInfer's 5 x 8 beside it
PAPER_TARGET_SEC, PAPER_DRAFT_SEC = 24.2e-3, 0.5e-3


def fitted_vector() -> AcceptanceVector:
    """Return the power law under which the paper's tree and SpecInfer's chains yield the paper's tokens per step."""

    def chains_off(p1: float) -> float:
        return expected_tokens(independent_chains(*PAPER_CHAINS), _law_through_tree(p1)) - PAPER_CHAINS_TOKENS

    vector = _law_through_tree(brentq(chains_off, 0.6, 0.75))
    meta = {
        "source": f"fitted, not measured: a power law whose best tree of 128 nodes and 9 levels yields 5.08 tokens per "
        f"step and whose 5 chains of 8 yield 3.96, as the {PAPER} reports; it publishes no vector for this pair",
        "pair": "Llama-2-7B <- JackFram-68M", "data": "C4", "p1": vector.meta["p1"], "b": vector.meta["b"],
    }  # fmt: skip
    conditions = Conditions("meta-llama/Llama-2-7b-hf", "JackFram/llama-68m", temperature=0.0, declared=True)
    return AcceptanceVector(vector.probs, meta=meta, holds_for=conditions)


def _law_through_tree(p1: float) -> AcceptanceVector:
    def tree_off(b: float) -> float:
        vector = power_law(p1, b)
        return expected_tokens(optimal_tree(vector, **PAPER_TREE), vector) - PAPER_TREE_TOKENS

    return power_law(p1, brentq(tree_off, 0.05, 5.0))


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
        "avx512", record["device"] + ", AVX-512", bytes_per_sec=1e9 * row["gb_per_sec"], memory_bytes=8e9,
        operations_per_sec={"bfloat16": 1e9 * row["gflop_per_sec"]},
    )  # fmt: skip
    seconds = {n: row["ms"][str(n)] / 1e3 for n in (1, 64)}
    software = fit_software(
        target, device, seconds, dtype="bfloat16", source=f"passes over 1 and 64 tokens of {RECORD.name}"
    )
    return modelled_profile(target, draft, device, dtype="bfloat16", software=software)


TABLE = (
    {
        "name": "demo-pair", "title": "The demo pair as measured for the app", "vector": "measured",
        "acceptance": "acceptance/demo-t0.json", "times": "measured", "profile": "profiles/cpu-2core-bfloat16.json",
        "sentence": "The pair that ships with the app, with passes measured on the processor that its profile names: a "
        "small target, quickly computed, so small trees pay most.",
    },
    {
        "name": "demo-pair-disk", "title": "The demo pair with its target on disk", "vector": "measured",
        "acceptance": "acceptance/demo-large-t0.json", "times": "measured",
        "profile": "scenarios/profiles/demo-pair-large-disk.json",
        "sentence": "The same target with its larger draft, but every pass reads the target's layers from disk, as for "
        "a target larger than memory. A pass then takes as long for dozens of tokens as for one, drafting hides behind "
        "reading, and larger trees pay.",
    },
    {
        "name": "llama2-7b-a100", "title": "Llama-2-7B with a 68M draft on an A100", "vector": "fitted",
        "acceptance": "scenarios/acceptance/llama2-7b-68m-c4.json", "times": "modelled", "make": a100_profile,
        "profile": "scenarios/profiles/llama2-7b-68m-a100.json",
        "sentence": "The first row of the Sequoia paper, which publishes no acceptance vector for it: this one is "
        "fitted to the tokens per step reported at temperature 0. Times are modelled; those of one token are reported.",
    },
    {
        "name": "llama3-70b-l40-offloaded", "title": "Llama-3-70B with an 8B draft on one L40, offloaded",
        "vector": "published", "acceptance": "acceptance/llama3-70b-8b-cnn.json", "times": "modelled",
        "make": l40_profile, "profile": "scenarios/profiles/llama3-70b-8b-l40-host.json",
        "sentence": "A target three times too large for the card: every pass streams its weights over PCI Express, so "
        "hundreds of drafted tokens are verified for the price of one. The vector is published, times are modelled.",
    },
    {
        "name": "no-matrix-unit", "title": "The demo pair on a processor without a matrix unit", "vector": "measured",
        "acceptance": "acceptance/demo-t0.json", "times": "modelled", "make": plain_processor_profile,
        "profile": "scenarios/profiles/demo-avx512.json",
        "sentence": "A processor like that of many laptops (AVX-512, no matrix unit): little arithmetic lies idle, so "
        "little can be won. Acceptance is measured; times are modelled from two measured passes.",
    },
)  # fmt: skip


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for folder in ("acceptance", "profiles"):
        (SCENARIOS / folder).mkdir(parents=True, exist_ok=True)
    fitted_vector().save(SCENARIOS / "acceptance" / "llama2-7b-68m-c4.json")
    for order, row in enumerate(TABLE, 1):
        if "make" in row:
            row["make"]().save(ROOT / "assets" / row["profile"])
        fields = {key: row[key] for key in ("title", "sentence", "acceptance", "profile", "vector", "times")}
        head = {"format": "sequoia-scenario", "version": 1, "order": order}
        write_atomic(SCENARIOS / f"{row['name']}.json", json_bytes(head | fields))
        print(row["name"])


if __name__ == "__main__":
    main()
