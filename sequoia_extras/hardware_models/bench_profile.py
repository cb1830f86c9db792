"""Build a hardware profile from the JSON or Markdown output of `llama-bench -p 1,2,3,4,5,7,9,16 -n 0`."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from sequoia_core.files.file_types import LLAMA_BENCH, decode_text, describe
from sequoia_core.files.json_models import prefix_errors
from sequoia_core.files.prompt_files import json_values
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.planning.profile_files import MIN_SEC
from sequoia_core.trees.tree import MAX_TREE_SIZE

MAX_BENCH_BYTES = 16 * 2**20
EXPECTED_BENCH = (
    "a profile written by the profile command, or llama-bench output (-o json, jsonl or md) with passes over one and "
    "several tokens: -p 1,2,4,8 -n 0"
)
_PARAMETER_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class TimedPass(NamedTuple):
    """A timed pass of a model, identified by its name and number of parameters."""

    model: str
    parameters: float
    tokens: int
    context: int
    sec: float
    device: str
    is_mean: bool


def profile_from_bench(files: Iterable[tuple[bytes, str]], *, needs_draft: bool = True) -> HardwareProfile:
    """Return a pair's profile; the larger model is the target.

    Args:
        files: (content, name) of each llama-bench output file.
        needs_draft: whether to refuse files without a draft; otherwise, drafting is assumed to take no time.
    """
    passes: list[TimedPass] = []
    for data, name in files:
        with prefix_errors(name):
            passes += _parse_passes(data)
    models = sorted({(each.parameters, each.model) for each in passes}, reverse=True)
    if len(models) > 2 or not models or (len(models) == 1 and needs_draft):
        listed = ", ".join(name[:40] for _, name in models) or "none"
        raise ValueError(f"llama-bench: found models {listed}, expected a target and its draft")
    contexts = sorted({each.context for each in passes})
    if len(contexts) > 1:
        raise ValueError(f"llama-bench: found depths {contexts[:8]}, expected one depth (-d)")
    names = [name for _, name in models]
    sizes, seconds = _shortest_times(passes, names[0])
    widths, draft_sec = _shortest_times(passes, names[1]) if len(names) == 2 else ([1], [MIN_SEC])
    for role, timed in (("target", sizes), ("draft", widths)):
        if timed[:1] != [1]:
            raise ValueError(
                f"llama-bench: found passes of the {role} over {timed[:8]} tokens, expected passes over 1 token as well"
            )
    means = ", means" if any(each.is_mean for each in passes) else ""
    return HardwareProfile(
        np.array(sizes),
        np.array(seconds),
        draft_sec[0],
        device=passes[0].device,
        dtype=names[0],
        context=contexts[0],
        draft_widths=np.array(widths),
        draft_width_sec=np.array(draft_sec),
        meta={"source": f"llama-bench{means}", "target": names[0], "draft": names[1] if len(names) > 1 else None},
    )


def _shortest_times(passes: Sequence[TimedPass], model: str) -> tuple[list[int], list[float]]:
    """Return a model's pass sizes in ascending order, and the shortest time of each."""
    best: dict[int, float] = {}
    for each in passes:
        if each.model == model:
            best[each.tokens] = min(each.sec, best.get(each.tokens, math.inf))
    return sorted(best), [best[tokens] for tokens in sorted(best)]


def _parse_passes(data: bytes) -> list[TimedPass]:
    if len(data) > MAX_BENCH_BYTES:
        raise ValueError(f"found {len(data):,} bytes, expected at most {MAX_BENCH_BYTES:,}")
    found = describe(data)
    if found not in ("JSON", "text", LLAMA_BENCH):
        raise ValueError(f"found {found}, expected {EXPECTED_BENCH}")
    text = decode_text(data, EXPECTED_BENCH)
    is_json = text.lstrip().startswith(("[", "{"))
    rows = (row for _, row in json_values(data)) if is_json else _markdown_rows(text)
    passes = [timed for row in rows if (timed := _parse_pass(row)) is not None]
    if not passes:
        raise ValueError(f"found {found} without prompt passes, expected {EXPECTED_BENCH}")
    return passes


def _markdown_rows(text: str) -> Iterator[dict[str, Any]]:
    """Yield the prompt-processing rows of a Markdown table, using the keys of the JSON output."""
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "test" in cells and "t/s" in cells:
            header = cells
            continue
        row = dict(zip(header, cells, strict=False))
        test = re.fullmatch(r"pp\s*(\d{1,6})(?:\s*@\s*d\s*(\d{1,9}))?", row.get("test", ""))
        if test is None:
            continue
        try:
            number, unit = row.get("params", "0 K").split()
            parameters = float(number) * _PARAMETER_UNITS[unit]
            seconds = int(test[1]) / float(row["t/s"].split("±")[0])
        except (KeyError, ValueError, ZeroDivisionError) as error:
            raise ValueError(f"found the row {str(row)[:60]!r}, expected {EXPECTED_BENCH}") from error
        yield {
            "model_type": row.get("model"),
            "model_n_params": parameters,
            "n_prompt": test[1],
            "n_depth": test[2],
            "n_ubatch": row.get("n_ubatch"),
            "avg_ns": 1e9 * seconds,
            "gpu_info": row.get("backend"),
        }


def _parse_pass(row: Any) -> TimedPass | None:
    """Return the pass described by a row, or None if the row times generation."""
    if not isinstance(row, dict) or "n_prompt" not in row or "avg_ns" not in row:
        raise ValueError(f"found {str(row)[:40]!r}, expected {EXPECTED_BENCH}")
    samples: Any = row.get("samples_ns")
    is_mean = not (isinstance(samples, list) and samples)
    try:
        tokens, generated, context = (int(row.get(name) or 0) for name in ("n_prompt", "n_gen", "n_depth"))
        sec = float(row["avg_ns"] if is_mean else min(map(float, samples))) / 1e9
        parameters = float(row.get("model_n_params") or 0)
        batch = int(row.get("n_ubatch") or tokens)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"found invalid numbers ({error}), expected {EXPECTED_BENCH}") from error
    if generated or not tokens:
        return None
    # A prompt is processed in batches: -p 256 -ub 2 takes 128 passes over 2 tokens each.
    if 0 < batch < tokens:
        sec *= batch / tokens
        tokens = batch
    if not MIN_SEC <= sec < 1e9 or not 1 <= tokens <= MAX_TREE_SIZE or not 0 <= context <= 10**9:
        raise ValueError(
            f"found a pass over {tokens} tokens in {sec:g} seconds, expected at least 1 token and a time above 0"
        )
    if not math.isfinite(parameters):
        raise ValueError(f"found {parameters:g} parameters, expected a finite number")
    name = str(row.get("model_filename") or row.get("model_type") or "unnamed")[:200]
    device = str(row.get("gpu_info") or row.get("cpu_info") or "unknown")[:200]
    return TimedPass(name, parameters, tokens, context, sec, device, is_mean)
