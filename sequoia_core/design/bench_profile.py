"""A hardware profile of llama-bench's times (`llama-bench -p 1,2,3,4,5,7,9,16 -n 0`), as JSON or as its table."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..files.file_kinds import LLAMA_BENCH, decode_text, describe
from ..files.json_models import naming
from ..files.model_names import NO_DRAFT
from ..files.prompt_files import json_values
from ..files.safe_files import read_bytes
from .profile import HardwareProfile
from .profile_files import MIN_SEC
from .tree import MAX_SIZE

MAX_BENCH_BYTES = 16 * 2**20
EXPECTED = (
    "a profile written by the profile command, or output of llama-bench (-o json, jsonl or md) with passes over "
    "1 and more tokens: -p 1,2,4,8 -n 0"
)
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class Pass(NamedTuple):
    """One timed pass of a model (name, parameters)."""

    model: str
    parameters: float
    tokens: int
    context: int
    sec: float
    device: str = "unknown"
    means: bool = False


def profile_from_bench(files: Iterable[tuple[bytes, str]], *, needs_draft: bool = True) -> HardwareProfile:
    """Return the profile of a pair, the larger of two models the target, from (content, name) of each file.

    Without `needs_draft` a draft that was not timed counts as nothing.
    """
    passes: list[Pass] = []
    for data, name in files:
        with naming(name):
            passes += _passes(data)
    models = sorted({(each.parameters, each.model) for each in passes}, reverse=True)
    if len(models) > 2 or not models or (len(models) == 1 and needs_draft):
        listed = ", ".join(name[:40] for _, name in models) or "none"
        raise ValueError(f"llama-bench: found models {listed}, expected a target and its draft")
    contexts = sorted({each.context for each in passes})
    if len(contexts) > 1:
        raise ValueError(f"llama-bench: found depths {contexts[:8]}, expected one (-d)")
    sizes, seconds = _least(passes, models[0][1])
    widths, draft_sec = _least(passes, models[1][1]) if len(models) == 2 else ([1], [MIN_SEC])
    for role, timed in (("target", sizes), ("draft", widths)):
        if timed[:1] != [1]:
            raise ValueError(
                f"llama-bench: found passes of the {role} over {timed[:8]} tokens, expected one over 1 too"
            )
    means = ", means" if any(each.means for each in passes) else ""
    names = [name for _, name in models]
    return HardwareProfile(
        np.array(sizes), np.array(seconds), draft_sec[0], device=passes[0].device, dtype=names[0], context=contexts[0],
        draft_widths=np.array(widths), draft_width_sec=np.array(draft_sec),
        meta={"source": f"llama-bench{means}", "target": names[0], "draft": names[1] if len(names) > 1 else None},
    )  # fmt: skip


def profile_from_files(files: Sequence[tuple[bytes, str]], *, needs_draft: bool = True) -> HardwareProfile:
    """Return a profile from one file of ours, or from llama-bench's output in one or several."""
    if len(files) != 1 or b'"sequoia-profile"' not in files[0][0][:4096]:
        return profile_from_bench(files, needs_draft=needs_draft)
    profile = HardwareProfile.loads(*files[0])
    if needs_draft and profile.meta.get("draft") == NO_DRAFT:
        raise ValueError(f"{files[0][1]}: found times of a target alone, expected those of a target and its draft")
    return profile


def load_profile(path: str | Path, draft: str | Path | None = None, *, needs_draft: bool = True) -> HardwareProfile:
    """Read a profile from a file of ours or of llama-bench, which may have the draft's times in another."""
    paths = [path] if draft is None else [path, draft]
    files = [(read_bytes(each), str(each)) for each in paths]
    return profile_from_files(files, needs_draft=needs_draft)


def _least(passes: Sequence[Pass], model: str) -> tuple[list[int], list[float]]:
    best: dict[int, float] = {}
    for each in passes:
        if each.model == model:
            best[each.tokens] = min(each.sec, best.get(each.tokens, math.inf))
    return sorted(best), [best[tokens] for tokens in sorted(best)]


def _passes(data: bytes) -> list[Pass]:
    if len(data) > MAX_BENCH_BYTES:
        raise ValueError(f"found {len(data):,} bytes, expected at most {MAX_BENCH_BYTES:,}")
    found = describe(data)
    if found not in ("JSON", "text", LLAMA_BENCH):
        raise ValueError(f"found {found}, expected {EXPECTED}")
    text = decode_text(data, EXPECTED)
    if text.lstrip().startswith(("[", "{")):
        passes = [_of_fields(row) for _, row in json_values(data)]
    else:
        passes = [_of_markdown(row) for row in _table(text)]
    timed = [each for each in passes if each is not None]
    if not timed:
        raise ValueError(f"found {found} without such passes, expected {EXPECTED}")
    return timed


def _of_fields(row: Any) -> Pass | None:
    """Return the pass of a JSON object; None for one that times generation."""
    if not isinstance(row, dict) or "n_prompt" not in row or "avg_ns" not in row:
        raise ValueError(f"found {str(row)[:40]!r}, expected {EXPECTED}")
    try:
        tokens, generated, context = (int(row.get(name) or 0) for name in ("n_prompt", "n_gen", "n_depth"))
        samples = row.get("samples_ns")
        least = min(map(float, samples)) if isinstance(samples, list) and samples else float(row["avg_ns"])
        parameters = float(row.get("model_n_params") or 0)
        at_once = int(row.get("n_ubatch") or tokens)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"found numbers that cannot be read ({error}), expected {EXPECTED}") from error
    if generated or not tokens:
        return None
    name = str(row.get("model_filename") or row.get("model_type") or "unnamed")[:200]
    device = str(row.get("gpu_info") or row.get("cpu_info") or "unknown")[:200]
    sec, means = least / 1e9, not isinstance(samples, list)
    return _timed(Pass(name, parameters, tokens, context, sec, device, means), at_once)


def _table(text: str) -> Iterable[dict[str, str]]:
    header: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if "test" in cells and "t/s" in cells:
            header = cells
        elif header and len(cells) == len(header) and not set(cells[0]) <= set("-: "):
            yield dict(zip(header, cells, strict=True))


def _of_markdown(row: Mapping[str, str]) -> Pass | None:
    test = re.fullmatch(r"pp\s*(\d{1,6})(?:\s*@\s*d\s*(\d{1,9}))?", row["test"])
    if test is None:
        return None
    try:
        number, unit = row.get("params", "0 K").split()
        parameters = float(number) * _UNITS[unit]
        rate, at_once = float(row["t/s"].split("±")[0]), int(row.get("n_ubatch", test[1]))
    except (KeyError, ValueError) as error:
        raise ValueError(f"found the row {str(dict(row))[:60]!r}, expected {EXPECTED}") from error
    tokens = int(test[1])
    sec = tokens / rate if rate > 0 else math.nan
    name = row.get("model", "unnamed")[:200]
    whole = Pass(name, parameters, tokens, int(test[2] or 0), sec, row.get("backend", "unknown"), True)
    return _timed(whole, at_once)


def _timed(whole: Pass, at_once: int) -> Pass:
    """Return one of the passes that a text is read in: -p 256 -ub 2 takes 128 of them."""
    timed = whole
    if 0 < at_once < whole.tokens:
        timed = whole._replace(tokens=at_once, sec=whole.sec * at_once / whole.tokens)
    if not MIN_SEC <= timed.sec < 1e9 or not 1 <= timed.tokens <= MAX_SIZE or not 0 <= timed.context <= 10**9:
        raise ValueError(f"found a pass over {timed.tokens} tokens in {timed.sec:g} seconds, expected times above 0")
    if not math.isfinite(timed.parameters):
        raise ValueError(f"found {timed.parameters:g} parameters, expected a finite number")
    return timed
