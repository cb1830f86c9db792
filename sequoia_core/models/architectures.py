"""Decide from config.json whether a folder contains a supported causal language model."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ..files.extras import has

CAUSAL_MODEL = "a causal (decoder-only) language model"
EAGLE3 = "EAGLE-3"
HEAD_FIELDS = {  # field in config.json -> type of draft head; the first match wins
    "speculators_model_type": "speculators",
    "speculators_config": "speculators",
    "markov_rank": "DSpark",
    "dflash_config": "DFlash",
    "parallel_drafting": "P-EAGLE",
    "ptd_token_id": "P-EAGLE",
    "draft_vocab_size": EAGLE3,
    "medusa_num_heads": "Medusa",
    "medusa_num_layers": "Medusa",
}
HEAD_CLASSES = r"(eagle(?!\w*vl)-?3?|medusa|dflash|dspark|mtp|assistant)"  # pattern in a class name or model type
HEAD_TENSORS = {"d2t": EAGLE3, "midlayer.": EAGLE3, "mtp.": "MTP", "medusa_head.": "Medusa"}
MTP_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")  # keys in config.json
OTHER_TASKS = r"For(MaskedLM|\w*Classification|QuestionAnswering|MultipleChoice)$"


def draft_head_type(fields: Mapping[str, Any], tensors: Iterable[str] = ()) -> str:
    """Return a draft head's type according to its config.json and tensor names; empty for any other model.

    A head reads a target's hidden states and cannot run alone. Some heads have a config.json that transformers rejects.
    """
    types = [fields.get("speculators_model_type", name) for field, name in HEAD_FIELDS.items() if fields.get(field)]
    for name in (fields.get("model_type"), *_architectures(fields)):
        types += [match[1] for match in re.finditer(HEAD_CLASSES, f"{name}", re.IGNORECASE)]
    if fields.get("eagle_config"):
        types.append("EAGLE")
    tensors = list(tensors)
    if not any("embed" in key for key in tensors):  # a target that includes MTP layers has embeddings
        for start, name in HEAD_TENSORS.items():
            types += [name for key in tensors if key.startswith(start)]
    if "fc.weight" in tensors:  # EAGLE-1 heads include embeddings
        types.append("EAGLE")
    head_type = f"{next(iter(types), '')}"
    return EAGLE3 if re.fullmatch("eagle-?3", head_type, re.IGNORECASE) else head_type


def mtp_counts(config: PretrainedConfig) -> set[int]:
    """Return every number of MTP layers that a target's configuration gives under some key; usually just one."""
    parts = (config, config.get_text_config())
    counts = {getattr(part, key, None) for part in parts for key in MTP_COUNTS}
    return {count for count in counts if isinstance(count, int) and count > 0}


def mtp_tensors(config: PretrainedConfig, tensors: Collection[str]) -> list[str]:
    """Return the names of the MTP layers' tensors in a target's files.

    They start with `mtp.` or belong to layers after the last decoder layer: those counted in the configuration, and any
    layer with DeepSeek's projection.
    """
    first = config.get_text_config().num_hidden_layers
    numbers = {key: int(layer[1]) for key in tensors if (layer := re.search(r"(?:^|\.)layers\.(\d+)\.", key))}
    further = {number for key, number in numbers.items() if number >= first and "eh_proj" in key}
    further.update(range(first, first + max(mtp_counts(config), default=0)))
    return [key for key in tensors if key.startswith("mtp.") or numbers.get(key) in further]


def check_head(name: str, fields: Mapping[str, Any], tensors: Iterable[str], expected: str = CAUSAL_MODEL) -> None:
    """Raise ValueError for a draft head where a complete model is expected."""
    if head_type := draft_head_type(fields, tensors):
        if head_type == EAGLE3 and not has("draft_heads"):
            expected += ", or the optional package draft_heads to draft with it"
        raise ValueError(
            f"{name}: found a draft head ({head_type[:40]}), which reads another model's hidden states, expected "
            f"{expected}"
        )


def check_architecture(name: str, config: PretrainedConfig, fields: Mapping[str, Any]) -> None:
    """Raise ValueError for an encoder-decoder, a model for a different task, or ALiBi, before weights are read."""
    named = next(iter(_architectures(fields)), "") or f"{config.model_type}"
    expected = CAUSAL_MODEL
    if getattr(config, "is_encoder_decoder", False):
        found = "an encoder-decoder"
    elif re.search(OTHER_TASKS, named) or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        found = "a model for a different task"
    elif config.model_type == "bloom" or getattr(config, "alibi", False):
        found = "ALiBi instead of position inputs"
        expected = "a model that takes positions"
    else:
        return
    raise ValueError(f"{name}: found {found} ({named[:60]}), expected {expected}")


def check_rotation(settings: Mapping[str, Any]) -> None:
    """Raise ValueError for contradictory rotary settings, which programs would resolve differently."""
    parameters, scaling = (settings.get(name) for name in ("rope_parameters", "rope_scaling"))
    if not isinstance(parameters, dict):
        return
    theta = settings.get("rope_theta")
    other = parameters.get("rope_theta")
    if None not in (theta, other) and theta != other:
        raise ValueError(f"rope_theta: found {theta}, and {other} in rope_parameters, expected one value")
    one, two = map(_rotary_values, (scaling, parameters))
    if any(one[key] != two[key] for key in one.keys() & two.keys()):
        raise ValueError(f"rope_scaling: found {scaling}, and {parameters} in rope_parameters, expected one value")


def _rotary_values(settings: Any) -> dict[str, Any]:
    """Return rotary settings in a comparable form; empty if there are none or if they differ by layer type."""
    if not isinstance(settings, dict) or not settings or any(isinstance(value, dict) for value in settings.values()):
        return {}
    values = {"rope_type": settings.get("type") or "default", **settings}
    return {key: value for key, value in values.items() if key not in ("type", "rope_theta")}


def _architectures(fields: Mapping[str, Any]) -> list[str]:
    listed = fields.get("architectures")
    return [str(one) for one in listed] if isinstance(listed, list) else []
