"""MTP layers in a target's own files as a draft head: one layer of the target's class. n = tokens, H = hidden size."""

from __future__ import annotations

import copy
import math
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM

from ...files.json_models import naming
from ..architectures import mtp_counts, mtp_tensors
from ..checkpoint import Plan, without_report
from ..finite_weights import not_finite
from ..language_model import context_of
from ..model_files import Source, explained
from ..weight_files import read_tensors
from .eagle3 import HeadSettings, Write

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PARTS = ("fc", "norm_embedding", "norm_hidden", "norm")  # beside the layer
QWEN = ("mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm")
DEEPSEEK = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
ENDS = ("embed_tokens.weight", "shared_head.head.weight")  # of DeepSeek's form: the target's, stored once more
LAYER = "model.layers.0."


class MtpFiles(NamedTuple):
    """MTP layers that are not read yet.

    Attributes:
        names: of a part, of the layer in a model that has no other, or of `ENDS` -> the stored name.
        size: bytes stored.
    """

    source: Source
    settings: HeadSettings
    names: dict[str, str]
    size: int


class MtpHead(nn.Module):
    """An MTP layer with what `Eagle3Head` has for the sessions of a head.

    Args:
        model: of the target's class with this layer only; its last norm is the head's.
        target_norm: the target's last norm, whose output a head reads.
        ends: the embedding and the output layer, [vocab, H].
    """

    def __init__(
        self, settings: HeadSettings, model: Any, target_norm: nn.Module, ends: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        super().__init__()
        self.settings, self.shared, self.tokens = settings, ends, None
        self.remarks: list[str] = []
        self.layer, self.norm, self.rotary = model.layers[0], model.norm, model.rotary_emb
        self.fc = nn.Linear(2 * settings.hidden, settings.hidden, bias=False, dtype=ends[0].dtype)
        self.norm_embedding, self.norm_hidden, self.target_norm = (copy.deepcopy(target_norm) for _ in range(3))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(ids, self.shared[0])

    def project(self, states: torch.Tensor) -> torch.Tensor:
        return self.target_norm(states)

    def forward(
        self,
        embeddings: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None = None,
        write: Write | None = None,
    ) -> torch.Tensor:
        """Return the output before the last norm, as `Eagle3Head.forward` does."""
        both = self.fc(torch.cat([self.norm_embedding(embeddings), self.norm_hidden(features)], -1))
        lead, hidden = both.shape[:-2], both.reshape(-1, *both.shape[-2:])
        if mask is None:
            mask = hidden.new_zeros(1, 1)  # else the layer takes a causal one
        output = self.layer(
            hidden, attention_mask=mask[None, None] if mask.dim() == 2 else mask,
            position_embeddings=self.rotary(hidden, positions[None]), position_ids=positions[None],
            past_key_values=None if write is None else _Written(write, lead),
        )  # fmt: skip
        return (output[0] if isinstance(output, tuple) else output).reshape(both.shape)

    def feedback(self, output: torch.Tensor) -> torch.Tensor:
        return self.norm(output) if self.settings.norm_output else output

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        return F.linear(self.norm(output), self.shared[1])


class _Written:
    """A cache of transformers that writes where a head's session says."""

    def __init__(self, write: Write, lead: torch.Size) -> None:
        self.write, self.lead = write, lead

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_, **__) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (new.reshape(*self.lead, *new.shape[1:]) for new in (keys, values))
        keys, values = self.write(0, keys, values)
        return keys.reshape(-1, *keys.shape[-3:]), values.reshape(-1, *values.shape[-3:])


def find_mtp(source: Source, plan: Plan) -> MtpFiles:
    """Return the MTP layers in a target's files, by the names of its tensors."""
    config, stored = plan.config.get_text_config(), plan.stored
    layers = int(config.num_hidden_layers)
    found = mtp_tensors(plan.config, stored)
    if not found:
        raise ValueError(f"{source.name}: found no MTP layers among its tensors, expected them for the draft mtp")
    own = re.compile(rf"(?:^|\.)layers\.{layers}\.(.+)")
    deepseek = {match[1]: key for key in found if (match := own.search(key)) and not key.startswith("mtp.")}
    kept = {key: key for key in found if key.startswith("mtp.")}
    parts, rest, start = (DEEPSEEK, deepseek, "") if "eh_proj.weight" in deepseek else (QWEN, kept, "mtp.layers.0.")
    if f"{parts[0]}.weight" not in rest:
        raise ValueError(
            f"{source.name}: found MTP layers with tensors such as {found[0][:80]}, expected the names of Qwen 3.5 "
            f"(mtp.fc) or of DeepSeek (model.layers.{layers}.eh_proj)"
        )
    names = {}
    for key, name in rest.items():
        part, _, last = key.rpartition(".")
        if part in parts and last == "weight":
            names[PARTS[parts.index(part)]] = name
        elif key in ENDS and not start:
            names[key] = name
        elif key.startswith(start):
            names[LAYER + key.removeprefix(start)] = name
    missing = [stored for part, stored in zip(PARTS, parts, strict=True) if part not in names]
    if missing:
        raise ValueError(f"{source.name}: found MTP layers without {', '.join(missing)}, expected every tensor of them")
    if counts := mtp_counts(plan.config) - {1}:
        raise ValueError(
            f"{source.name}/config.json: found {max(counts)} MTP layers, expected one, as no more can be read"
        )
    if left := sorted(set(found) - set(names.values())):
        raise ValueError(f"{source.name}: found no place for {left[0][:80]}, expected the tensors of one MTP layer")
    if plan.quantised:
        raise ValueError(f"{source.name}: found MTP layers beside {plan.quantised} weights, expected unquantised ones")
    hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
    settings = HeadSettings(
        form="MTP", hidden=hidden, inner=0, heads=heads, key_heads=heads, head_dim=hidden // heads, layers=1,
        vocab=int(config.vocab_size), draft_vocab=int(config.vocab_size), context=context_of(config), eps=0.0,
        target_hidden=hidden, reads=(layers,), rotation={}, norm_output=parts is QWEN,
    )  # fmt: skip
    size = sum(2 * math.prod(stored[name][0]) for name in names.values())
    return MtpFiles(source, settings, names, size)


def read_mtp(files: MtpFiles, target: PreTrainedModel) -> MtpHead:
    """Return MTP layers whose names were found, in the target's dtype and on its device."""
    source, settings, names, _ = files
    with explained(source.name, "the weights of its MTP layers"):
        stored = read_tensors(source, names.values())
        tensors = {part: stored[name] for part, name in names.items()}
    with naming(source.name):
        decoder: Any = target.get_decoder()
        if not hasattr(decoder, "norm") or not hasattr(decoder, "rotary_emb"):
            raise ValueError(f"found MTP layers in a {type(target).__name__}, which has no norm after its layers")
        own: Any = [target.get_input_embeddings().weight, target.get_output_embeddings().weight]  # type: ignore[union-attr]
        ends = [tensors.get(name, weights).detach().to(weights) for name, weights in zip(ENDS, own, strict=True)]
        shapes = {"fc": (settings.hidden, 2 * settings.hidden), **dict.fromkeys(PARTS[1:], (settings.hidden,))}
        shapes |= {name: tuple(weights.shape) for name, weights in zip(ENDS, own, strict=True) if name in tensors}
        for name, shape in shapes.items():
            if tuple(tensors[name].shape) != shape:
                raise ValueError(f"{names[name]}: found the shape {list(tensors[name].shape)}, expected {list(shape)}")
        for name, tensor in tensors.items():
            if not tensor.dtype.is_floating_point or not tensor.to(target.dtype).isfinite().all():
                raise ValueError(not_finite(names[name], tensor, target.dtype))
        model = _one_layer(target, tensors, names)
        head = MtpHead(settings, model, decoder.norm, (ends[0], ends[1]))
        for name in PARTS:
            getattr(head, name).weight = nn.Parameter(tensors[name].to(target.dtype, copy=True))
    return head.to(own[0].device).requires_grad_(False).eval()


def _one_layer(target: PreTrainedModel, tensors: dict[str, torch.Tensor], names: dict[str, str]) -> Any:
    """Return the decoder of a model of the target's class that has the MTP layer only."""
    config = copy.deepcopy(target.config.get_text_config())
    config.num_hidden_layers, config.vocab_size, config.pad_token_id = 1, 1, None  # its embedding is not used
    config.tie_word_embeddings = False
    for name, value in (("layer_types", ["full_attention"]), ("first_k_dense_replace", 0)):
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
    if getattr(config, "mlp_layer_types", None):
        config.mlp_layer_types = config.mlp_layer_types[-1:]
    weights = {name: tensor for name, tensor in tensors.items() if name.startswith(LAYER)}
    unused = tensors["fc"].new_zeros(1, config.hidden_size)
    weights |= {"model.norm.weight": tensors["norm"], "model.embed_tokens.weight": unused, "lm_head.weight": unused}
    cls: Any = AutoModelForCausalLM._model_mapping[type(config)]
    with without_report():
        model, report = cls.from_pretrained(
            None, config=config, state_dict=weights, dtype=target.dtype, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )  # fmt: skip
    faults = [f"no {key}" for key in report["missing_keys"] if key.startswith(LAYER)]
    faults += [f"no place for {names.get(key, key)}" for key in report["unexpected_keys"]]
    faults += [f"{key} of shape {list(a)} where it takes {list(b)}" for key, a, b in report["mismatched_keys"]]
    if faults:
        raise ValueError(
            f"found MTP layers that do not fit: {'; '.join(sorted(faults)[:3])}, expected a decoder layer of the target"
        )
    return model.model
