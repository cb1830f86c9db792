"""The config.json of an EAGLE-3 head, in the form first published or in the form of the `speculators` package."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from sequoia_core.files.file_model import FileModel
from sequoia_core.files.json_models import validate_model
from sequoia_core.models.architectures import check_rotation
from sequoia_core.models.plain_decoder import FIXED_ROTATIONS

from .eagle3 import HeadSettings

Size = Annotated[int, Field(ge=1, le=2**24)]
LayerIds = Annotated[list[Annotated[int, Field(ge=0, le=10_000)]], Field(min_length=1, max_length=16)]
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
ROPE_FIELDS = ("rope_theta", "rope_scaling", "rope_parameters")


class LayerFile(FileModel):
    """The decoder layers of a head, with the fields of a Llama or Qwen 3 config."""

    model_type: str = "llama"
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    num_hidden_layers: Annotated[int, Field(ge=1, le=64)] = 1
    rms_norm_eps: Annotated[float, Field(ge=0, lt=1)]
    max_position_embeddings: Size
    vocab_size: Size
    hidden_act: str = "silu"
    rope_theta: Annotated[float, Field(gt=0)] | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    mlp_bias: bool = False
    layer_types: list[str] | None = None


class SharedOptions(FileModel):
    """Options with the same names in both forms."""

    eagle_aux_hidden_state_layer_ids: LayerIds | None = None
    draft_vocab_size: Size | None = None
    target_hidden_size: Size | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


class EagleFile(FileModel):
    eagle_aux_hidden_state_layer_ids: LayerIds | None = None
    use_aux_hidden_state: bool = True


class PublishedFile(LayerFile, SharedOptions):
    num_aux_hidden_states: Annotated[int, Field(ge=1, le=16)] | None = None
    eagle_config: EagleFile | None = None


class SpeculatorsFile(SharedOptions):
    transformer_layer_config: LayerFile


def head_settings(fields: Mapping[str, Any]) -> HeadSettings:
    """Return an EAGLE-3 head's settings, given the fields of its config.json."""
    layer: LayerFile
    file: PublishedFile | SpeculatorsFile
    if fields.get("speculators_model_type"):
        # `speculators` defaults to false, vLLM to true.
        if "norm_before_residual" not in fields:
            raise ValueError("norm_before_residual: found nothing, expected true or false (programs' defaults differ)")
        file = validate_model(SpeculatorsFile, dict(fields))
        layer = file.transformer_layer_config
        reads = file.eagle_aux_hidden_state_layer_ids
        if reads is None:
            raise ValueError(
                f"{LAYER_IDS}: found nothing, expected the indices of the target's states that the head reads (by "
                "default, the package trains heads on 2, n // 2 and n - 3 of n layers)"
            )
    else:
        file = layer = validate_model(PublishedFile, dict(fields))
        reads = _published_ids(file)
    _check_layer(layer)
    heads = layer.num_attention_heads
    key_heads = layer.num_key_value_heads or heads
    if heads % key_heads:
        raise ValueError(f"num_key_value_heads: found {key_heads}, expected a divisor of {heads}")
    head_dim = layer.head_dim or layer.hidden_size // heads
    if head_dim % 2 or not head_dim:
        raise ValueError(f"head_dim: found {head_dim}, expected an even number")
    if file.norm_before_fc and file.fc_norm:
        raise ValueError("norm_before_fc and fc_norm: found both, expected one of them")
    rotation = {name: value for name in ROPE_FIELDS if (value := getattr(layer, name)) is not None}
    check_rotation(rotation)
    return HeadSettings(
        form="EAGLE-3" if file is layer else "EAGLE-3 (speculators)",
        hidden=layer.hidden_size,
        inner=layer.intermediate_size,
        heads=heads,
        key_heads=key_heads,
        head_dim=head_dim,
        layers=layer.num_hidden_layers,
        vocab=layer.vocab_size,
        draft_vocab=file.draft_vocab_size or layer.vocab_size,
        context=layer.max_position_embeddings,
        eps=layer.rms_norm_eps,
        target_hidden=file.target_hidden_size or layer.hidden_size,
        reads=None if reads is None else tuple(reads),
        rotation=rotation,
        norm_before_residual=file.norm_before_residual,
        norm_before_fc=file.norm_before_fc,
        fc_norm=file.fc_norm,
        norm_output=file.norm_output,
        head_norms=layer.model_type == "qwen3",
        biases=layer.attention_bias,
        tied=layer.tie_word_embeddings,
        implied_head_dim=layer.head_dim is None,
    )


def _published_ids(file: PublishedFile) -> list[int] | None:
    """Return the indices of the states that a head in the published form reads; None for the default.

    The list is in `eagle_config` or at the top level. It usually contains layers, counted from 0, so 1 is the state
    after two layers. Some files instead contain indices of states and begin with 2, which is the same state; all heads
    of this form read it first.
    """
    eagle = file.eagle_config or EagleFile()
    if not eagle.use_aux_hidden_state:
        raise ValueError("eagle_config: use_aux_hidden_state: found false, expected true: EAGLE-3 reads several states")
    inner = eagle.eagle_aux_hidden_state_layer_ids
    ids = file.eagle_aux_hidden_state_layer_ids
    if inner is not None and ids not in (None, inner):
        raise ValueError(f"{LAYER_IDS}: found {ids}, and {inner} in eagle_config, expected a single list")
    ids = ids or inner
    states = 3 if ids is None else len(ids)
    if file.num_aux_hidden_states not in (None, states):
        raise ValueError(
            f"num_aux_hidden_states: found {file.num_aux_hidden_states}, expected {states} (the length of {LAYER_IDS}, "
            "3 by default)"
        )
    if ids is None:
        return None
    if ids[0] not in (1, 2):
        raise ValueError(
            f"{LAYER_IDS}: found {ids}, expected a list that begins with 1 (layers, counted from 0) or 2 (states): "
            "other lists are ambiguous"
        )
    return [number + 1 for number in ids] if ids[0] == 1 else ids


def _check_layer(layer: LayerFile) -> None:
    """Reject layers that heads of neither form have."""
    rotation = layer.rope_parameters or layer.rope_scaling or {}
    rope_type = rotation.get("rope_type", rotation.get("type", "default"))
    for name, found, expected in (
        ("model_type", layer.model_type, ("llama", "qwen3")),
        ("hidden_act", layer.hidden_act, ("silu",)),
        ("mlp_bias", layer.mlp_bias, (False,)),
        *(("layer_types", layer_type, ("full_attention",)) for layer_type in layer.layer_types or ()),
        ("rope_type", rope_type, FIXED_ROTATIONS),
    ):
        if found not in expected:
            raise ValueError(f"{name}: found {str(found)[:40]!r}, expected {' or '.join(map(str, expected))}")
