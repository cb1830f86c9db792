"""The dimensions of Llama-like decoders, and the parameter, byte and operation counts that follow from them."""

import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from sequoia_core.files.dtypes import dtype_bytes
from sequoia_core.files.json_models import prefix_errors, validate_model
from sequoia_core.files.model_names import ASSETS, model_name
from sequoia_core.files.safe_files import read_bytes, read_json

MAX_CONFIG_BYTES = 1_000_000
Size = Annotated[int, Field(ge=1, le=2**24)]
ExpertCount = Annotated[int, Field(ge=0, le=2**24)]
EXPERT_MODEL_TYPES = ("mixtral", "qwen2_moe", "qwen3_moe")
EXPERT_FIELDS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")


class ModelShape(BaseModel):
    """The dimensions of a decoder with gated MLPs, rotary embeddings and two norms per layer, named as in config.json.

    Args:
        num_experts, num_experts_per_tok: number of experts per layer and per token; 0 for a dense model.
        moe_intermediate_size, shared_expert_intermediate_size: intermediate sizes of a routed expert and of the shared
            expert; 0 if there is none.
        name: name in the shipped table, or path of the config.json.
        model: name under which a model with this shape is recorded (`model_names.model_name`); empty if unknown.
    """

    model_config = ConfigDict(strict=True, frozen=True)
    # Validate the model type first, because other families name their dimensions differently.
    model_type: Literal["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe"]
    hidden_size: Size
    num_hidden_layers: Annotated[int, Field(ge=1, le=10_000)]
    num_attention_heads: Size
    num_key_value_heads: Size
    head_dim: Size
    intermediate_size: Size
    vocab_size: Size
    max_position_embeddings: Annotated[int, Field(ge=1)] = 2048
    tie_word_embeddings: bool = False
    num_experts: ExpertCount = 0
    num_experts_per_tok: ExpertCount = 0
    moe_intermediate_size: ExpertCount = 0
    shared_expert_intermediate_size: ExpertCount = 0
    name: str
    model: str = ""

    @property
    def embedding(self) -> int:
        """Number of parameters in the embedding, which is also the number in the output head."""
        return self.vocab_size * self.hidden_size

    @property
    def layer_products(self) -> int:
        """Number of weights per layer that each token is multiplied by."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_attention_heads + self.num_key_value_heads)
        if not self.num_experts:
            return attention + 3 * self.hidden_size * self.intermediate_size
        shared = self.shared_expert_intermediate_size
        routers = self.num_experts + (shared > 0)  # The shared expert has its own gate.
        return attention + self.hidden_size * (routers + 3 * shared) + self.num_experts_per_tok * self.expert_parameters

    @property
    def expert_parameters(self) -> int:
        return 3 * self.hidden_size * self.moe_intermediate_size

    @property
    def layer_parameters(self) -> int:
        """Number of parameters per layer."""
        biases = (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim
        extra = {"qwen2": biases, "qwen3": 2 * self.head_dim}
        unused = (self.num_experts - self.num_experts_per_tok) * self.expert_parameters
        family = self.model_type.removesuffix("_moe")
        return self.layer_products + unused + 2 * self.hidden_size + extra.get(family, 0)

    def experts_read(self, tokens: int | np.ndarray, alike: float = 0.0) -> np.ndarray:
        """Return the expected number of experts per layer that a pass over `tokens` tokens reads, float64.

        `alike` ranges from 0, if tokens choose their experts independently, to 1, if all choose the same experts.
        """
        count, active = self.num_experts, self.num_experts_per_tok
        independent = count * (1 - (1 - active / max(count, 1)) ** np.asarray(tokens, dtype=np.float64))
        return active + (1 - alike) * (independent - active)

    @property
    def parameters(self) -> int:
        return self.num_hidden_layers * self.layer_parameters + self.resident_parameters

    @property
    def resident_parameters(self) -> int:
        """Number of parameters outside the layers; they stay on the device when layers are streamed."""
        return self.embedding * (1 if self.tie_word_embeddings else 2) + self.hidden_size

    @property
    def read_parameters(self) -> int:
        """Number of parameters that a pass reads: all except those of an untied embedding."""
        return self.parameters - (0 if self.tie_word_embeddings else self.embedding)

    def weight_bytes(self, dtype: str) -> int:
        return self.parameters * dtype_bytes(dtype)

    def kv_bytes(self, dtype: str) -> int:
        """Return the size of one token's keys and values in bytes."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * dtype_bytes(dtype)

    def operations_per_token(self, visible: int | np.ndarray) -> int | np.ndarray:
        """Return the number of operations for a token that attends to `visible` tokens, itself included (any shape)."""
        attention = 4 * self.num_hidden_layers * self.num_attention_heads * self.head_dim * visible
        return 2 * (self.num_hidden_layers * self.layer_products + self.embedding) + attention

    def to_config(self) -> dict[str, Any]:
        """Return the dimensions under their names in config.json."""
        return self.model_dump(exclude={"name", "model", *(() if self.num_experts else EXPERT_FIELDS)})


@cache
def shipped_table(name: str) -> dict[str, dict[str, Any]]:
    """Return a shipped table, "shapes" or "devices", which maps names to values and their sources."""
    content = read_json(read_bytes(ASSETS / f"{name}.json"))
    return content[name]


def find_shape(text: str) -> ModelShape:
    """Return a shape by its name in the shipped table, or from a config.json or a folder that contains one."""
    for name, fields in shipped_table("shapes").items():
        if text.lower() in (name, fields["model"].lower()):
            return shape_from_config(fields, name, model=fields["model"])
    path = os.path.expanduser(text)
    path = os.path.join(path, "config.json") if os.path.isdir(path) else path
    if not os.path.isfile(path):
        raise ValueError(
            f"{text[:200] or repr(text)}: unknown shape, expected a config.json, a folder that contains one, or "
            f"one of {', '.join(shipped_table('shapes'))}"
        )
    content = read_bytes(path, limit=MAX_CONFIG_BYTES)
    with prefix_errors(path):
        return shape_from_config(read_json(content), path, model=model_name(Path(path).parent))


def shape_from_config(fields: Any, name: str, *, model: str = "") -> ModelShape:
    """Return the shape described by the contents of a config.json."""
    if not isinstance(fields, dict):
        raise ValueError(f"found a JSON {type(fields).__name__}, expected a JSON object")
    for key in ("attention_bias", "mlp_bias"):
        if fields.get(key):
            raise ValueError(f"{key}: found {str(fields[key])[:40]}, expected false: biases are not modelled")
    if fields.get("mlp_only_layers") or fields.get("decoder_sparse_step", 1) != 1:
        raise ValueError(
            "decoder_sparse_step, mlp_only_layers: found layers without experts, expected experts in all layers"
        )
    heads, hidden = fields.get("num_attention_heads"), fields.get("hidden_size")
    sizes = {**fields, "name": name, "model": model}
    if fields.get("model_type") == "mixtral":  # Mixtral names two dimensions differently.
        sizes |= {"num_experts": fields.get("num_local_experts", fields.get("num_experts", 0))}
        sizes |= {"moe_intermediate_size": fields.get("intermediate_size")}
    sizes["num_key_value_heads"] = fields.get("num_key_value_heads") or heads
    if not fields.get("head_dim") and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        if hidden % heads:
            raise ValueError(f"hidden_size: found {hidden}, expected a multiple of {heads} heads")
        sizes["head_dim"] = hidden // heads
    shape = validate_model(ModelShape, sizes)
    known = 0 < shape.num_experts_per_tok <= shape.num_experts and shape.moe_intermediate_size > 0
    if (shape.model_type in EXPERT_MODEL_TYPES) != known:
        found = [getattr(shape, field) for field in EXPERT_FIELDS[:3]]
        wanted = "sizes above 0" if shape.model_type in EXPERT_MODEL_TYPES else f"zeros for {shape.model_type}"
        raise ValueError(f"{', '.join(EXPERT_FIELDS[:3])}: found {found}, expected {wanted}")
    if shape.num_attention_heads % shape.num_key_value_heads:
        raise ValueError(
            f"num_key_value_heads: found {shape.num_key_value_heads}, expected a divisor of "
            f"{shape.num_attention_heads} heads"
        )
    return shape
