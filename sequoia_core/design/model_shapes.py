"""The sizes of a model's parts, and what follows from them: parameters, bytes, operations.

Knows decoders built like Llama, from a config.json or by name; reads no weights and needs no torch. How long a pass
takes depends on these sizes and on no trained number.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..files.model_names import DEMO_PAIR, model_name
from ..files.safe_files import checked, read_bytes, read_json

FORMAT, VERSION = "sequoia-shapes", 1
NAMED_SHAPES = DEMO_PAIR.parent / "shapes.json"
DEMO_SHAPES = {"demo-target": DEMO_PAIR / "target", "demo-draft": DEMO_PAIR / "draft"}
MAX_FILE_BYTES = 1_000_000
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # of one number
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")  # gated units, rotary positions, two norms a layer
LARGEST_SIZE, MOST_LAYERS = 2**24, 10_000


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a decoder of one of `FAMILIES`.

    Args:
        name: what the shape is called: a name of the shipped table, or the file it was read from.
        family: the `model_type` of its config.json.
        hidden: numbers that stand for a token between layers.
        heads, key_value_heads, head_size: of attention; several heads may share keys and values.
        intermediate: width of the gated unit between two layers.
        vocabulary: rows of the embedding and of the logits.
        context: positions.
        tied: whether the embedding is the head too, one copy of both.
        model: what a model of this shape is called once it is loaded (`model_names.model_name`), so that times can be
            compared with measurements; empty where nobody has said.

    Raises:
        ValueError: naming the size, what was found and what was expected.
    """

    name: str
    family: str
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    context: int
    tied: bool
    model: str = ""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"model_type: found {self.family[:40]!r}, expected one of {', '.join(FAMILIES)}")
        limits = {"layers": MOST_LAYERS}
        for size in ("hidden", "layers", "heads", "key_value_heads", "head_size", "intermediate", "vocabulary"):
            value, most = getattr(self, size), limits.get(size, LARGEST_SIZE)
            if not 1 <= value <= most:
                raise ValueError(f"{size}: found {value}, expected 1 to {most:,}")
        if self.heads % self.key_value_heads:
            raise ValueError(f"key_value_heads: found {self.key_value_heads}, expected a divisor of {self.heads} heads")
        if self.context < 1:
            raise ValueError(f"context: found {self.context}, expected at least 1 position")

    @property
    def embedding(self) -> int:
        """Numbers of the embedding; the head has as many."""
        return self.vocabulary * self.hidden

    @property
    def layer_products(self) -> int:
        """Weights of one layer that each token is multiplied with."""
        attention = self.hidden * self.head_size * 2 * (self.heads + self.key_value_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def layer_parameters(self) -> int:
        """All weights of one layer: its products, two norms, and what the family has besides."""
        besides = {"qwen2": (self.heads + 2 * self.key_value_heads) * self.head_size, "qwen3": 2 * self.head_size}
        return self.layer_products + 2 * self.hidden + besides.get(self.family, 0)

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.resident_parameters

    @property
    def resident_parameters(self) -> int:
        """Weights outside the layers, which stay on the device when layers are streamed."""
        return self.embedding * (1 if self.tied else 2) + self.hidden

    @property
    def read_parameters(self) -> int:
        """Weights that a pass reads: all but an embedding of its own, of which it looks up single rows."""
        return self.parameters - (0 if self.tied else self.embedding)

    def weight_bytes(self, dtype: str) -> int:
        """Return the bytes of all weights in a number format.

        Raises:
            ValueError: for a format that is not among `BYTES`.
        """
        return self.parameters * bytes_of(dtype)

    def kv_bytes(self, dtype: str) -> int:
        """Return the bytes of the keys and values of one token."""
        return 2 * self.layers * self.key_value_heads * self.head_size * bytes_of(dtype)

    def operations_per_token(self, visible: int | np.ndarray) -> int | np.ndarray:
        """Return the additions and multiplications for one token that sees `visible` tokens, itself included.

        Args:
            visible: tokens, any shape.
        """
        attention = 4 * self.layers * self.heads * self.head_size * visible
        return 2 * (self.layers * self.layer_products + self.embedding) + attention

    def to_config(self) -> dict[str, Any]:
        """Return the sizes as a config.json spells them."""
        return {
            "model_type": self.family, "hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.key_value_heads,
            "head_dim": self.head_size, "intermediate_size": self.intermediate, "vocab_size": self.vocabulary,
            "max_position_embeddings": self.context, "tie_word_embeddings": self.tied,
        }  # fmt: skip


def bytes_of(dtype: str) -> int:
    """Return the bytes of one number of a format.

    Raises:
        ValueError: for a format that is not among `BYTES`.
    """
    if dtype not in BYTES:
        raise ValueError(f"dtype: found {str(dtype)[:40]!r}, expected one of {', '.join(BYTES)}")
    return BYTES[dtype]


def find_shape(text: str) -> ModelShape:
    """Return the shape that a person named: one of the table, a config.json, or a folder that holds one.

    Raises:
        ValueError: for a name that is none of these, or a file that describes no such model.
    """
    named = _named()
    by_model = {entry["model"].lower(): name for name, entry in named.items()}
    name = by_model.get(text.lower(), text.lower())
    if name in named:
        return shape_of(named[name], name, model=named[name]["model"])
    if name in DEMO_SHAPES:
        return read_shape(DEMO_SHAPES[name] / "config.json", name=name)
    path = Path(text).expanduser()
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError:  # a name too long for the system
        is_folder = is_file = False
    if not (is_folder or is_file):
        raise ValueError(
            f"{text[:200]}: found no such shape, expected a config.json, a folder that holds one, or one of "
            f"{', '.join(shape_names())}"
        )
    return read_shape(path / "config.json" if is_folder else path)


def shape_names() -> list[str]:
    """Return the names that `find_shape` knows."""
    return [*_named(), *DEMO_SHAPES]


def read_shape(path: str | Path, *, name: str | None = None) -> ModelShape:
    """Read a model's config.json.

    Args:
        name: what to call the shape; by default the file's path.

    Raises:
        ValueError: naming the file, what was found and what was expected.
    """
    content = read_bytes(path, limit=MAX_FILE_BYTES)
    try:
        fields = read_json(content)
        if not isinstance(fields, dict):
            raise ValueError(f"found a JSON {type(fields).__name__}, expected a JSON object")
        return shape_of(fields, name or str(path), model=model_name(Path(path).parent))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def shape_of(fields: dict[str, Any], name: str, *, model: str = "") -> ModelShape:
    """Return the shape that the settings of a config.json describe.

    Args:
        name: what to call the shape; model: the name of the model it is of.

    Raises:
        ValueError: saying what was found and what was expected.
    """
    family = fields.get("model_type")
    if family not in FAMILIES:  # said first: other families spell their sizes in other ways
        raise ValueError(f"model_type: found {str(family)[:40]!r}, expected one of {', '.join(FAMILIES)}")
    for key in ("attention_bias", "mlp_bias"):
        if fields.get(key):
            raise ValueError(f"{key}: found {str(fields[key])[:40]}, expected false: its biases would not be counted")
    found = checked(_schema(), fields)
    if found.head_dim is None and found.hidden_size % found.num_attention_heads:
        raise ValueError(
            f"hidden_size: found {found.hidden_size}, expected a multiple of {found.num_attention_heads} heads"
        )
    return ModelShape(
        name=name, family=family, hidden=found.hidden_size, layers=found.num_hidden_layers,
        heads=found.num_attention_heads, key_value_heads=found.num_key_value_heads or found.num_attention_heads,
        head_size=found.head_dim or found.hidden_size // found.num_attention_heads,
        intermediate=found.intermediate_size, vocabulary=found.vocab_size, context=found.max_position_embeddings,
        tied=found.tie_word_embeddings, model=model,
    )  # fmt: skip


@cache
def _named() -> dict[str, dict[str, Any]]:
    """Return the shipped table: name -> sizes, the model they are of and where they were found."""
    content = read_json(read_bytes(NAMED_SHAPES, limit=MAX_FILE_BYTES))
    assert (content["format"], content["version"]) == (FORMAT, VERSION), "the table ships with the code"
    return content["shapes"]


@cache
def _schema():
    """Return the pydantic model of the settings that are read from a config.json; all others are passed over."""
    from typing import Annotated

    from pydantic import BaseModel, ConfigDict, Field

    size = Annotated[int, Field(ge=1, le=LARGEST_SIZE)]

    class Schema(BaseModel):
        model_config = ConfigDict(strict=True)
        hidden_size: size
        num_hidden_layers: size
        num_attention_heads: size
        num_key_value_heads: size | None = None
        head_dim: size | None = None
        intermediate_size: size
        vocab_size: size
        max_position_embeddings: size = 2048
        tie_word_embeddings: bool = False

    return Schema
