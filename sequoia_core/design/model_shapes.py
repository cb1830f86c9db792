"""The sizes of a Llama-like decoder's parts, and what follows from them: parameters, bytes, operations."""

import os
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ..files.dtypes import bytes_of
from ..files.json_models import checked, naming
from ..files.model_names import ASSETS, model_name
from ..files.safe_files import read_bytes, read_json

MAX_FILE_BYTES = 1_000_000
Size = Annotated[int, Field(ge=1, le=2**24)]
OfExperts = Annotated[int, Field(ge=0, le=2**24)]
WITH_EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe")
EXPERT_FIELDS = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")


class ModelShape(BaseModel):
    """The sizes of a decoder with gated units, rotary positions and two norms a layer, spelled as in its config.json.

    Args:
        num_experts, num_experts_per_tok: of a layer, and that each token is sent to; 0 for a model without.
        moe_intermediate_size, shared_expert_intermediate_size: of an expert, and of what all tokens are sent to.
        name: a name of the shipped table, or the file it was read from.
        model: the name of such a model once loaded (`model_names.model_name`); empty where it is unknown.
    """

    model_config = ConfigDict(strict=True, frozen=True)
    # first: other families spell their sizes in other ways
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
    num_experts: OfExperts = 0
    num_experts_per_tok: OfExperts = 0
    moe_intermediate_size: OfExperts = 0
    shared_expert_intermediate_size: OfExperts = 0
    name: str
    model: str = ""

    @property
    def embedding(self) -> int:
        """Numbers of the embedding, and of the head."""
        return self.vocab_size * self.hidden_size

    @property
    def layer_products(self) -> int:
        """Weights of one layer that each token is multiplied with."""
        attention = self.hidden_size * self.head_dim * 2 * (self.num_attention_heads + self.num_key_value_heads)
        if not self.num_experts:
            return attention + 3 * self.hidden_size * self.intermediate_size
        shared = self.shared_expert_intermediate_size  # with a gate of its own
        routed = self.hidden_size * (self.num_experts + 3 * shared + (shared > 0))
        return attention + routed + self.num_experts_per_tok * self.expert_parameters

    @property
    def expert_parameters(self) -> int:
        return 3 * self.hidden_size * self.moe_intermediate_size

    @property
    def layer_parameters(self) -> int:
        """All weights of one layer."""
        biases = (self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim
        besides = {"qwen2": biases, "qwen3": 2 * self.head_dim}
        resting = (self.num_experts - self.num_experts_per_tok) * self.expert_parameters
        family = self.model_type.removesuffix("_moe")
        return self.layer_products + resting + 2 * self.hidden_size + besides.get(family, 0)

    def experts_read(self, tokens: int | np.ndarray, alike: float = 0.0) -> np.ndarray:
        """Return how many experts of a layer a pass over so many tokens reads, float64 of their shape.

        `alike` goes from 0, where tokens choose independently of each other, to 1, where all choose the same.
        """
        count, active = self.num_experts, self.num_experts_per_tok
        independent = count * (1 - (1 - active / max(count, 1)) ** np.asarray(tokens, dtype=np.float64))
        return active + (1 - alike) * (independent - active)

    @property
    def parameters(self) -> int:
        return self.num_hidden_layers * self.layer_parameters + self.resident_parameters

    @property
    def resident_parameters(self) -> int:
        """Weights outside the layers, which stay on the device when layers are streamed."""
        return self.embedding * (1 if self.tie_word_embeddings else 2) + self.hidden_size

    @property
    def read_parameters(self) -> int:
        """Weights that a pass reads: all but an untied embedding."""
        return self.parameters - (0 if self.tie_word_embeddings else self.embedding)

    def weight_bytes(self, dtype: str) -> int:
        return self.parameters * bytes_of(dtype)

    def kv_bytes(self, dtype: str) -> int:
        """Return the bytes of the keys and values of one token."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * bytes_of(dtype)

    def operations_per_token(self, visible: int | np.ndarray) -> int | np.ndarray:
        """Return the operations for one token that sees `visible` tokens (any shape), itself included."""
        attention = 4 * self.num_hidden_layers * self.num_attention_heads * self.head_dim * visible
        return 2 * (self.num_hidden_layers * self.layer_products + self.embedding) + attention

    def to_config(self) -> dict[str, Any]:
        """Return the sizes as a config.json spells them."""
        return self.model_dump(exclude={"name", "model", *(() if self.num_experts else EXPERT_FIELDS)})


@cache
def shipped_table(name: str) -> dict[str, dict[str, Any]]:
    """Return a table of the assets, "shapes" or "devices": name -> numbers and where they were found."""
    content = read_json(read_bytes(ASSETS / f"{name}.json"))
    assert (content["format"], content["version"]) == (f"sequoia-{name}", 1), "the table ships with the code"
    return content[name]


def find_shape(text: str) -> ModelShape:
    """Return the shape of a name: one of the table, a config.json, or a folder that holds one."""
    for name, fields in shipped_table("shapes").items():
        if text.lower() in (name, fields["model"].lower()):
            return shape_of(fields, name, model=fields["model"])
    path = os.path.expanduser(text)
    path = os.path.join(path, "config.json") if os.path.isdir(path) else path
    if not os.path.isfile(path):
        raise ValueError(
            f"{text[:200] or repr(text)}: found no such shape, expected a config.json, a folder that holds one, or "
            f"one of {', '.join(shipped_table('shapes'))}"
        )
    content = read_bytes(path, limit=MAX_FILE_BYTES)
    with naming(path):
        return shape_of(read_json(content), path, model=model_name(Path(path).parent))


def shape_of(fields: Any, name: str, *, model: str = "") -> ModelShape:
    """Return the shape in the settings of a config.json, with a name and that of the model it is of."""
    if not isinstance(fields, dict):
        raise ValueError(f"found a JSON {type(fields).__name__}, expected a JSON object")
    for key in ("attention_bias", "mlp_bias"):
        if fields.get(key):
            raise ValueError(f"{key}: found {str(fields[key])[:40]}, expected false: its biases would not be counted")
    if fields.get("mlp_only_layers") or fields.get("decoder_sparse_step", 1) != 1:
        raise ValueError("decoder_sparse_step, mlp_only_layers: found layers without experts, expected them in all")
    heads, hidden = fields.get("num_attention_heads"), fields.get("hidden_size")
    sizes = {**fields, "name": name, "model": model}
    if fields.get("model_type") == "mixtral":  # which has other names for two
        sizes |= {"num_experts": fields.get("num_local_experts", fields.get("num_experts", 0))}
        sizes |= {"moe_intermediate_size": fields.get("intermediate_size")}
    sizes["num_key_value_heads"] = fields.get("num_key_value_heads") or heads
    if not fields.get("head_dim") and isinstance(heads, int) and isinstance(hidden, int) and heads > 0:
        if hidden % heads:
            raise ValueError(f"hidden_size: found {hidden}, expected a multiple of {heads} heads")
        sizes["head_dim"] = hidden // heads
    shape = checked(ModelShape, sizes)
    known = 0 < shape.num_experts_per_tok <= shape.num_experts and shape.moe_intermediate_size > 0
    if (shape.model_type in WITH_EXPERTS) != known:
        found = [getattr(shape, field) for field in EXPERT_FIELDS[:3]]
        wanted = "sizes above 0" if shape.model_type in WITH_EXPERTS else f"none in a {shape.model_type}"
        raise ValueError(f"{', '.join(EXPERT_FIELDS[:3])}: found {found}, expected {wanted}")
    if shape.num_attention_heads % shape.num_key_value_heads:
        raise ValueError(
            f"num_key_value_heads: found {shape.num_key_value_heads}, expected a divisor of "
            f"{shape.num_attention_heads} heads"
        )
    return shape
