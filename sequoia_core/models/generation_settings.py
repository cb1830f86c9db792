"""The generation settings that a model ships with, requests cannot set, and decoding ignores."""

import json
from typing import Any

from transformers import GenerationConfig

from .language_model import HuggingFaceModel
from .protocol import LanguageModel

MAX_SETTING_CHARS = 60
REQUEST_SETTINGS = {"do_sample", "temperature", "top_p", "max_length", "max_new_tokens"}
# These affect the computation, the output format and special ids, but not the text.
NEUTRAL_SETTINGS = set(
    """
    bos_token_id cache_config cache_implementation compile_config continuous_batching_config decoder_start_token_id
    disable_compile eos_token_id low_memory max_cache_len pad_token_id prefill_chunk_size return_dict_in_generate
    transformers_version use_cache
    """.split()
)
# These affect only how many tokens are drafted.
ASSISTANT_SETTINGS = set(
    """
    assistant_confidence_threshold assistant_early_exit assistant_lookbehind is_assistant max_matching_ngram_size
    num_assistant_tokens num_assistant_tokens_schedule prompt_lookup_num_tokens speculation_type target_lookbehind
    use_mtp
    """.split()
)
NEUTRAL_AT_1 = set(
    """
    diversity_penalty encoder_repetition_penalty guidance_scale length_penalty num_beam_groups num_beams
    num_return_sequences repetition_penalty top_h typical_p
    """.split()
)


def ignored_settings(model: LanguageModel, *, top_k: int = 0) -> dict[str, Any]:
    """Return a model's generation settings that would change the text but are ignored; `top_k` is the request's."""
    if not isinstance(model, HuggingFaceModel) or model.model.generation_config is None:
        return {}
    known = vars(GenerationConfig()).keys() - REQUEST_SETTINGS - NEUTRAL_SETTINGS - ASSISTANT_SETTINGS
    shipped = json.loads(model.model.generation_config.to_json_string())
    return {
        name: value
        for name, value in shipped.items()
        if name in known
        and not name.startswith(("_", "output_"))
        and value  # None, 0, False and empty lists have no effect
        and not (name in NEUTRAL_AT_1 and value == 1)
        and not (name == "top_k" and value == top_k)
    }


def describe_settings(settings: dict[str, Any]) -> list[str]:
    """Return each setting as text, truncated to fit on one line."""
    texts = (f"{name} {json.dumps(value)}" for name, value in settings.items())
    return [text if len(text) <= MAX_SETTING_CHARS else f"{text[:MAX_SETTING_CHARS]}…" for text in texts]


def ignored_settings_remark(model: LanguageModel) -> tuple[str, ...]:
    """Return a remark about a model's ignored settings, or an empty tuple."""
    listed = describe_settings(ignored_settings(model))
    if not listed:
        return ()
    return (
        f"{model.name} ships with the generation settings {', '.join(listed)}, which are ignored here: sampling "
        "uses only the requested temperature, top-p and top-k.",
    )
