"""What a model ships for its own generation, beyond a request: our decoding leaves it out."""

import json
from typing import Any

from transformers import GenerationConfig

from .language_model import HuggingFaceModel
from .protocol import LanguageModel

MAX_WORDS = 60
OF_THE_REQUEST = {"do_sample", "temperature", "top_p", "max_length", "max_new_tokens"}
NOT_OF_THE_TEXT = {  # how it is computed and returned, and which ids are special
    "bos_token_id", "cache_config", "cache_implementation", "compile_config", "continuous_batching_config",
    "decoder_start_token_id", "disable_compile", "eos_token_id", "low_memory", "max_cache_len", "pad_token_id",
    "prefill_chunk_size", "return_dict_in_generate", "transformers_version", "use_cache",
}  # fmt: skip
OF_ASSISTANTS = {  # how much is drafted; what is verified stays the target's
    "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind", "is_assistant",
    "max_matching_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule", "prompt_lookup_num_tokens",
    "speculation_type", "target_lookbehind", "use_mtp",
}  # fmt: skip
NEUTRAL_AT_1 = {
    "diversity_penalty", "encoder_repetition_penalty", "guidance_scale", "length_penalty", "num_beam_groups",
    "num_beams", "num_return_sequences", "repetition_penalty", "top_h", "typical_p",
}  # fmt: skip


def left_out_settings(model: LanguageModel, *, top_k: int = 0) -> dict[str, Any]:
    """Return a model's own settings that would change text and that no request says; `top_k` is the request's."""
    if not isinstance(model, HuggingFaceModel) or model.model.generation_config is None:
        return {}
    known = vars(GenerationConfig()).keys() - OF_THE_REQUEST - NOT_OF_THE_TEXT - OF_ASSISTANTS
    shipped = json.loads(model.model.generation_config.to_json_string())
    return {
        name: value
        for name, value in shipped.items()
        if name in known
        and not name.startswith(("_", "output_"))
        and value  # None, 0, False and empty lists ask for nothing
        and not (name in NEUTRAL_AT_1 and value == 1)
        and not (name == "top_k" and value == top_k)
    }


def in_words(settings: dict[str, Any]) -> list[str]:
    """Say settings one by one, each short enough for a line."""
    told = (f"{name} {json.dumps(value)}" for name, value in settings.items())
    return [words if len(words) <= MAX_WORDS else f"{words[:MAX_WORDS]}…" for words in told]


def left_out_remark(model: LanguageModel) -> tuple[str, ...]:
    """Say in one sentence what is left out of a model's own settings; nothing where it ships none."""
    words = in_words(left_out_settings(model))
    if not words:
        return ()
    return (
        f"{model.name} ships {', '.join(words)} for its own generation: left out here, where text follows temperature "
        "and top-p alone.",
    )
