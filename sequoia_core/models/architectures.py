"""Whether a folder holds a causal language model at all, by its config.json."""

import re
from collections.abc import Iterable, Mapping
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
OTHER_TASKS = r"For(MaskedLM|\w*Classification|QuestionAnswering|MultipleChoice)$"


def head_kind(fields: Mapping[str, Any], tensors: Iterable[str] = ()) -> str:
    """Return the kind of a draft head by its config.json and the names of its tensors; empty for another model.

    A head reads a target's hidden states and is no model by itself. Some have a config.json that no class of
    transformers can read.
    """
    known = [f"{fields.get('model_type')}", *_architectures(fields)]
    classes = [found[1] for text in known if (found := re.search(HEAD_CLASSES, text, re.IGNORECASE))]
    kinds = [
        *(f"{fields.get('speculators_model_type', kind)}" for field, kind in HEAD_FIELDS.items() if fields.get(field)),
        *classes,
        *(["EAGLE"] if fields.get("eagle_config") else []),
    ]
    # A target may bring MTP layers along; in a head there is nothing else.
    tensors = list(tensors)
    kinds += [
        kind
        for start, kind in HEAD_TENSORS.items()
        if tensors and not any("embed" in key for key in tensors) and any(key.startswith(start) for key in tensors)
    ]
    kinds += ["EAGLE"] if "fc.weight" in tensors else []  # its first form brings embeddings
    kind = kinds[0] if kinds else ""
    return EAGLE3 if re.fullmatch("eagle-?3", kind, re.IGNORECASE) else kind


def mtp_layers(config: PretrainedConfig, tensor: str) -> bool:
    """Whether a target's tensor is one of the MTP layers that its files bring along."""
    count = getattr(config, "num_nextn_predict_layers", None) or getattr(config, "num_mtp_layers", None) or 0
    layer = re.search(r"(?:^|\.)layers\.(\d+)\.", tensor)
    first = config.num_hidden_layers
    return tensor.startswith("mtp.") or (layer is not None and first <= int(layer[1]) < first + count)


def check_head(name: str, fields: Mapping[str, Any], tensors: Iterable[str]) -> None:
    """Refuse a draft head where a model is wanted."""
    if kind := head_kind(fields, tensors):
        raise ValueError(
            f"{name}: found a draft head ({kind[:40]}), which reads another model's hidden states, expected {EXPECTED}"
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
