"""The config.json of a draft head, in the form first published or in the form of the `speculators` package."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from sequoia_core.files.file_model import FileModel
from sequoia_core.files.json_models import validate_model
from sequoia_core.models.architectures import check_rotation
from sequoia_core.models.plain_decoder import FIXED_ROTATIONS

from .eagle3 import BlockSettings, HeadSettings

Size = Annotated[int, Field(ge=1, le=2**24)]
LayerIds = Annotated[list[Annotated[int, Field(ge=0, le=10_000)]], Field(min_length=1, max_length=16)]
Token = Annotated[int, Field(ge=0, le=2**24)]
BlockSize = Annotated[int, Field(ge=2, le=256)]
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
    sliding_window: Size | None = None
    use_sliding_window: bool = False


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


class ProposalFile(FileModel):
    speculative_tokens: BlockSize


class ProposalsFile(FileModel):
    proposal_methods: Annotated[list[ProposalFile], Field(min_length=1)]


class PEagleFile(SpeculatorsFile):
    mask_token_id: Token
    speculators_config: ProposalsFile


class DFlashOptions(FileModel):
    target_layer_ids: LayerIds | None = None
    mask_token_id: Token
    block_size: BlockSize | None = None
    causal_head: bool = False
    target_hidden_size: Size | None = None


class DFlashFile(LayerFile, SharedOptions):
    """A DFlash head as its authors publish it, which is also JetSpec's form."""

    dflash_config: DFlashOptions
    block_size: BlockSize | None = None
    num_target_layers: Size | None = None


class SpeculatorsDFlashFile(SpeculatorsFile):
    aux_hidden_state_layer_ids: LayerIds
    block_size: BlockSize = 8
    mask_token_id: Token
    sliding_window_non_causal: bool = False
    sample_from_anchor: bool = False


class ParsedFile(NamedTuple):
    """A head's config.json: its form, fields, layers, the states that it reads, and its block."""

    form: str
    file: PublishedFile | SpeculatorsFile | DFlashFile
    layer: LayerFile
    reads: list[int] | None
    block: BlockSettings | None = None


def head_settings(fields: Mapping[str, Any]) -> HeadSettings:
    """Return a draft head's settings, given the fields of its config.json."""
    kind = fields.get("speculators_model_type")
    if kind:
        parsed = _parse_speculators(fields, str(kind))
    elif "dflash_config" in fields:
        published = validate_model(DFlashFile, dict(fields))
        parsed = ParsedFile("DFlash", published, published, *_published_block(published))
    else:
        eagle = validate_model(PublishedFile, dict(fields))
        parsed = ParsedFile("EAGLE-3", eagle, eagle, _published_ids(eagle))
    form, file, layer, reads, block = parsed
    _check_layer(layer, windowed=kind == "dflash")
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
        form=f"{form} (speculators)" if kind else form,
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
        head_norms=layer.model_type == "qwen3" or form == "DFlash",
        biases=layer.attention_bias,
        tied=layer.tie_word_embeddings,
        implied_head_dim=layer.head_dim is None,
        block=block,
    )


def _parse_speculators(fields: Mapping[str, Any], kind: str) -> ParsedFile:
    if kind == "dflash":
        dflash = validate_model(SpeculatorsDFlashFile, dict(fields))
        layer = dflash.transformer_layer_config
        return ParsedFile("DFlash", dflash, layer, dflash.aux_hidden_state_layer_ids, _speculators_block(dflash, layer))
    # `speculators` defaults to false, vLLM to true.
    if "norm_before_residual" not in fields:
        raise ValueError("norm_before_residual: found nothing, expected true or false (programs' defaults differ)")
    file = validate_model(PEagleFile if kind == "peagle" else SpeculatorsFile, dict(fields))
    layer = file.transformer_layer_config
    reads = file.eagle_aux_hidden_state_layer_ids
    if reads is None:
        raise ValueError(
            f"{LAYER_IDS}: found nothing, expected the indices of the target's states that the head reads (by "
            "default, the package trains heads on 2, n // 2 and n - 3 of n layers)"
        )
    if not isinstance(file, PEagleFile):
        return ParsedFile("EAGLE-3", file, layer, reads)
    size = file.speculators_config.proposal_methods[0].speculative_tokens
    layers = layer.num_hidden_layers
    block = BlockSettings(size, file.mask_token_id, 0, (True,) * layers, (None,) * layers)
    return ParsedFile("P-EAGLE", file, layer, reads, block)


def _speculators_block(file: SpeculatorsDFlashFile, layer: LayerFile) -> BlockSettings:
    # Without `use_sliding_window`, the layers attend to everything, as in transformers.
    window = layer.sliding_window if layer.use_sliding_window else None
    layer_types = layer.layer_types or ["full_attention"] * layer.num_hidden_layers
    windows = tuple(window if kind == "sliding_attention" else None for kind in layer_types)
    return BlockSettings(
        file.block_size,
        file.mask_token_id,
        0 if file.sample_from_anchor else 1,
        tuple(each is not None and not file.sliding_window_non_causal for each in windows),
        windows,
    )


def _published_block(file: DFlashFile) -> tuple[list[int], BlockSettings]:
    """Return the states that a DFlash head reads and its block; by default, it reads one state per layer of its own."""
    options = file.dflash_config
    layers = file.num_hidden_layers
    size = file.block_size or options.block_size
    if size is None:
        raise ValueError("block_size: found nothing, expected the number of tokens in a block")
    if options.target_hidden_size not in (None, file.hidden_size):
        raise ValueError(
            f"dflash_config: target_hidden_size: found {options.target_hidden_size}, expected {file.hidden_size}, the "
            "head's own: adapters between sizes are not supported"
        )
    ids = options.target_layer_ids
    if ids is None:
        if file.num_target_layers is None:
            raise ValueError("num_target_layers: found nothing, expected it or dflash_config: target_layer_ids")
        last = file.num_target_layers - 3
        ids = [round(1 + index * (last - 1) / max(layers - 1, 1)) for index in range(layers)]
        if layers == 1:
            ids = [file.num_target_layers // 2]
    causal = (options.causal_head,) * layers
    block = BlockSettings(size, options.mask_token_id, 1, causal, (None,) * layers, file.num_target_layers)
    # Layers are counted from 0, so that layer 1 gives the state after two layers.
    return [number + 1 for number in ids], block


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


def _check_layer(layer: LayerFile, *, windowed: bool) -> None:
    """Reject layers that heads of no form have."""
    layer_types = layer.layer_types or []
    allowed = ("full_attention", "sliding_attention") if windowed else ("full_attention",)
    if windowed and layer_types and len(layer_types) != layer.num_hidden_layers:
        raise ValueError(f"layer_types: found {len(layer_types)}, expected {layer.num_hidden_layers}, one per layer")
    rotation = layer.rope_parameters or layer.rope_scaling or {}
    rope_type = rotation.get("rope_type", rotation.get("type", "default"))
    for name, found, expected in (
        ("model_type", layer.model_type, ("llama", "qwen3")),
        ("hidden_act", layer.hidden_act, ("silu",)),
        ("mlp_bias", layer.mlp_bias, (False,)),
        *(("layer_types", layer_type, allowed) for layer_type in layer_types),
        ("rope_type", rope_type, FIXED_ROTATIONS),
    ):
        if found not in expected:
            raise ValueError(f"{name}: found {str(found)[:40]!r}, expected {' or '.join(map(str, expected))}")
