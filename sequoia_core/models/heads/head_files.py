"""Reads an EAGLE-3 head for a target: every tensor by its name and shape, or one line that says what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from ...files.json_models import naming
from ...files.safe_files import load_torch, read_bytes
from ..architectures import EAGLE3, head_kind
from ..finite_weights import not_finite
from ..model_files import Source, explained
from .eagle3 import Eagle3Head, HeadSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
MOST_BYTES = 8 * 2**30  # of a pickled file, which is read whole
UNUSED = ("d2t", "t2d", "verifier_norm.weight", "verifier_lm_head.weight")  # are no parameters of a head
MOST_SHOWN = 3


class HeadFiles(NamedTuple):
    """An EAGLE-3 head that is not read yet: where it is, its settings, and the file with its weights."""

    source: Source
    settings: HeadSettings
    weights: Path

    @property
    def size(self) -> int:
        return self.weights.stat().st_size


def find_head(source: Source) -> HeadFiles | None:
    """Return the EAGLE-3 head in a model's folder; None for anything else."""
    fields = source.read_object("config.json", needed=True)
    path = next((found for file in WEIGHTS if (found := source.find(file)) is not None), None)
    names: list[str] = []
    if path is not None and path.suffix != ".bin":
        with explained(f"{source.name}/{path.name}", "safetensors weights"), safe_open(path, "pt") as file:
            names = list(file.keys())
    assert fields is not None, "a needed file is there"
    if head_kind(fields, names) != EAGLE3:
        return None
    if path is None:
        raise ValueError(f"{source.name}: found neither {' nor '.join(WEIGHTS)}, expected the weights of a draft head")
    from .head_config import head_settings  # needs pydantic, which a rented GPU lacks

    with naming(f"{source.name}/config.json"):
        return HeadFiles(source, head_settings(fields), path)


def read_head(files: HeadFiles, target: PreTrainedModel) -> Eagle3Head:
    """Return a head whose files were found, in the target's dtype and on its device."""
    source, settings, path = files
    with explained(f"{source.name}/{path.name}", "the weights of a draft head"):
        held = _pickled(path) if path.suffix == ".bin" else load_file(path)
    names = {name: name.removeprefix("model.").replace("midlayer.", "layers.0.", 1) for name in held}
    tensors = {names[name]: tensor for name, tensor in held.items() if not name.endswith("rotary_emb.inv_freq")}
    with naming(source.name):
        settings = _for_target(settings, target, len(tensors))
        return _filled(settings, tensors, target)


def _pickled(path: Path) -> dict[str, torch.Tensor]:
    held = load_torch(read_bytes(path, limit=MOST_BYTES), "the weights of a draft head")
    if not isinstance(held, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in held.items()
    ):
        raise ValueError(f"a pickled {type(held).__name__} where tensors by name are expected")
    return held


def _for_target(settings: HeadSettings, target: PreTrainedModel, tensors: int) -> HeadSettings:
    """Return a head's settings with the states that it reads; refuse one for another target."""
    config = target.config.get_text_config()
    layers = int(config.num_hidden_layers)
    for name, found, expected in (
        ("target_hidden_size" if settings.target_hidden != settings.hidden else "hidden_size",
         settings.target_hidden, int(config.hidden_size)),
        ("vocab_size", settings.vocab, int(config.vocab_size)),
    ):  # fmt: skip
        if found != expected:
            raise ValueError(f"{name}: found {found}, expected {expected} as the target has: a head for another target")
    if settings.layers > tensors:
        raise ValueError(f"num_hidden_layers: found {settings.layers} with {tensors} tensors stored, expected fewer")
    reads = settings.reads or (2, layers // 2, layers - 3)
    if not all(0 <= number <= layers for number in reads):
        raise ValueError(
            f"found a head that reads the target's states {', '.join(map(str, reads))}, expected numbers from 0 to "
            f"{layers}, of its layers: a head for another target"
        )
    return replace(settings, reads=reads)


def _filled(settings: HeadSettings, tensors: dict[str, torch.Tensor], target: PreTrainedModel) -> Eagle3Head:
    embedding: Any = target.get_input_embeddings().weight
    output: Any = target.get_output_embeddings().weight
    brought = {"embed_tokens.weight", "lm_head.weight"} & set(tensors)
    if "embed_tokens.weight" not in brought and settings.hidden != settings.target_hidden:
        raise ValueError(
            f"found no embed_tokens.weight, expected one: the target has {settings.target_hidden} numbers for a token, "
            f"the head {settings.hidden}"
        )
    borrows = settings.draft_vocab == settings.vocab and settings.hidden == settings.target_hidden
    if "lm_head.weight" not in brought and not borrows:
        raise ValueError("found no lm_head.weight, expected the head's own output layer")
    with torch.device("meta"):
        head = Eagle3Head(
            settings,
            None if "embed_tokens.weight" in brought else embedding.detach(),
            None if "lm_head.weight" in brought else output.detach(),
        )
    weights = {name: tensor for name, tensor in tensors.items() if name not in UNUSED}
    _check_shapes(weights, {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()})
    # its own memory: a file that is mapped might change, and gives weights that are not aligned
    kept = {name: tensor.to(target.dtype, copy=True) for name, tensor in weights.items()}
    for name, tensor in kept.items():
        if not tensor.isfinite().all():
            raise ValueError(not_finite(name, weights[name], target.dtype))
    head.load_state_dict(kept, assign=True)
    if settings.draft_vocab != settings.vocab:
        head.tokens = _own_tokens(settings, tensors)
    return head.to(embedding.device).requires_grad_(False)


def _check_shapes(found: Mapping[str, torch.Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    faults = [f"no {name}" for name in expected if name not in found]
    faults += [f"no place for {name}" for name in found if name not in expected]
    faults += [
        f"{name} of shape {list(found[name].shape)} where it takes {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name].shape) != shape
    ]
    faults += [
        f"{name} stored as {tensor.dtype}"
        for name, tensor in found.items()
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2
    ]
    if faults:
        raise ValueError(
            f"found weights that do not fit: {'; '.join(faults[:MOST_SHOWN])}, expected every tensor of the head that "
            "config.json describes, for this target, and no other"
        )


def _own_tokens(settings: HeadSettings, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the target's token of each of the head's, int64 [draft vocab], of their distances in `d2t`."""
    offsets, kept = tensors.get("d2t"), tensors.get("t2d")
    if offsets is None or kept is None:
        missing = "d2t" if offsets is None else "t2d"
        raise ValueError(f"found no {missing}, expected d2t and t2d beside a vocabulary of the head's own")
    if offsets.shape != (settings.draft_vocab,) or offsets.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"d2t: found {offsets.dtype} {list(offsets.shape)}, expected int64 [{settings.draft_vocab}], the head's "
            "vocabulary"
        )
    if kept.shape != (settings.vocab,):
        raise ValueError(f"t2d: found {list(kept.shape)}, expected [{settings.vocab}], the target's vocabulary")
    listed, offsets = torch.nonzero(kept)[:, 0], offsets.to(torch.int64)
    tokens = torch.arange(len(offsets)) + offsets
    if not torch.equal(tokens.sort().values, listed):
        ids = torch.equal(offsets.sort().values, listed)
        raise ValueError(
            f"d2t: found {'token ids' if ids else 'distances that lead to other tokens than t2d marks'}, expected the "
            "distance from each of the head's tokens to the target's, which t2d marks"
        )
    return tokens
