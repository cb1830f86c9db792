"""Hand-made rows of a sweep with known acceptance or known steps."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from sequoia_core import HardwareProfile
from sequoia_extras.sweeps.results import schema
from tests.conftest import calibration_of

WIDTH = 4


def row(kind: str, prompt: str, *, pair: str = "small", temperature: float = 0.0, domain: str = "code", **more: Any):
    """Return a row with every column; the draft has the name of its pair."""
    alone = kind == "lookup"
    common = {
        "kind": kind,
        "pair": pair,
        "target": "big",
        "draft": "none" if alone else pair,
        "target_hash": "t",
        "draft_hash": "" if alone else pair,
        "dtype": "float32",
        "offload": "",
        "device": "",
        "dtype_used": "float32",
        "temperature": temperature,
        "top_p": 1.0,
        "domain": domain,
        "prompt": prompt,
        "prompt_hash": prompt,
        "seed": 0,
        "new_tokens": 32,
        "width": WIDTH,
        "max_size": 8,
        "threads": 1,
        "version": 1,
    }
    key = "-".join(map(str, (kind, pair, temperature, domain, prompt, *more.values())))
    return dict.fromkeys(schema().names) | common | {"key": key} | more


def measured(prompt: str, ranks: Sequence[int], **common: Any) -> dict[str, Any]:
    """Return a row with these accepted ranks, 0 for none."""
    counts = np.bincount(ranks, minlength=WIDTH + 1)[1:].astype(float)
    calibration = calibration_of(0.6, temperature=common.get("temperature", 0.0), prompts=1)
    found = {"positions": len(ranks), "sums": counts.tolist(), "ranks": list(ranks)}
    return row("model", prompt, **common) | found | {"calibration": json.dumps(calibration.to_json())}


def decoded(prompt: str, tokens: Sequence[int], *, nodes: int = 4, both: bool = False, **common: Any) -> dict[str, Any]:
    """Return a row of a decode whose steps committed these numbers of tokens, with trees of `nodes` nodes."""
    widths = [[1, 1] if both else [] for _ in tokens]
    found = {"tokens": sum(tokens), "steps": len(tokens), "nodes": [nodes] * len(tokens), "draft_widths": widths}
    return row("both" if both else "lookup", prompt, **common) | found


def table(*rows: dict[str, Any]) -> pd.DataFrame:
    """Return rows as `read_rows` does."""
    return pd.DataFrame(list(rows)).sort_values("key", ignore_index=True)


def profile(draft: str = "small", *, draft_sec: float = 0.0005, target: str = "big", **more: Any):
    """Return a profile in which larger passes cost little, with two slightly different rounds."""
    sizes = np.array([1, 2, 4, 8, 16])
    seconds = 0.01 * (1 + 0.02 * sizes)
    samples = tuple((float(s), float(s * 1.02)) for s in seconds)
    return HardwareProfile(
        sizes,
        seconds,
        draft_sec,
        device="a machine",
        dtype="float32",
        verify_samples=samples,
        meta={"target": target, "draft": draft},
        **more,
    )
