"""Whether a folder holds a causal language model at all, by its config.json."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

EXPECTED = "a causal language model, which reads and writes one text"
EAGLE3 = "EAGLE-3"
HEAD_FIELDS = {  # of config.json -> the kind of draft head that has it; the first that is there counts
    "speculators_model_type": "speculators", "speculators_config": "speculators", "markov_rank": "DSpark",
    "dflash_config": "DFlash", "parallel_drafting": "P-EAGLE", "ptd_token_id": "P-EAGLE", "draft_vocab_size": EAGLE3,
    "medusa_num_heads": "Medusa", "medusa_num_layers": "Medusa",
}  # fmt: skip
HEAD_CLASSES = r"(eagle(?!\w*vl)-?3?|medusa|dflash|dspark|mtp|assistant)"  # in the name of a class or a model type
HEAD_TENSORS = {"d2t": EAGLE3, "midlayer.": EAGLE3, "mtp.": "MTP", "medusa_head.": "Medusa"}
GGUF_ENCODERS = {"t5": "an encoder-decoder", "t5encoder": "an encoder", "bert": "an encoder"}
MTP_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")  # in config.json
OTHER_TASKS = r"For(MaskedLM|\w*Classification|QuestionAnswering|MultipleChoice)$"


def head_kind(fields: Mapping[str, Any], tensors: Iterable[str] = ()) -> str:
    """Return the kind of a draft head by its config.json and the names of its tensors; empty for another model.

    A head reads a target's hidden states and is no model by itself. Some have a config.json that no class of
    transformers can read.
    """
    kinds = [
        f"{fields.get('speculators_model_type', kind)}" for field, kind in HEAD_FIELDS.items() if fields.get(field)
    ]
    known = [f"{fields.get('model_type')}", *_architectures(fields)]
    kinds += [found[1] for text in known if (found := re.search(HEAD_CLASSES, text, re.IGNORECASE))]
    if fields.get("eagle_config"):
        kinds.append("EAGLE")
    tensors = list(tensors)
    if not any("embed" in key for key in tensors):  # a target may bring MTP layers along; a head has nothing else
        kinds += [kind for start, kind in HEAD_TENSORS.items() if any(key.startswith(start) for key in tensors)]
    if "fc.weight" in tensors:  # the first form of EAGLE brings embeddings
        kinds.append("EAGLE")
    kind = next(iter(kinds), "")
    return EAGLE3 if re.fullmatch("eagle-?3", kind, re.IGNORECASE) else kind


def mtp_counts(config: PretrainedConfig) -> set[int]:
    """Return how many MTP layers a target's configuration names, under whichever keys; usually one number."""
    parts = (config, config.get_text_config())
    counts = {getattr(part, key, None) for part in parts for key in MTP_COUNTS}
    return {count for count in counts if isinstance(count, int) and count > 0}


def mtp_tensors(config: PretrainedConfig, tensors: Collection[str]) -> list[str]:
    """Return those of a target's tensors that are of the MTP layers which its files bring along.

    They begin with `mtp.`, or are of layers after the model's own: as many as its configuration says, and those that
    have DeepSeek's projection, whatever it says.
    """
    first = config.get_text_config().num_hidden_layers
    numbers = {key: int(layer[1]) for key in tensors if (layer := re.search(r"(?:^|\.)layers\.(\d+)\.", key))}
    further = {number for key, number in numbers.items() if number >= first and "eh_proj" in key}
    further.update(range(first, first + max(mtp_counts(config), default=0)))
    return [key for key in tensors if key.startswith("mtp.") or numbers.get(key) in further]


def check_head(name: str, fields: Mapping[str, Any], tensors: Iterable[str], expected: str = EXPECTED) -> None:
    """Refuse a draft head where a model is wanted."""
    if kind := head_kind(fields, tensors):
        raise ValueError(
            f"{name}: found a draft head ({kind[:40]}), which reads another model's hidden states, expected {expected}"
        )


def check_architecture(name: str, config: PretrainedConfig, fields: Mapping[str, Any]) -> None:
    """Refuse encoder-decoders, models for other tasks and ALiBi, before any weight is read."""
    named = next(iter(_architectures(fields)), "") or f"{config.model_type}"
    expected = EXPECTED
    if getattr(config, "is_encoder_decoder", False):
        found = "an encoder-decoder"
    elif re.search(OTHER_TASKS, named) or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        found = "a model for another task"
    elif config.model_type == "bloom" or getattr(config, "alibi", False):
        found, expected = "ALiBi in place of positions", "a model that takes positions"
    else:
        return
    raise ValueError(f"{name}: found {found} ({named[:60]}), expected {expected}")


def check_gguf_architecture(name: str, architecture: str) -> None:
    """Refuse a draft head and an encoder in a GGUF file, by `general.architecture`."""
    check_head(name, {"model_type": architecture}, ())
    for part in architecture.split("-"):
        if part in GGUF_ENCODERS:
            raise ValueError(f"{name}: found {GGUF_ENCODERS[part]} ({architecture[:60]}), expected {EXPECTED}")


def check_rotation(settings: Mapping[str, Any]) -> None:
    """Refuse rotary settings given under two names with two values, of which readers would take either."""
    parameters, scaling = (settings.get(name) for name in ("rope_parameters", "rope_scaling"))
    if not isinstance(parameters, dict):
        return
    theta, other = settings.get("rope_theta"), parameters.get("rope_theta")
    if None not in (theta, other) and theta != other:
        raise ValueError(f"rope_theta: found {theta}, and {other} in rope_parameters, expected one value")
    one, two = map(_rotary_values, (scaling, parameters))
    if any(one[key] != two[key] for key in one.keys() & two.keys()):
        raise ValueError(f"rope_scaling: found {scaling}, and {parameters} in rope_parameters, expected one value")


def _rotary_values(found: Any) -> dict[str, Any]:
    """Return rotary settings in a form to compare; nothing for none, and for those given by type of layer."""
    if not isinstance(found, dict) or not found or any(isinstance(value, dict) for value in found.values()):
        return {}
    values = {"rope_type": found.get("type") or "default", **found}
    return {key: value for key, value in values.items() if key not in ("type", "rope_theta")}


def _architectures(fields: Mapping[str, Any]) -> list[str]:
    listed = fields.get("architectures")
    return [str(one) for one in listed] if isinstance(listed, list) else []
