"""The config.json of an EAGLE-3 head, as first published or in the form of the package `speculators`."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from ...files.file_model import FileModel
from ...files.json_models import checked
from ...native.plain_decoder import FIXED_ROTATIONS
from ..architectures import check_rotation
from .eagle3 import HeadSettings

MOST = 2**24  # of any size in a head
LAYERS = 64
Size = Annotated[int, Field(ge=1, le=MOST)]
LayerIds = Annotated[list[Annotated[int, Field(ge=0, le=10_000)]], Field(min_length=1, max_length=16)]
IDS = "eagle_aux_hidden_state_layer_ids"
ROTATION = ("rope_theta", "rope_scaling", "rope_parameters")


class LayerFile(FileModel):
    """The decoder layers of a head, as a Llama's or Qwen 3's config names them."""

    model_type: str = "llama"
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    num_hidden_layers: Annotated[int, Field(ge=1, le=LAYERS)] = 1
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


class Options(FileModel):
    """What both forms say of a head in the same words."""

    eagle_aux_hidden_state_layer_ids: LayerIds | None = None
    draft_vocab_size: Size | None = None
    target_hidden_size: Size | None = None
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False


class EagleFile(FileModel):
    eagle_aux_hidden_state_layer_ids: LayerIds | None = None
    use_aux_hidden_state: bool = True


class PublishedFile(LayerFile, Options):
    norm_before_residual: bool = False
    num_aux_hidden_states: Annotated[int, Field(ge=1, le=16)] | None = None
    eagle_config: EagleFile | None = None


class SpeculatorsFile(Options):
    transformer_layer_config: LayerFile
    norm_before_residual: bool


def head_settings(fields: Mapping[str, Any]) -> HeadSettings:
    """Return the settings in the config.json of an EAGLE-3 head."""
    layer: LayerFile
    file: PublishedFile | SpeculatorsFile
    if fields.get("speculators_model_type"):
        if "norm_before_residual" not in fields:  # the package takes false for it, vLLM true
            raise ValueError("norm_before_residual: found nothing, expected true or false (programs disagree on it)")
        file = checked(SpeculatorsFile, dict(fields))
        layer, form = file.transformer_layer_config, "EAGLE-3 (speculators)"
        reads = file.eagle_aux_hidden_state_layer_ids
        if reads is None:
            raise ValueError(
                f"{IDS}: found nothing, expected which of the target's states it reads (where a head was trained with "
                "the package's own choice, they are 2, n // 2 and n - 3 of n layers)"
            )
    else:
        file = layer = checked(PublishedFile, dict(fields))
        form, reads = "EAGLE-3", _published_ids(file)
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
    rotation = {name: value for name in ROTATION if (value := getattr(layer, name)) is not None}
    check_rotation(rotation)
    return HeadSettings(
        form=form, hidden=layer.hidden_size, inner=layer.intermediate_size, heads=heads, key_heads=key_heads,
        head_dim=head_dim, layers=layer.num_hidden_layers,
        vocab=layer.vocab_size, draft_vocab=file.draft_vocab_size or layer.vocab_size,
        context=layer.max_position_embeddings, eps=layer.rms_norm_eps,
        target_hidden=file.target_hidden_size or layer.hidden_size, reads=None if reads is None else tuple(reads),
        rotation=rotation, norm_before_residual=file.norm_before_residual, norm_before_fc=file.norm_before_fc,
        fc_norm=file.fc_norm, norm_output=file.norm_output, head_norms=layer.model_type == "qwen3",
        biases=layer.attention_bias, tied=layer.tie_word_embeddings, implied_head_dim=layer.head_dim is None,
    )  # fmt: skip


def _published_ids(file: PublishedFile) -> list[int] | None:
    """Return the numbers of the states that it reads; None for the form's own, which follow from the target.

    The list is in `eagle_config` or beside it. It counts layers from 0 whose outputs are read, so 1 is the state after
    two layers. Some write the state's number instead, and begin with 2: the same state, which all heads of this form
    read first.
    """
    own = file.eagle_config
    if own is not None and not own.use_aux_hidden_state:
        raise ValueError("eagle_config: use_aux_hidden_state: found false, expected true: EAGLE-3 reads several states")
    inner, ids = None if own is None else own.eagle_aux_hidden_state_layer_ids, file.eagle_aux_hidden_state_layer_ids
    if inner is not None and ids not in (None, inner):
        raise ValueError(f"{IDS}: found {ids}, and {inner} in eagle_config, expected one list")
    ids = ids or inner
    states = 3 if ids is None else len(ids)
    if file.num_aux_hidden_states not in (None, states):
        raise ValueError(
            f"num_aux_hidden_states: found {file.num_aux_hidden_states}, expected {states}, as many as {IDS} lists or 3"
        )
    if ids is None:
        return None
    if ids[0] not in (1, 2):
        raise ValueError(
            f"{IDS}: found {ids}, expected a list that begins with 1 (layers counted from 0) or 2 (states): another "
            "one may mean either"
        )
    return [number + 1 for number in ids] if ids[0] == 1 else ids


def _check_layer(layer: LayerFile) -> None:
    """Refuse layers that heads of either form do not have."""
    for name, found, expected in (
        ("model_type", layer.model_type, ("llama", "qwen3")),
        ("hidden_act", layer.hidden_act, ("silu",)),
        ("mlp_bias", layer.mlp_bias, (False,)),
        *(("layer_types", kind, ("full_attention",)) for kind in layer.layer_types or ()),
    ):
        if found not in expected:
            raise ValueError(f"{name}: found {str(found)[:40]!r}, expected {' or '.join(map(str, expected))}")
    rotations = layer.rope_parameters or layer.rope_scaling or {}
    kind = rotations.get("rope_type", rotations.get("type", "default"))
    if kind not in FIXED_ROTATIONS:
        raise ValueError(f"rope_type: found {str(kind)[:40]!r}, expected {', '.join(FIXED_ROTATIONS)}")
