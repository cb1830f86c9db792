"""Reads one model's files and checks that they hold a whole model; small files and headers before any weight."""

from __future__ import annotations

import importlib.util
import logging
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from ..files.json_models import naming
from .architectures import check_architecture, check_head, check_rotation, mtp_tensors
from .default_dtype import NAMES
from .finite_weights import check_finite
from .model_files import A_MODEL, Source, explained
from .weight_files import Stored, read_tensors, stored_tensors, weight_files

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

COMPRESSED_TENSORS = "compressed-tensors"
QUANTISED = {  # method named in a model's config -> module that runs it; its package is called the same, with dashes
    "bitsandbytes": "bitsandbytes", "gptq": "gptqmodel", "awq": "gptqmodel", COMPRESSED_TENSORS: "compressed_tensors",
    "torchao": "torchao", "hqq": "hqq", "quanto": "optimum.quanto",
}  # fmt: skip
LARGEST_SIZE = 2**31 - 1
MOST_PARTS = 100_000  # layers, heads or experts: beyond any model, and building so many takes minutes
LARGER_THAN_FILES = 2  # a configuration with more than this many times the numbers stored is refused before loading
ALIGNED = 64  # bytes, of a vector register and a cache line
SPREAD = "auto"  # accelerate's word for it
PACKED = 32  # numbers that quantised formats may pack into one


@dataclass(frozen=True, slots=True)
class Plan:
    """The contents of a model's small files and of the headers of its large ones, before any weight is read.

    Attributes:
        quantised: the method, as config.json names it; empty where weights are not quantised.
        stored: (shape, dtype) of every tensor; empty where the weight files have unusual names.
    """

    config: PretrainedConfig
    quantised: str
    stored: Stored


def read_plan(source: Source) -> Plan:
    """Read a model's configuration and the headers of its weights."""
    where = f"{source.name}/config.json"
    fields = source.read_object("config.json", needed=True)
    assert fields is not None, "a needed file is there"
    source.read_object("generation_config.json")  # transformers ignores one that it cannot read
    stored = stored_tensors(source)
    check_head(source.name, fields, stored)
    for settings in (fields, fields.get("text_config")):
        if isinstance(settings, dict):
            with naming(where):
                _check_counts(settings, len(stored))
                check_rotation(settings)
    with explained(where, "the configuration of a causal language model", "settings that do not hold"):
        config = AutoConfig.from_pretrained(source.place, trust_remote_code=False)
        text = config.get_text_config()
    check_architecture(source.name, config, fields)
    _check_sizes(where, text)
    return Plan(config, _check_quantisation(source.name, config), stored)


def load_weights(
    source: Source, plan: Plan, device: torch.device, dtype: torch.dtype, *, spread: bool = False
) -> PreTrainedModel:
    """Return the whole model on a device, or spread by accelerate over all devices, then memory and disk."""
    name, config = source.name, plan.config
    placed = plan.quantised not in ("", COMPRESSED_TENSORS)  # while they load; such weights cannot be moved
    if plan.quantised == COMPRESSED_TENSORS:  # else its package does so in the first pass: it has no kernels of its own
        config.quantization_config |= {"dequantize": True}
    expected = "settings from which transformers can build a causal language model"
    with explained(f"{name}/config.json", expected, "settings that do not hold"), torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, trust_remote_code=False, attn_implementation=None)
    _check_stored(name, empty, plan)
    check_stored_once(source, empty, plan.stored)
    with explained(name, A_MODEL), without_report():
        model, report = cast("Any", AutoModelForCausalLM).from_pretrained(
            source.place, config=config, dtype=dtype, use_safetensors=True, trust_remote_code=False,
            attn_implementation=None,  # the fused kernel, or plain operations where there is none
            device_map=SPREAD if spread else device if placed else None,
            output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
        if not placed and not spread:
            model = model.to(device)
    _check_loaded(name, model, report)
    check_finite(name, model, lambda: list(weight_files(source)))
    align_weights(model)
    return model


def align_weights(model: PreTrainedModel) -> None:
    """Copy float32 weights that are not aligned to 64 bytes, such as weights mapped from their file.

    On some processors the last bits of float32 products depend on the alignment. Streamed layers are aligned, and a
    model in memory must give the same bits.
    """
    for weights in model.parameters():
        if weights.device.type == "cpu" and weights.dtype == torch.float32 and weights.data_ptr() % ALIGNED:
            weights.data = weights.data.clone()  # torch's own memory is aligned


def check_stored_once(source: Source, model: PreTrainedModel, stored: Collection[str]) -> None:
    """Refuse two stored tensors that differ and would be the same one in the model: readers would take either."""
    prefix = f"{model.base_model_prefix}."
    tied: Any = model.all_tied_weights_keys
    for one, other in (*((key, prefix + key) for key in stored), *tied.items()):
        if one in stored and other in stored:
            tensors = read_tensors(source, (one, other))
            if not torch.equal(tensors[one], tensors[other]):
                advice = " (or tie_word_embeddings = false in config.json)" if one in tied else ""
                raise ValueError(
                    f"{source.name}: found {one} and {other}, which differ, though config.json makes them one tensor, "
                    f"expected one of them{advice}"
                )


@contextmanager
def without_report() -> Iterator[None]:
    """Keep transformers from printing which tensors it did not use: our own check of its report decides."""
    logger, silent = logging.getLogger("transformers.modeling_utils"), logging.Filter("nothing of that name")
    logger.addFilter(silent)
    try:
        yield
    finally:
        logger.removeFilter(silent)


def _check_counts(settings: dict[str, Any], tensors: int) -> None:
    """Refuse counts of parts that no model has, before they are built."""
    for key, value in settings.items():
        part = re.fullmatch(r"(?:num|n)_(?:\w+_)?(layer|head|expert)s?", key)
        if part is None or not isinstance(value, int):
            continue
        if part[1] == "layer" and 0 < tensors < value:
            raise ValueError(f"{key}: found {value}, expected at most {tensors}: {tensors} tensors are stored")
        if value > MOST_PARTS:
            raise ValueError(f"{key}: found {value}, expected at most {MOST_PARTS}")


def _check_sizes(where: str, config: PretrainedConfig) -> None:
    """Refuse numbers that no model has but transformers accepts."""
    needed = ("vocab_size", "hidden_size", "num_hidden_layers")
    further = "num_attention_heads num_key_value_heads intermediate_size head_dim max_position_embeddings"
    for field in (*needed, *further.split()):
        value: Any = getattr(config, field, None)
        key = getattr(config, "attribute_map", {}).get(field, field)
        plain = isinstance(value, int) and not isinstance(value, bool)
        if (field in needed and not plain) or (plain and not 1 <= value <= LARGEST_SIZE):
            raise ValueError(f"{where}: {key}: found {value!r}, expected a whole number from 1 to {LARGEST_SIZE}")
    for key in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"):
        value = getattr(config, key, None)
        if value is not None and not (isinstance(value, int | float) and 0 <= value < 1):
            raise ValueError(f"{where}: {key}: found {value!r}, expected a number from 0 to below 1")


def _check_quantisation(name: str, config: PretrainedConfig) -> str:
    """Return what quantised the weights, refusing one whose package is missing."""
    settings = getattr(config, "quantization_config", None)
    if not settings:
        return ""
    method = str(settings.get("quant_method") if isinstance(settings, dict) else None)
    if method not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        raise ValueError(
            f"{name}/config.json: quantization_config: quant_method: found {method!r}, expected a known one"
        )
    module = QUANTISED.get(method, "torch")
    try:
        missing = importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # the parent of a dotted name
        missing = True
    if missing:
        raise ValueError(
            f"{name}: found weights quantised with {method}, which needs a package that is not here: "
            f"pip install {re.sub('[._]', '-', module)}"
        )
    return method


def _check_stored(name: str, empty: PreTrainedModel, plan: Plan) -> None:
    """Refuse files with far fewer weights than the model as configured, `empty`, before memory is taken for it."""
    shapes = {key: shape for key, (shape, _) in plan.stored.items()}
    held = sum(math.prod(shape) for shape in shapes.values())
    wanted = sum(parameter.numel() for parameter in empty.parameters())
    if shapes and wanted > held * (PACKED if plan.quantised else LARGER_THAN_FILES):
        expected = {key: tuple(tensor.shape) for key, tensor in empty.state_dict().items()}
        other = [(key, shapes[key], shape) for key, shape in expected.items() if shapes.get(key, shape) != shape]
        _refuse_misfits(name, empty, [] if other else [key for key in expected if key not in shapes], other, [])
        raise ValueError(f"{name}: found {held:,} numbers stored, expected the {wanted:,} that config.json describes")
    weights = {key for key, _ in empty.named_parameters()}
    for key, (_, kind) in plan.stored.items() if not plan.quantised else ():
        if kind not in NAMES and weights & {key, f"{empty.base_model_prefix}.{key}"}:
            raise ValueError(f"{name}: found {key} stored as {kind}, expected {', '.join(NAMES)}")


def _check_loaded(name: str, model: PreTrainedModel, report: dict[str, Any]) -> None:
    """Refuse a model whose files do not hold exactly its weights.

    transformers fills gaps with random numbers and ignores surplus tensors. Its report leaves out what an architecture
    declares as ignorable: heads tied to the embedding, buffers that earlier versions stored. MTP layers are no surplus.
    """
    unexpected = report["unexpected_keys"]
    unused = {key for key, _ in model.named_buffers()}  # computed, not loaded, wherever a file still stores them
    unused.update(mtp_tensors(model.config, unexpected))
    surplus = [key for key in unexpected if key not in unused and not key.endswith(".masked_bias")]
    _refuse_misfits(name, model, report["missing_keys"], report["mismatched_keys"], surplus)


def _refuse_misfits(
    name: str,
    model: PreTrainedModel,
    missing: Iterable[str],
    mismatched: Iterable[tuple[str, Sequence[int], Sequence[int]]],
    surplus: Iterable[str],
) -> None:
    """Refuse missing or surplus names, or (name, stored shape, shape of the model)."""
    faults = []
    if missing:
        faults.append(f"no {_some(missing)}")
    if mismatched:
        faults.append(_some([f"{key} of shape {list(a)} where it takes {list(b)}" for key, a, b in mismatched]))
    if surplus:
        faults.append(f"no place for {_some(surplus)}")
    if faults:
        raise ValueError(
            f"{name}: found weights that do not fit config.json: {'; '.join(faults)}; expected every tensor of a "
            f"{type(model).__name__} with num_hidden_layers = {model.config.get_text_config().num_hidden_layers} "
            "and no other"
        )


def _some(keys: Iterable[str]) -> str:
    """Name the first of many, with numbers in names in their natural order."""
    ordered = sorted(keys, key=lambda key: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)])
    more = f" and {len(ordered) - 2} more" if len(ordered) > 2 else ""
    return ", ".join(ordered[:2]) + more
