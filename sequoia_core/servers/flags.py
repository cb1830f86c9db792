"""The settings of servers for a length of draft (vLLM 0.32, SGLang 0.5, TensorRT-LLM 1.3, llama.cpp of autumn 2026)."""

import json
import re
from collections.abc import Mapping

from ..design.acceptance import AcceptanceVector
from ..design.prediction import best_chain, predicted_speedup
from ..design.profile import HardwareProfile
from ..files.gguf_header import LLAMA_CPP
from .counts import SGLANG, VLLM

METHODS = DRAFT_MODEL, EAGLE3, MTP, DFLASH, NGRAM = ("draft", "eagle3", "mtp", "dflash", "ngram")
_LENGTH = "--spec-draft-n-max {k} --spec-draft-p-min 0"
_LLAMA_CPP = {  # names of drafters, which are its --spec-type -> the options that go with it
    **dict.fromkeys(
        ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark"), f" --model-draft <draft.gguf> {_LENGTH}"
    ),
    "draft-mtp": f" {_LENGTH}",
    "ngram-mod": " --spec-ngram-mod-n-max {k}",
    **{f"ngram-{kind}": f" --spec-ngram-{kind}-size-m {{k}}" for kind in ("simple", "map-k", "map-k4v")},
    "ngram-cache": "",
}
_LLAMA_CPP_TYPES = dict(
    zip(METHODS, ("draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "ngram-mod"), strict=True)
)
_MODEL, _CHAIN = " --speculative-draft-model-path <draft>", " --speculative-num-steps {k} --speculative-eagle-topk 1"
_SGLANG = {
    DRAFT_MODEL: f"STANDALONE{_MODEL}{_CHAIN}",
    EAGLE3: f"EAGLE3{_MODEL}{_CHAIN}",
    MTP: f"EAGLE{_CHAIN}",
    DFLASH: f"DFLASH{_MODEL}",
    NGRAM: "NGRAM",
}
CHECKED = {
    VLLM: "vLLM 0.32",
    LLAMA_CPP: "llama.cpp, autumn 2026",
    SGLANG: "SGLang 0.5",
    "tensorrt-llm": "TensorRT-LLM 1.3",
}


def method_of(drafter: str) -> str | None:
    """Return the method that a drafter's name contains; None where it contains none."""
    plain = _plain(drafter)
    return next((method for method in reversed(METHODS) if method in plain), EAGLE3 if "peagle" in plain else None)


def assumed_method(drafted_share: float) -> str:
    """Return the method to assume where the source names no drafter: n-grams leave steps without a draft."""
    return NGRAM if drafted_share < 1 else DRAFT_MODEL


def server_flags(engine: str, k: int, *, method: str = DRAFT_MODEL, drafter: str = "") -> str:
    """Return the options of an engine's command line that draft k tokens; k = 0 turns speculation off.

    Names in angle brackets are the reader's to fill in.

    Args:
        engine: "vllm", "llama.cpp" or "sglang".
        method: one of `METHODS`.
        drafter: the name of the drafter that ran, which tells kinds of a method apart.
    """
    if method not in METHODS:
        raise ValueError(f"method: found {method[:40]!r}, expected one of {', '.join(METHODS)}")
    if engine == VLLM:
        return _vllm(k, method, [], drafter)
    if engine == LLAMA_CPP:
        if k == 0:
            return "--spec-type none"
        kind = drafter.replace("_", "-")
        if kind not in _LLAMA_CPP:
            kind = _LLAMA_CPP_TYPES[method]
        return f"--spec-type {kind}{_LLAMA_CPP[kind].format(k=k)}"
    if engine == SGLANG:
        if k == 0:
            return "(leave out --speculative-algorithm)"
        options = _SGLANG[method].format(k=k)
        return f"--speculative-algorithm {options} --speculative-num-draft-tokens {k + 1}"
    raise ValueError(f"engine: found {engine[:40]!r}, expected one of {', '.join(CHECKED)}")


def flags_by_batch(
    engine: str, best: Mapping[int, int], *, method: str = DRAFT_MODEL, drafter: str = ""
) -> dict[str, str]:
    """Return the settings for the best k at each batch size: name of the setting -> text to copy.

    One command line for each k; where the engine has a table by batch size, that table.

    Args:
        engine: as the server was found; another than those known gets the settings of all.
        best: batch size -> k; method, drafter: see `server_flags`.
    """
    engines = [engine] if engine in CHECKED else [VLLM, LLAMA_CPP, SGLANG]
    settings = {}
    several = len(set(best.values())) > 1
    for name in engines:
        for k in sorted(set(best.values()), reverse=True):
            where = ", ".join(str(batch) for batch, other in best.items() if other == k)
            settings[f"{CHECKED[name]}, requests at once: {where}"] = server_flags(
                name, k, method=method, drafter=drafter
            )
        if name == VLLM and several:
            settings[f"{CHECKED[name]}, by batch size"] = _vllm(max(best.values()), method, _ranges(best), drafter)
        if name == SGLANG and method in (EAGLE3, MTP) and several:
            slots = {str(batch): {"candidate_steps": [k]} for batch, k in sorted(best.items())}
            settings[
                f"{CHECKED[name]}, by batch size (EAGLE): --speculative-adaptive --speculative-adaptive-config FILE"
            ] = json.dumps(slots)
    if several:
        schedule = {batch: k for batch, k in sorted(best.items()) if k}
        settings[f"{CHECKED['tensorrt-llm']}, by batch size"] = (
            f"speculative_config:\n  max_draft_len: {max(best.values())}\n  draft_len_schedule: {json.dumps(schedule)}"
        ).replace('"', "")
    return settings


def _vllm(k: int, method: str, ranges: list[list[int]], drafter: str) -> str:
    if k == 0:
        return "(leave out --speculative-config)"
    config: dict[str, object] = {"method": "draft_model" if method == DRAFT_MODEL else method}
    if method == NGRAM:
        config |= {"prompt_lookup_min": 2, "prompt_lookup_max": 12}
    elif method != MTP:
        config["model"] = "<draft>"
    if "peagle" in _plain(drafter):
        config["parallel_drafting"] = True
    config["num_speculative_tokens"] = k
    if ranges:
        config["num_speculative_tokens_per_batch_size"] = ranges
    return f"--speculative-config '{json.dumps(config)}'"


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _ranges(best: Mapping[int, int]) -> list[list[int]]:
    """Return [first, last, k] for each run of batch sizes with one k; sizes between go with the next one asked for."""
    ranges: list[list[int]] = []
    below = 0
    for batch, k in sorted(best.items()):
        if ranges and ranges[-1][2] == k:
            ranges[-1][1] = batch
        else:
            ranges.append([below + 1, batch, k])
        below = batch
    return ranges


def llama_server_sentence(
    acceptance: AcceptanceVector, profile: HardwareProfile, tree_speedup: float, *, context: float | None = None
) -> str | None:
    """Say what llama.cpp's server should be told, and what the tree's speedup adds; None for other profiles."""
    if not profile.by_llama_cpp:
        return None
    chain = best_chain(acceptance, profile)
    speedup = predicted_speedup(chain, acceptance, profile, context=context)
    if speedup <= 1:
        words = f"llama-server: {server_flags(LLAMA_CPP, 0)}: no chain is predicted to be faster than no draft"
    else:
        words = f"llama-server: {server_flags(LLAMA_CPP, chain.depth)}: the best chain, predicted {speedup:.2f}×"
    beyond = tree_speedup / max(speedup, 1.0)
    return f"{words}. The planned tree would be {beyond:.2f} times as fast as that; llama-server drafts chains only."
