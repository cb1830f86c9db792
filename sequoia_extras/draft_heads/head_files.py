"""Reads a draft head for a target and checks the name and shape of every tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from sequoia_core.files.json_models import prefix_errors
from sequoia_core.files.safe_files import load_torch, read_bytes
from sequoia_core.models.architectures import CAUSAL_MODEL, check_head, draft_head_type
from sequoia_core.models.finite_weights import non_finite_message
from sequoia_core.models.model_files import Source, explain_load_errors
from sequoia_core.models.weight_files import read_tensors, stored_tensors, weight_files

from .blocks import DFlashHead, head_class
from .eagle3 import Eagle3Head, HeadSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Pickled files are read into memory as a whole.
MAX_PICKLED_BYTES = 8 * 2**30
# Names of stored tensors that are not parameters of a head.
NON_PARAMETERS = ("d2t", "t2d", "verifier_norm.weight", "verifier_lm_head.weight")
EMBEDDING = "embed_tokens.weight"
OUTPUT = "lm_head.weight"
QUERIES = "layers.0.self_attn.q_proj.weight"
MAX_FAULTS_SHOWN = 3
SUPPORTED = ("eagle-3", "dflash", "peagle")
# Reasons why similar heads are rejected, by type in lower case.
UNSUPPORTED = {
    "dspark": "each of its rows depends on the token drawn before it (Markov head), as does its confidence head",
    "dflash2": "its selector depends on the tokens drawn before, and its layers contain convolutions",
    "p-eagle": "P-EAGLE heads are read in the form of `speculators`, which contains the size of a block",
}


class HeadFiles(NamedTuple):
    """Source, settings and weight files of a draft head that has not been read."""

    source: Source
    settings: HeadSettings
    weights: tuple[Path, ...]

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.weights)


def find_head(source: Source) -> HeadFiles | None:
    """Return the draft head in a model's folder; None if the folder contains a different model."""
    fields = source.read_object("config.json", needed=True)
    stored = stored_tensors(source)
    assert fields is not None, "`needed` raises if the file is missing"
    head_type = draft_head_type(fields, stored).lower()
    if head_type not in SUPPORTED:
        reason = f": {UNSUPPORTED[head_type]}" if head_type in UNSUPPORTED else ""
        check_head(source.name, fields, stored, f"{CAUSAL_MODEL} or an EAGLE-3, DFlash or P-EAGLE head{reason}")
        return None
    paths = tuple(weight_files(source, SAFE_WEIGHTS_NAME if stored else WEIGHTS_NAME))
    if not paths:
        raise ValueError(
            f"{source.name}: found neither {SAFE_WEIGHTS_NAME} nor {WEIGHTS_NAME} nor an index of several files, "
            "expected the weights of a draft head"
        )
    # Imported here because it requires pydantic, which rented GPU machines may lack.
    from .head_config import head_settings

    with prefix_errors(f"{source.name}/config.json"):
        return HeadFiles(source, head_settings(fields), paths)


def read_head(files: HeadFiles, target: PreTrainedModel) -> Eagle3Head:
    """Read a head in the target's dtype and on its device."""
    source, settings, paths = files
    pickled = [path for path in paths if path.suffix == ".bin"]
    stored = {} if pickled else read_tensors(source, stored_tensors(source))
    for path in pickled:
        with explain_load_errors(f"{source.name}/{path.name}", "the weights of a draft head"):
            stored |= _load_pickled(path)
    with prefix_errors(source.name):
        tensors = _rename_tensors(stored)
        return _build_head(_settings_for_target(settings, target, tensors), tensors, target)


def _rename_tensors(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by their names in the `speculators` form; reject different tensors with the same name."""
    sources: dict[str, str] = {}
    for source in stored:
        name = source.removeprefix("model.").replace("midlayer.", "layers.0.", 1)
        first = sources.setdefault(name, source)
        if first != source and not torch.equal(stored[first], stored[source]):
            raise ValueError(f"found {first} and {source}, which differ, expected only one: both stand for {name}")
    return {name: stored[source] for name, source in sources.items() if not name.endswith("rotary_emb.inv_freq")}


def _load_pickled(path: Path) -> dict[str, Tensor]:
    tensors = load_torch(read_bytes(path, limit=MAX_PICKLED_BYTES), "the weights of a draft head")
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in tensors.items()
    ):
        raise ValueError(f"the file contains a {type(tensors).__name__} instead of tensors by name")
    return tensors


def _settings_for_target(
    settings: HeadSettings, target: PreTrainedModel, tensors: Mapping[str, Tensor]
) -> HeadSettings:
    """Complete a head's settings from its target and weights; reject a head for a different target."""
    config = target.config.get_text_config()
    layers = int(config.num_hidden_layers)
    width_field = "target_hidden_size" if settings.target_hidden != settings.hidden else "hidden_size"
    block = settings.block
    for name, found, expected in (
        (width_field, settings.target_hidden, int(config.hidden_size)),
        ("vocab_size", settings.vocab, int(config.vocab_size)),
        ("num_target_layers", (block and block.target_layers) or layers, layers),
    ):
        if found != expected:
            raise ValueError(
                f"{name}: found {found}, expected {expected} as in this target: the head is for another target"
            )
    if settings.layers > len(tensors):
        raise ValueError(
            f"num_hidden_layers: found {settings.layers} with only {len(tensors)} stored tensors, expected fewer layers"
        )
    if block and block.mask_token >= settings.vocab:
        raise ValueError(f"mask_token_id: found {block.mask_token}, expected an id below {settings.vocab}")
    head_dim = settings.head_dim
    rows = len(tensors.get(QUERIES, ()))
    if rows not in (0, settings.heads * head_dim):
        if rows % (2 * settings.heads) or not settings.implied_head_dim:
            raise ValueError(
                f"head_dim: found {head_dim} for {settings.heads} heads, expected {rows / settings.heads:g} or a "
                f"different number of heads: {QUERIES} has {rows} rows"
            )
        head_dim = rows // settings.heads
    reads = settings.reads or (2, layers // 2, layers - 3)
    if not all(0 <= index <= layers for index in reads):
        raise ValueError(
            f"found a head that reads the target's states {', '.join(map(str, reads))}, expected indices from 0 to "
            f"{layers}, the number of layers: the head is for another target"
        )
    if settings.form == "DFlash" and layers in reads:
        raise ValueError(
            f"target_layer_ids: found {layers - 1}, the target's last layer, expected earlier ones: programs disagree "
            "on whether its state is normalized"
        )
    return replace(settings, reads=reads, head_dim=head_dim)


def _build_head(settings: HeadSettings, tensors: dict[str, Tensor], target: PreTrainedModel) -> Eagle3Head:
    embedding: Any = target.get_input_embeddings().weight
    output: Any = target.get_output_embeddings().weight
    has_all_tokens = settings.draft_vocab == settings.vocab
    _check_ends(settings, tensors, list(output.shape))
    with torch.device("meta"):
        head: Eagle3Head = head_class(settings)(
            settings,
            None if EMBEDDING in tensors else embedding.detach(),
            None if OUTPUT in tensors else output.detach(),
        )
    stored = {name: tensor for name, tensor in tensors.items() if name not in NON_PARAMETERS}
    _check_shapes(stored, head.state_dict())
    # Copy the weights, since a mapped file may change and its tensors are not aligned.
    weights = {name: tensor.to(target.dtype, copy=True) for name, tensor in stored.items()}
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise ValueError(non_finite_message(name, stored[name], target.dtype))
    head.load_state_dict(weights, assign=True)
    if OUTPUT not in tensors and not isinstance(head, DFlashHead):
        head.remarks.append(f"The head has no {OUTPUT}, so it uses the target's output layer.")
    if has_all_tokens:
        head.remarks += _check_unused_tables(settings, tensors)
    else:
        head.tokens = _target_tokens(settings, tensors)
    return head.to(embedding.device).requires_grad_(False)


def _check_ends(settings: HeadSettings, tensors: Mapping[str, Tensor], target_shape: list[int]) -> None:
    """Reject heads whose embedding or output layer is missing or ambiguous."""
    same_width = settings.hidden == settings.target_hidden
    has_all_tokens = settings.draft_vocab == settings.vocab
    if EMBEDDING not in tensors and not same_width:
        raise ValueError(
            f"found no embed_tokens.weight, expected one: the target's hidden size is {settings.target_hidden}, the "
            f"head's {settings.hidden}"
        )
    if OUTPUT not in tensors and not (has_all_tokens and same_width):
        raise ValueError(
            f"found no {OUTPUT}, expected the head's own output layer {[settings.draft_vocab, settings.hidden]}: the "
            f"target's has shape {target_shape}"
        )
    if settings.tied and has_all_tokens and EMBEDDING in tensors:
        if OUTPUT not in tensors or not torch.equal(tensors[EMBEDDING], tensors[OUTPUT]):
            raise ValueError(
                "tie_word_embeddings: found true, embed_tokens.weight and no equal lm_head.weight, expected false or "
                "an equal lm_head.weight: programs disagree on the output layer"
            )


def _check_shapes(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    faults = [f"no {name}" for name in expected if name not in found]
    for name, tensor in found.items():
        if name not in expected:
            faults.append(f"an unexpected {name}")
        elif tensor.shape != expected[name].shape:
            faults.append(f"{name} of shape {list(tensor.shape)} instead of {list(expected[name].shape)}")
        elif not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            faults.append(f"{name} stored as {tensor.dtype}")
    if faults:
        raise ValueError(
            f"found mismatched weights: {'; '.join(faults[:MAX_FAULTS_SHOWN])}, expected exactly the tensors of the "
            "head that config.json describes, for this target"
        )


def _target_tokens(settings: HeadSettings, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the target's ids for the tokens of the head, int64 [draft vocab], from the offsets in `d2t`."""
    for name in ("d2t", "t2d"):
        if name not in tensors:
            raise ValueError(f"found no {name}, expected d2t and t2d for the head's smaller vocabulary")
    offsets = tensors["d2t"]
    marks = tensors["t2d"]
    if offsets.shape != (settings.draft_vocab,) or offsets.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"d2t: found {offsets.dtype} {list(offsets.shape)}, expected int64 [{settings.draft_vocab}]")
    if marks.shape != (settings.vocab,):
        raise ValueError(f"t2d: found {list(marks.shape)}, expected [{settings.vocab}], the target's vocabulary")
    marked = marks.nonzero()[:, 0]
    if len(marked) != len(offsets):
        raise ValueError(f"t2d: found {len(marked)} marked tokens, expected {len(offsets)}, the length of d2t")
    tokens = torch.arange(len(offsets)) + offsets
    if not tokens.sort().values.equal(marked):
        is_ids = offsets.sort().values.equal(marked.to(offsets))
        found = "token ids" if is_ids else "offsets that lead to tokens that t2d does not mark"
        raise ValueError(
            f"d2t: found {found}, expected offsets from the head's tokens to the target's tokens that t2d marks"
        )
    return tokens


def _check_unused_tables(settings: HeadSettings, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield a remark if `t2d` omits tokens although the head has all of the target's; reject nonzero offsets."""
    moved = int(tensors.get("d2t", torch.zeros(1)).count_nonzero())
    if moved:
        raise ValueError(
            f"d2t: found {moved} offsets other than 0, expected none, since draft_vocab_size is the target's "
            f"{settings.vocab}"
        )
    marked = int(tensors.get("t2d", torch.ones(settings.vocab)).count_nonzero())
    if marked != settings.vocab:
        yield f"The head's t2d marks {marked} tokens, but its config.json specifies {settings.vocab}: t2d is ignored."
