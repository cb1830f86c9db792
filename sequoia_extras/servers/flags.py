"""Server options for a given draft length (vLLM 0.32, SGLang 0.5, TensorRT-LLM 1.3, llama.cpp of autumn 2026)."""

import json
import re
from collections.abc import Mapping

from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.planning.prediction import best_chain, predicted_speedup
from sequoia_core.planning.profile import LLAMA_CPP, HardwareProfile

from .counts import MLX_VLM, SGLANG, VLLM

METHODS = DRAFT_MODEL, EAGLE3, MTP, DFLASH, DSPARK, NGRAM = ("draft", "eagle3", "mtp", "dflash", "dspark", "ngram")
_LLAMA_LENGTH = " --spec-draft-n-max {k} --spec-draft-p-min 0"
_LLAMA_MODEL = f" --model-draft <draft.gguf>{_LLAMA_LENGTH}"
_LLAMA_OPTIONS = {  # --spec-type, which is also the drafter's name in logs -> the options it needs
    "draft-simple": _LLAMA_MODEL,
    "draft-eagle3": _LLAMA_MODEL,
    "draft-dflash": _LLAMA_MODEL,
    "draft-dspark": _LLAMA_MODEL,
    "draft-mtp": _LLAMA_LENGTH,
    "ngram-mod": " --spec-ngram-mod-n-max {k}",
    "ngram-simple": " --spec-ngram-simple-size-m {k}",
    "ngram-map-k": " --spec-ngram-map-k-size-m {k}",
    "ngram-map-k4v": " --spec-ngram-map-k4v-size-m {k}",
    "ngram-cache": "",
}
_LLAMA_TYPES = {DRAFT_MODEL: "draft-simple", NGRAM: "ngram-mod"}  # the type of other methods is draft-METHOD
METHOD_NAMES = (*METHODS, "draft_model", *_LLAMA_OPTIONS)  # with the names that vLLM and llama.cpp use
_SGLANG_MODEL = " --speculative-draft-model-path <draft>"
_SGLANG_CHAIN = " --speculative-num-steps {k} --speculative-eagle-topk 1"
_SGLANG_OPTIONS = {
    DRAFT_MODEL: f"STANDALONE{_SGLANG_MODEL}{_SGLANG_CHAIN}",
    EAGLE3: f"EAGLE3{_SGLANG_MODEL}{_SGLANG_CHAIN}",
    MTP: f"EAGLE{_SGLANG_CHAIN}",
    DFLASH: f"DFLASH{_SGLANG_MODEL}",
    DSPARK: f"DSPARK{_SGLANG_MODEL} --speculative-dspark-block-size {{k}}",
    NGRAM: "NGRAM",
}
VERSIONS = {  # versions that these options apply to
    VLLM: "vLLM 0.32",
    LLAMA_CPP: "llama.cpp, autumn 2026",
    SGLANG: "SGLang 0.5",
    MLX_VLM: "mlx-vlm 0.7",
    "tensorrt-llm": "TensorRT-LLM 1.3",
}


def method_from_name(drafter: str) -> str | None:
    """Return the drafting method that a drafter's name contains; None if it contains none."""
    plain = _normalise(drafter)
    return next((method for method in reversed(METHODS) if method in plain), EAGLE3 if "peagle" in plain else None)


def assumed_method(drafted_share: float) -> str:
    """Return the method to assume for an unnamed drafter: only n-grams leave steps without a draft."""
    return NGRAM if drafted_share < 1 else DRAFT_MODEL


def server_flags(engine: str, k: int, *, method: str = DRAFT_MODEL, drafter: str = "") -> str:
    """Return an engine's command-line options for drafting `k` tokens; k = 0 turns speculation off.

    Names in angle brackets are placeholders.

    Args:
        engine: "vllm", "llama.cpp", "sglang" or "mlx-vlm".
        method: one of `METHODS`.
        drafter: name of the drafter in use, which distinguishes variants of a method.
    """
    if method not in METHODS:
        raise ValueError(f"method: found {method[:40]!r}, expected one of {', '.join(METHODS)}")
    if engine == VLLM:
        return _vllm_flags(k, method, drafter)
    if engine == LLAMA_CPP:
        if k == 0:
            return "--spec-type none"
        name = drafter.replace("_", "-")
        if name not in _LLAMA_OPTIONS:
            name = _LLAMA_TYPES.get(method, f"draft-{method}")
        return f"--spec-type {name}{_LLAMA_OPTIONS[name].format(k=k)}"
    if engine == SGLANG:
        if k == 0:
            return "(leave out --speculative-algorithm)"
        options = _SGLANG_OPTIONS[method].format(k=k)
        return f"--speculative-algorithm {options} --speculative-num-draft-tokens {k + 1}"
    if engine == MLX_VLM:
        if k == 0:
            return "(leave out --draft-model)"
        kind = f" --draft-kind {method}" if method in (EAGLE3, MTP, DFLASH) else ""
        return f"--draft-model <draft>{kind} --draft-block-size {k + 1}"
    raise ValueError(f"engine: found {engine[:40]!r}, expected one of {', '.join(VERSIONS)}")


def flags_by_batch(
    engine: str, best: Mapping[int, int], *, method: str = DRAFT_MODEL, drafter: str = ""
) -> dict[str, str]:
    """Return the settings for the best k at each batch size: setting name -> text to copy.

    There is one command line per k, and a table indexed by batch size if the engine supports one.

    Args:
        engine: engine named in the counts; if unknown, the settings for all engines are returned.
        best: batch size -> best k.
        method, drafter: see `server_flags`.
    """
    engines = [engine] if engine in VERSIONS else [VLLM, LLAMA_CPP, SGLANG]
    settings = {}
    several = len(set(best.values())) > 1
    most = max(best.values())
    for name in engines:
        title = VERSIONS[name]
        for k in sorted(set(best.values()), reverse=True):
            batches = ", ".join(str(batch) for batch, other in best.items() if other == k)
            flags = server_flags(name, k, method=method, drafter=drafter)
            settings[f"{title}, concurrent requests: {batches}"] = flags
        if name == VLLM and several:
            settings[f"{title}, by batch size"] = _vllm_flags(most, method, drafter, _batch_ranges(best))
        if name == SGLANG and method in (EAGLE3, MTP) and several:
            slots = {str(batch): {"candidate_steps": [k]} for batch, k in sorted(best.items())}
            options = "--speculative-adaptive --speculative-adaptive-config FILE"
            settings[f"{title}, by batch size (EAGLE): {options}"] = json.dumps(slots)
    if several:
        schedule = json.dumps({batch: k for batch, k in sorted(best.items()) if k}).replace('"', "")
        config = f"speculative_config:\n  max_draft_len: {most}\n  draft_len_schedule: {schedule}"
        settings[f"{VERSIONS['tensorrt-llm']}, by batch size"] = config
    return settings


def _vllm_flags(k: int, method: str, drafter: str, ranges: list[list[int]] | None = None) -> str:
    if k == 0:
        return "(leave out --speculative-config)"
    config: dict[str, object] = {"method": "draft_model" if method == DRAFT_MODEL else method}
    if method == NGRAM:
        config |= {"prompt_lookup_min": 2, "prompt_lookup_max": 12}
    elif method != MTP:
        config["model"] = "<draft>"
    if "peagle" in _normalise(drafter):
        config["parallel_drafting"] = True
    config["num_speculative_tokens"] = k
    if ranges:
        config["num_speculative_tokens_per_batch_size"] = ranges
    return f"--speculative-config '{json.dumps(config)}'"


def _normalise(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _batch_ranges(best: Mapping[int, int]) -> list[list[int]]:
    """Return [first, last, k] for each range of batch sizes with the same k; a gap uses the k of the next size."""
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
    """Return a sentence with llama-server's options and the tree's gain over them; None for other profiles."""
    if not profile.timed_by_llama_cpp:
        return None
    chain = best_chain(acceptance, profile)
    speedup = predicted_speedup(chain, acceptance, profile, context=context)
    if speedup <= 1:
        words = f"llama-server: {server_flags(LLAMA_CPP, 0)}, because no chain is predicted to be faster than no draft"
    else:
        words = f"llama-server: {server_flags(LLAMA_CPP, chain.depth)} for the best chain, predicted {speedup:.2f}×"
    beyond = tree_speedup / max(speedup, 1.0)
    return f"{words}. The planned tree would be {beyond:.2f} times as fast, but llama-server drafts only chains."
