"""Read a model's files, small files and headers first, and check that they contain a complete model."""

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

from ..files.json_models import prefix_errors
from .architectures import check_architecture, check_head, check_rotation, mtp_tensors
from .default_dtype import STORED_DTYPES
from .finite_weights import check_finite
from .model_files import A_MODEL, Source, explain_load_errors
from .weight_files import StoredTensors, read_tensors, stored_tensors, weight_files

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

COMPRESSED_TENSORS = "compressed-tensors"
QUANTIZATION_MODULES = {  # method in a model's config -> module; its package has the same name, with dashes
    "bitsandbytes": "bitsandbytes",
    "gptq": "gptqmodel",
    "awq": "gptqmodel",
    COMPRESSED_TENSORS: "compressed_tensors",
    "torchao": "torchao",
    "hqq": "hqq",
    "quanto": "optimum.quanto",
}
LARGEST_SIZE = 2**31 - 1
MAX_PARTS = 100_000  # limit on layers, heads or experts; no model has more, and building them would take minutes
MAX_EXCESS = 2  # largest accepted ratio of configured parameters to stored values
ALIGNMENT = 64  # size of a vector register and of a cache line in bytes
SPREAD = "auto"  # accelerate's name for spreading a model over devices
MAX_PACKING = 32  # limit on the values that a quantized format packs into one stored value


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """A model's configuration and the headers of its weight files, before any weight is read.

    Attributes:
        quantized: the quantization method in config.json; empty if the weights are not quantized.
        stored: (shape, dtype) of every tensor; empty if the weight files have unusual names.
    """

    config: PretrainedConfig
    quantized: str
    stored: StoredTensors


def read_plan(source: Source) -> CheckpointPlan:
    """Read a model's configuration and the headers of its weight files."""
    where = f"{source.name}/config.json"
    fields = source.read_object("config.json", needed=True)
    assert fields is not None, "`needed` raises for a missing file"
    source.read_object("generation_config.json")  # raises an error for a damaged file, which transformers would ignore
    stored = stored_tensors(source)
    check_head(source.name, fields, stored)
    for settings in (fields, fields.get("text_config")):
        if isinstance(settings, dict):
            with prefix_errors(where):
                _check_counts(settings, len(stored))
                check_rotation(settings)
    with explain_load_errors(where, "the configuration of a causal language model", "invalid settings"):
        config = AutoConfig.from_pretrained(source.location, trust_remote_code=False)
        text = config.get_text_config()
    check_architecture(source.name, config, fields)
    _check_sizes(where, text)
    return CheckpointPlan(config, _check_quantization(source.name, config), stored)


def load_weights(
    source: Source, plan: CheckpointPlan, device: torch.device, dtype: torch.dtype, *, spread: bool = False
) -> PreTrainedModel:
    """Load the complete model on one device, or let accelerate spread it over all devices, then memory, then disk."""
    name = source.name
    config = plan.config
    # Quantized weights cannot be moved after loading.
    fixed_device = plan.quantized not in ("", COMPRESSED_TENSORS)
    if plan.quantized == COMPRESSED_TENSORS:  # it has no kernels and would be dequantized in the first pass
        config.quantization_config |= {"dequantize": True}
    expected = "settings from which transformers can build a causal language model"
    with explain_load_errors(f"{name}/config.json", expected, "invalid settings"), torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, trust_remote_code=False, attn_implementation=None)
    _check_stored(name, empty, plan)
    check_stored_once(source, empty, plan.stored)
    with explain_load_errors(name, A_MODEL), silence_load_report():
        model, report = cast("Any", AutoModelForCausalLM).from_pretrained(
            source.location,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation=None,  # None selects the fused kernel if available
            device_map=SPREAD if spread else device if fixed_device else None,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
        if not fixed_device and not spread:
            model = model.to(device)
    _check_loaded(name, model, report)
    check_finite(name, model, lambda: list(weight_files(source)))
    align_weights(model)
    return model


def align_weights(model: PreTrainedModel) -> None:
    """Copy float32 weights that are not aligned to 64 bytes, such as weights mapped from a file.

    On some processors, the last bits of float32 products depend on alignment. Streamed layers are aligned, and a model
    in memory must give bit-identical results.
    """
    for weights in model.parameters():
        if weights.device.type == "cpu" and weights.dtype == torch.float32 and weights.data_ptr() % ALIGNMENT:
            weights.data = weights.data.clone()  # torch allocates aligned memory


def check_stored_once(source: Source, model: PreTrainedModel, stored: Collection[str]) -> None:
    """Raise ValueError if two stored tensors differ but are one tensor in the model, as programs may use either."""
    prefix = f"{model.base_model_prefix}."
    tied: Any = model.all_tied_weights_keys
    for one, other in (*((key, prefix + key) for key in stored), *tied.items()):
        if one in stored and other in stored:
            tensors = read_tensors(source, (one, other))
            if not torch.equal(tensors[one], tensors[other]):
                advice = " (or tie_word_embeddings = false in config.json)" if one in tied else ""
                raise ValueError(
                    f"{source.name}: found {one} and {other}, which differ but are the same tensor in the model, "
                    f"expected only one of them{advice}"
                )


@contextmanager
def silence_load_report() -> Iterator[None]:
    """Suppress transformers' list of unused tensors, since we check its report ourselves."""
    logger = logging.getLogger("transformers.modeling_utils")
    silent = logging.Filter("nothing of that name")
    logger.addFilter(silent)
    try:
        yield
    finally:
        logger.removeFilter(silent)


def _check_counts(settings: dict[str, Any], tensors: int) -> None:
    """Raise ValueError for implausible numbers of layers, heads or experts, before they are built."""
    for key, value in settings.items():
        part = re.fullmatch(r"(?:num|n)_(?:\w+_)?(layer|head|expert)s?", key)
        if part is None or not isinstance(value, int):
            continue
        if part[1] == "layer" and 0 < tensors < value:
            raise ValueError(f"{key}: found {value}, expected at most {tensors}, the number of stored tensors")
        if value > MAX_PARTS:
            raise ValueError(f"{key}: found {value}, expected at most {MAX_PARTS}")


def _check_sizes(where: str, config: PretrainedConfig) -> None:
    """Raise ValueError for impossible sizes that transformers accepts."""
    needed = ("vocab_size", "hidden_size", "num_hidden_layers")
    further = "num_attention_heads num_key_value_heads intermediate_size head_dim max_position_embeddings"
    for field in (*needed, *further.split()):
        key = getattr(config, "attribute_map", {}).get(field, field)
        stored = vars(config)  # `getattr` refuses sizes that vary between layers
        value: Any = stored[key] if key in stored else getattr(config, field, None)
        plain = isinstance(value, int) and not isinstance(value, bool)
        if (field in needed and not plain) or (plain and not 1 <= value <= LARGEST_SIZE):
            raise ValueError(f"{where}: {key}: found {value!r}, expected a whole number from 1 to {LARGEST_SIZE}")
    for key in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"):
        value = getattr(config, key, None)
        if value is not None and not (isinstance(value, int | float) and 0 <= value < 1):
            raise ValueError(f"{where}: {key}: found {value!r}, expected a number from 0 to less than 1")


def _check_quantization(name: str, config: PretrainedConfig) -> str:
    """Return the quantization method, or an empty string; raise ValueError if its package is missing."""
    settings = getattr(config, "quantization_config", None)
    if not settings:
        return ""
    method = str(settings.get("quant_method") if isinstance(settings, dict) else None)
    if method not in AUTO_QUANTIZATION_CONFIG_MAPPING:
        raise ValueError(
            f"{name}/config.json: quantization_config: quant_method: found {method!r}, expected a known method"
        )
    module = QUANTIZATION_MODULES.get(method, "torch")
    try:
        missing = importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # the parent of a dotted name is missing
        missing = True
    if missing:
        raise ValueError(
            f"{name}: found weights quantized with {method}, which needs a package that is not installed: "
            f"pip install {re.sub('[._]', '-', module)}"
        )
    return method


def _check_stored(name: str, empty: PreTrainedModel, plan: CheckpointPlan) -> None:
    """Raise ValueError for files with far fewer weights than the configured model, before allocating memory for it."""
    shapes = {key: shape for key, (shape, _) in plan.stored.items()}
    total = sum(math.prod(shape) for shape in shapes.values())
    wanted = sum(parameter.numel() for parameter in empty.parameters())
    if shapes and wanted > total * (MAX_PACKING if plan.quantized else MAX_EXCESS):
        expected = {key: tuple(tensor.shape) for key, tensor in empty.state_dict().items()}
        other = [(key, shapes[key], shape) for key, shape in expected.items() if shapes.get(key, shape) != shape]
        _refuse_misfits(name, empty, [] if other else [key for key in expected if key not in shapes], other, [])
        raise ValueError(f"{name}: found {total:,} stored values, expected the {wanted:,} that config.json specifies")
    weights = {key for key, _ in empty.named_parameters()}
    for key, (_, dtype) in plan.stored.items() if not plan.quantized else ():
        if dtype not in STORED_DTYPES and weights & {key, f"{empty.base_model_prefix}.{key}"}:
            raise ValueError(f"{name}: found {key} stored as {dtype}, expected {', '.join(STORED_DTYPES)}")


def _check_loaded(name: str, model: PreTrainedModel, report: dict[str, Any]) -> None:
    """Raise ValueError if the files do not contain exactly the model's weights.

    transformers initializes missing weights randomly and ignores surplus tensors. Its report omits those that an
    architecture declares as ignorable, such as tied heads and buffers from earlier versions. MTP layers are allowed.
    """
    unexpected = report["unexpected_keys"]
    unused = {key for key, _ in model.named_buffers()}  # buffers are computed, even if a file stores them
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
    """Raise ValueError for missing, mismatched (name, stored shape, model shape) or surplus tensors."""
    faults = []
    if missing:
        faults.append(f"missing {_abbreviated(missing)}")
    if mismatched:
        faults.append(_abbreviated([f"{key} of shape {list(a)} instead of {list(b)}" for key, a, b in mismatched]))
    if surplus:
        faults.append(f"unexpected {_abbreviated(surplus)}")
    if faults:
        raise ValueError(
            f"{name}: found weights that do not match config.json: {'; '.join(faults)}; expected every tensor of a "
            f"{type(model).__name__} with num_hidden_layers = {model.config.get_text_config().num_hidden_layers} "
            "and no others"
        )


def _abbreviated(keys: Iterable[str]) -> str:
    """List the first two names in natural order, followed by the number of remaining ones."""
    ordered = sorted(keys, key=lambda key: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", key)])
    more = f" and {len(ordered) - 2} more" if len(ordered) > 2 else ""
    return ", ".join(ordered[:2]) + more
