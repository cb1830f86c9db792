"""A pair of chosen sizes with random weights, to time passes: the time of a pass depends on sizes alone.

Sizes are given as in a config.json. `scripts/make_random_model.py` writes such models to folders.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ..files.model_names import DEMO_PAIR
from ..native.instruction_sets import check_environment
from .device import available_bytes
from .language_model import HuggingFaceModel, ModelPair
from .protocol import find_dtype

SPARE_BYTES = 256 * 2**20  # left over, of memory and of the disk
TOKENIZER = DEMO_PAIR / "target"
Settings = Mapping[str, Any]


def random_pair(target: Settings, draft: Settings, *, names: tuple[str, str], dtype: str = "float32") -> ModelPair:
    """Return a pair of these sizes with random weights, made in memory on the CPU.

    Args:
        target, draft: such as `ModelShape.to_config` returns.
        names: what the two are called in measurements.
    """
    check_environment()
    kind, tokens = find_dtype(dtype), target["vocab_size"]
    if draft["vocab_size"] < tokens:
        raise ValueError(
            f"{names[1]}: found a vocabulary of {draft['vocab_size']}, expected at least the {tokens} of {names[0]}: "
            "it could not read the target's tokens"
        )
    empty = [random_model(part, kind, "meta") for part in (target, draft)]
    needed = sum(weights.nbytes for model in empty for weights in model.parameters())
    check_room(" ← ".join(names), 2 * needed, available_bytes(), "in memory")  # compiled passes pack a second copy
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        models = [
            HuggingFaceModel(random_model(part, kind, "cpu").eval(), name, vocab_size=tokens)
            for part, name in zip((target, draft), names, strict=True)
        ]
    tokenizer: Any = AutoTokenizer.from_pretrained(TOKENIZER, trust_remote_code=False)
    return ModelPair(models[0], models[1], tokenizer)


def config_of(settings: Settings) -> Any:
    """Return transformers' configuration; without an end of text, which random models would write at any moment."""
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[settings["model_type"]]
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    return AutoConfig.for_model(**settings, **ends, architectures=[architecture])


def random_model(settings: Settings, kind: torch.dtype, device: str) -> PreTrainedModel:
    """Return a model as transformers initialises one; on the device "meta" without any weights."""
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config_of(settings), dtype=kind, trust_remote_code=False)


def check_room(name: str, needed: int, free: int | None, where: str) -> None:
    if free is not None and needed + SPARE_BYTES > free:
        raise ValueError(
            f"{name}: found {free / 1e9:,.1f} GB free {where}, expected {(needed + SPARE_BYTES) / 1e9:,.1f} GB"
        )
