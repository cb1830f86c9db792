"""The settings of servers for a length of draft (vLLM 0.32, SGLang 0.5, TensorRT-LLM 1.3, llama.cpp of autumn 2026)."""

import json
from collections.abc import Mapping

from ..design.acceptance import AcceptanceVector
from ..design.prediction import best_chain, predicted_speedup
from ..design.profile import HardwareProfile
from ..files.gguf_header import LLAMA_CPP
from .counts import SGLANG, VLLM

METHODS = DRAFT_MODEL, EAGLE3, NGRAM = ("draft", "eagle3", "ngram")
CHECKED = {
    VLLM: "vLLM 0.32",
    LLAMA_CPP: "llama.cpp, autumn 2026",
    SGLANG: "SGLang 0.5",
    "tensorrt-llm": "TensorRT-LLM 1.3",
}


def server_flags(engine: str, k: int, *, method: str = DRAFT_MODEL) -> str:
    """Return the options of an engine's command line that draft k tokens; k = 0 turns speculation off.

    Names in angle brackets are the reader's to fill in.

    Args:
        engine: "vllm", "llama.cpp" or "sglang".
        method: "draft" for a draft model, "eagle3" for a head, "ngram" for text already seen.
    """
    if method not in METHODS:
        raise ValueError(f"method: found {method[:40]!r}, expected one of {', '.join(METHODS)}")
    if engine == VLLM:
        return _vllm(k, method, [])
    if engine == LLAMA_CPP:
        if k == 0:
            return "--spec-type none"
        if method == NGRAM:
            return f"--spec-type ngram-mod --spec-ngram-mod-n-max {k}"
        kind = "draft-simple" if method == DRAFT_MODEL else "draft-eagle3"
        return f"--spec-type {kind} --model-draft <draft.gguf> --spec-draft-n-max {k} --spec-draft-p-min 0"
    if engine == SGLANG:
        if k == 0:
            return "(leave out --speculative-algorithm)"
        if method == NGRAM:
            return f"--speculative-algorithm NGRAM --speculative-num-draft-tokens {k + 1}"
        kind = "STANDALONE" if method == DRAFT_MODEL else "EAGLE3"
        return (
            f"--speculative-algorithm {kind} --speculative-draft-model-path <draft> --speculative-num-steps "
            f"{k} --speculative-eagle-topk 1 --speculative-num-draft-tokens {k + 1}"
        )
    raise ValueError(f"engine: found {engine[:40]!r}, expected one of {', '.join(CHECKED)}")


def flags_by_batch(engine: str, best: Mapping[int, int], *, method: str = DRAFT_MODEL) -> dict[str, str]:
    """Return the settings for the best k at each batch size: name of the setting -> text to copy.

    One command line for each k; where the engine has a table by batch size, that table.

    Args:
        engine: as the server was found; another than those known gets the settings of all.
        best: batch size -> k.
    """
    engines = [engine] if engine in CHECKED else [VLLM, LLAMA_CPP, SGLANG]
    settings = {}
    for name in engines:
        for k in sorted(set(best.values()), reverse=True):
            where = ", ".join(str(batch) for batch, other in best.items() if other == k)
            settings[f"{CHECKED[name]}, requests at once: {where}"] = server_flags(name, k, method=method)
        if name == VLLM and len(set(best.values())) > 1:
            settings[f"{CHECKED[name]}, by batch size"] = _vllm(max(best.values()), method, _ranges(best))
        if name == SGLANG and len(set(best.values())) > 1:
            slots = {str(batch): {"candidate_steps": [k]} for batch, k in sorted(best.items())}
            settings[
                f"{CHECKED[name]}, by batch size (EAGLE): --speculative-adaptive --speculative-adaptive-config FILE"
            ] = json.dumps(slots)
    if len(set(best.values())) > 1:
        schedule = {batch: k for batch, k in sorted(best.items()) if k}
        settings[f"{CHECKED['tensorrt-llm']}, by batch size"] = (
            f"speculative_config:\n  max_draft_len: {max(best.values())}\n  draft_len_schedule: {json.dumps(schedule)}"
        ).replace('"', "")
    return settings


def _vllm(k: int, method: str, ranges: list[list[int]]) -> str:
    if k == 0:
        return "(leave out --speculative-config)"
    config: dict[str, object] = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 12}
    if method != NGRAM:
        config = {"method": "draft_model" if method == DRAFT_MODEL else method, "model": "<draft>"}
    config["num_speculative_tokens"] = k
    if ranges:
        config["num_speculative_tokens_per_batch_size"] = ranges
    return f"--speculative-config '{json.dumps(config)}'"


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
