"""MTP layers in a target's files as a draft head: one layer of the target's class. H = hidden size."""

from __future__ import annotations

import copy
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from sequoia_core.files.json_models import prefix_errors
from sequoia_core.models.architectures import mtp_counts, mtp_tensors
from sequoia_core.models.checkpoint import CheckpointPlan, silence_load_report
from sequoia_core.models.finite_weights import non_finite_message
from sequoia_core.models.language_model import usable_context
from sequoia_core.models.model_files import Source, explain_load_errors
from sequoia_core.models.weight_files import read_tensors

from .eagle3 import HeadSettings, WriteCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Modules of an `MtpHead` other than its layer, and their names in files of the two forms.
MODULES = ("fc", "norm_embedding", "norm_hidden", "norm")
QWEN_NAMES = ("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
DEEPSEEK_NAMES = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
# Names of copies of the target's embedding and output layer in DeepSeek's form.
COPIED_ENDS = ("embed_tokens.weight", "shared_head.head.weight")
LAYER_PREFIX = "model.layers.0."


class MtpFiles(NamedTuple):
    """MTP layers that have not been read.

    Attributes:
        names: stored names by entry of `MODULES` or `COPIED_ENDS`, or by the key in a model with only this layer.
        size: size of the stored tensors, in bytes.
    """

    source: Source
    settings: HeadSettings
    names: dict[str, str]
    size: int


class MtpHead(nn.Module):
    """An MTP layer with the interface of `Eagle3Head`.

    Args:
        model: decoder of the target's class with only this layer; its final norm is the head's.
        target_norm: the target's final norm, whose output the head reads.
        ends: embedding and output layer, each [vocab, H].
    """

    def __init__(self, settings: HeadSettings, model: Any, target_norm: nn.Module, ends: tuple[Tensor, Tensor]) -> None:
        super().__init__()
        self.settings = settings
        # A tuple hides these weights from `parameters()`.
        self.shared = ends
        self.tokens = None
        self.remarks: list[str] = []
        self.layer = model.layers[0]
        self.norm = model.norm
        self.rotary = model.rotary_emb
        self.fc = nn.Linear(2 * settings.hidden, settings.hidden, bias=False, dtype=ends[0].dtype)
        self.norm_embedding, self.norm_hidden, self.target_norm = (copy.deepcopy(target_norm) for _ in range(3))

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.shared[0])

    def project(self, states: Tensor) -> Tensor:
        return self.target_norm(states)

    def forward(
        self,
        embeddings: Tensor,
        features: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        write: WriteCache | None = None,
    ) -> Tensor:
        """Return the output before the final norm, [.., n, H], like `Eagle3Head.forward`."""
        inputs = self.fc(torch.cat([self.norm_embedding(embeddings), self.norm_hidden(features)], -1))
        hidden = inputs.reshape(-1, *inputs.shape[-2:])
        # Without a mask the layer would use a causal one.
        if mask is None:
            mask = hidden.new_zeros(1, 1)
        output = self.layer(
            hidden,
            attention_mask=mask[None, None] if mask.dim() == 2 else mask,
            position_embeddings=self.rotary(hidden, positions[None]),
            position_ids=positions[None],
            past_key_values=None if write is None else _SessionCache(write, inputs.shape[:-2]),
        )
        return (output[0] if isinstance(output, tuple) else output).reshape(inputs.shape)

    def feedback(self, output: Tensor) -> Tensor:
        return self.norm(output) if self.settings.norm_output else output

    def logits(self, output: Tensor) -> Tensor:
        return F.linear(self.norm(output), self.shared[1])


class _SessionCache:
    """A transformers cache that writes to the cache of a head's session."""

    def __init__(self, write: WriteCache, batch_shape: torch.Size) -> None:
        self.write = write
        self.batch_shape = batch_shape

    def update(self, keys: Tensor, values: Tensor, *_, **__) -> tuple[Tensor, Tensor]:
        keys, values = (new.reshape(*self.batch_shape, *new.shape[1:]) for new in (keys, values))
        keys, values = self.write(0, keys, values)
        return keys.reshape(-1, *keys.shape[-3:]), values.reshape(-1, *values.shape[-3:])


def find_mtp(source: Source, plan: CheckpointPlan) -> MtpFiles:
    """Return the MTP layers in a target's files, identified by their tensor names."""
    config = plan.config.get_text_config()
    layers = int(config.num_hidden_layers)
    stored = mtp_tensors(plan.config, plan.stored)
    if not stored:
        raise ValueError(f"{source.name}: found no MTP layers among its tensors, expected one for the draft mtp")
    names, is_qwen = _name_modules(source.name, stored, layers)
    if counts := mtp_counts(plan.config) - {1}:
        raise ValueError(
            f"{source.name}/config.json: found {max(counts)} MTP layers, expected one: more are not supported"
        )
    if unnamed := sorted(set(stored) - set(names.values())):
        raise ValueError(f"{source.name}: found the tensor {unnamed[0][:80]}, expected only those of one MTP layer")
    if plan.quantized:
        raise ValueError(f"{source.name}: found MTP layers with {plan.quantized} weights, expected unquantized ones")
    hidden = int(config.hidden_size)
    heads = int(config.num_attention_heads)
    settings = HeadSettings(
        form="MTP",
        hidden=hidden,
        inner=0,
        heads=heads,
        key_heads=heads,
        head_dim=hidden // heads,
        layers=1,
        vocab=int(config.vocab_size),
        draft_vocab=int(config.vocab_size),
        context=usable_context(config),
        eps=0.0,
        target_hidden=hidden,
        reads=(layers,),
        rotation={},
        norm_output=is_qwen,
    )
    size = sum(2 * math.prod(plan.stored[name][0]) for name in names.values())
    return MtpFiles(source, settings, names, size)


def _name_modules(source: str, stored: list[str], layers: int) -> tuple[dict[str, str], bool]:
    """Return stored names (see `MtpFiles`) and whether they have the form of Qwen 3.5."""
    pattern = re.compile(rf"(?:^|\.)layers\.{layers}\.(.+)")
    qwen = {key: key for key in stored if key.startswith("mtp.")}
    deepseek = {match[1]: key for key in stored if (match := pattern.search(key)) and key not in qwen}
    is_qwen = "eh_proj.weight" not in deepseek
    modules, keys, prefix = (QWEN_NAMES, qwen, "mtp.layers.0.") if is_qwen else (DEEPSEEK_NAMES, deepseek, "")
    if f"{modules[0]}.weight" not in keys:
        raise ValueError(
            f"{source}: found MTP layers with tensors such as {stored[0][:80]}, expected names as in Qwen 3.5 "
            f"(mtp.fc) or DeepSeek (model.layers.{layers}.eh_proj)"
        )
    names = {}
    for key, name in keys.items():
        module = key.removesuffix(".weight")
        if module in modules:
            names[MODULES[modules.index(module)]] = name
        elif key in COPIED_ENDS and not is_qwen:
            names[key] = name
        elif key.startswith(prefix):
            names[LAYER_PREFIX + key.removeprefix(prefix)] = name
    missing = [stored_name for module, stored_name in zip(MODULES, modules, strict=True) if module not in names]
    if missing:
        raise ValueError(f"{source}: found MTP layers without {', '.join(missing)}, expected all of their tensors")
    return names, is_qwen


def read_mtp(files: MtpFiles, target: PreTrainedModel) -> MtpHead:
    """Read MTP layers in the target's dtype and on its device."""
    source, settings, names, _ = files
    with explain_load_errors(source.name, "the weights of its MTP layers"):
        stored = read_tensors(source, names.values())
        tensors = {module: stored[name] for module, name in names.items()}
    with prefix_errors(source.name):
        decoder: Any = target.get_decoder()
        if not hasattr(decoder, "norm") or not hasattr(decoder, "rotary_emb"):
            raise ValueError(f"found MTP layers in a {type(target).__name__}, expected a decoder with a final norm")
        ends: Any = [target.get_input_embeddings().weight, target.get_output_embeddings().weight]  # type: ignore[union-attr]
        shapes = {"fc": (settings.hidden, 2 * settings.hidden), **dict.fromkeys(MODULES[1:], (settings.hidden,))}
        shapes |= {name: tuple(end.shape) for name, end in zip(COPIED_ENDS, ends, strict=True) if name in tensors}
        for name, shape in shapes.items():
            if tuple(tensors[name].shape) != shape:
                raise ValueError(f"{names[name]}: found shape {list(tensors[name].shape)}, expected {list(shape)}")
        for name, tensor in tensors.items():
            if not tensor.dtype.is_floating_point or not tensor.to(target.dtype).isfinite().all():
                raise ValueError(non_finite_message(names[name], tensor, target.dtype))
        embedding, output = (
            tensors.get(name, end).detach().to(end) for name, end in zip(COPIED_ENDS, ends, strict=True)
        )
        model = _load_layer(target, tensors, names)
        head = MtpHead(settings, model, decoder.norm, (embedding, output))
        for name in MODULES:
            getattr(head, name).weight = nn.Parameter(tensors[name].to(target.dtype, copy=True))
    return head.to(ends[0].device).requires_grad_(False).eval()


def _load_layer(target: PreTrainedModel, tensors: dict[str, Tensor], names: dict[str, str]) -> Any:
    """Return the decoder of a model of the target's class with only the MTP layer."""
    config = copy.deepcopy(target.config.get_text_config())
    config.num_hidden_layers = 1
    # The model's embedding is not used.
    config.vocab_size = 1
    config.pad_token_id = None
    config.tie_word_embeddings = False
    for name, value in (("layer_types", ["full_attention"]), ("first_k_dense_replace", 0)):
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
    if getattr(config, "mlp_layer_types", None):
        config.mlp_layer_types = config.mlp_layer_types[-1:]
    weights = {name: tensor for name, tensor in tensors.items() if name.startswith(LAYER_PREFIX)}
    unused = tensors["fc"].new_zeros(1, config.hidden_size)
    weights |= {"model.norm.weight": tensors["norm"], "model.embed_tokens.weight": unused, "lm_head.weight": unused}
    model_class: Any = AutoModelForCausalLM._model_mapping[type(config)]
    with silence_load_report():
        model, report = model_class.from_pretrained(
            None,
            config=config,
            state_dict=weights,
            dtype=target.dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    faults = [f"no {key}" for key in report["missing_keys"] if key.startswith(LAYER_PREFIX)]
    faults += [f"an unexpected {names.get(key, key)}" for key in report["unexpected_keys"]]
    faults += [f"{key} of shape {list(a)} instead of {list(b)}" for key, a, b in report["mismatched_keys"]]
    if faults:
        raise ValueError(
            f"found mismatched MTP layers: {'; '.join(sorted(faults)[:3])}, expected a decoder layer like the target's"
        )
    return model.model
