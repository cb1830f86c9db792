"""Whether a folder holds a causal language model at all, by its config.json."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

EXPECTED = "a causal language model, which reads and writes one text"
HEAD_FIELDS = {  # of config.json -> the kind of draft head that has it
    "speculators_model_type": "speculators", "speculators_config": "speculators", "dflash_config": "DFlash",
    "eagle_config": "EAGLE", "draft_vocab_size": "EAGLE-3", "medusa_num_heads": "Medusa",
    "medusa_num_layers": "Medusa",
}  # fmt: skip
HEAD_CLASSES = r"(eagle(?!\w*vl)-?3?|medusa|dflash|dspark|mtp|assistant)"  # in the name of a class or a model type
HEAD_TENSORS = {"d2t": "EAGLE-3", "midlayer.": "EAGLE-3", "mtp.": "MTP", "medusa_head.": "Medusa"}
GGUF_ENCODERS = {"t5": "an encoder-decoder", "t5encoder": "an encoder", "bert": "an encoder"}
OTHER_TASKS = r"For(MaskedLM|\w*Classification|QuestionAnswering|MultipleChoice)$"


def check_head(name: str, fields: Mapping[str, Any], tensors: Iterable[str]) -> None:
    """Refuse a draft head, which reads a target's hidden states and is no model by itself.

    Some heads have a config.json (`fields`) that no class of transformers can read.
    """
    known = [f"{fields.get('model_type')}", *_architectures(fields)]
    kinds = [
        *(f"{fields.get('speculators_model_type', kind)}" for field, kind in HEAD_FIELDS.items() if fields.get(field)),
        *(found[1] for text in known if (found := re.search(HEAD_CLASSES, text, re.IGNORECASE))),
    ]
    # A target may bring MTP layers along; in a head there is nothing else.
    tensors = list(tensors)
    kinds += [
        kind
        for start, kind in HEAD_TENSORS.items()
        if tensors and not any("embed" in key for key in tensors) and any(key.startswith(start) for key in tensors)
    ]
    kinds += ["EAGLE"] if "fc.weight" in tensors else []  # its first form brings embeddings
    if kinds:
        raise ValueError(
            f"{name}: found a draft head ({kinds[0][:40]}), which reads another model's hidden states, expected "
            f"{EXPECTED}"
        )


def check_architecture(name: str, config: PretrainedConfig, fields: Mapping[str, Any]) -> None:
    """Refuse encoder-decoders and models for other tasks, before any weight is read."""
    named = next(iter(_architectures(fields)), "") or f"{config.model_type}"
    if getattr(config, "is_encoder_decoder", False):
        found = "an encoder-decoder"
    elif re.search(OTHER_TASKS, named) or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        found = "a model for another task"
    else:
        return
    raise ValueError(f"{name}: found {found} ({named[:60]}), expected {EXPECTED}")


def check_gguf_architecture(name: str, architecture: str) -> None:
    """Refuse a draft head and an encoder in a GGUF file, by `general.architecture`."""
    check_head(name, {"model_type": architecture}, ())
    kind = next((kind for start, kind in GGUF_ENCODERS.items() if re.search(rf"(^|-){start}($|-)", architecture)), None)
    if kind is not None:
        raise ValueError(f"{name}: found {kind} ({architecture[:60]}), expected {EXPECTED}")


def _architectures(fields: Mapping[str, Any]) -> list[str]:
    listed = fields.get("architectures")
    return [str(one) for one in listed] if isinstance(listed, list) else []
