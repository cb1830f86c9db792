"""Reads an EAGLE-3 head for a target: every tensor by its name and shape, or one line that says what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from ...files.json_models import naming
from ...files.safe_files import load_torch, read_bytes
from ..architectures import EAGLE3, EXPECTED, check_head, head_kind
from ..finite_weights import not_finite
from ..model_files import Source, explained
from ..weight_files import read_tensors, stored_tensors, weight_files
from .eagle3 import Eagle3Head, HeadSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_BYTES = 8 * 2**30  # of a pickled file, which is read whole
UNUSED = ("d2t", "t2d", "verifier_norm.weight", "verifier_lm_head.weight")  # are no parameters of a head
EMBEDDING, OUTPUT, QUERIES = "embed_tokens.weight", "lm_head.weight", "layers.0.self_attn.q_proj.weight"
MOST_SHOWN = 3


class HeadFiles(NamedTuple):
    """An EAGLE-3 head that is not read yet: where it is, its settings, and the files with its weights."""

    source: Source
    settings: HeadSettings
    weights: tuple[Path, ...]

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self.weights)


def find_head(source: Source) -> HeadFiles | None:
    """Return the EAGLE-3 head in a model's folder; None for anything else."""
    fields = source.read_object("config.json", needed=True)
    stored = stored_tensors(source)
    assert fields is not None, "a needed file is there"
    if head_kind(fields, stored) != EAGLE3:
        check_head(source.name, fields, stored, f"{EXPECTED}, or an EAGLE-3 head")
        return None
    paths = tuple(weight_files(source, SAFE_WEIGHTS_NAME if stored else WEIGHTS_NAME))
    if not paths:
        raise ValueError(
            f"{source.name}: found neither {SAFE_WEIGHTS_NAME} nor {WEIGHTS_NAME}, nor an index of several files, "
            "expected the weights of a draft head"
        )
    from .head_config import head_settings  # needs pydantic, which a rented GPU lacks

    with naming(f"{source.name}/config.json"):
        return HeadFiles(source, head_settings(fields), paths)


def read_head(files: HeadFiles, target: PreTrainedModel) -> Eagle3Head:
    """Return a head whose files were found, in the target's dtype and on its device."""
    source, settings, paths = files
    pickled = [path for path in paths if path.suffix == ".bin"]
    held = {} if pickled else read_tensors(source, stored_tensors(source))
    for path in pickled:
        with explained(f"{source.name}/{path.name}", "the weights of a draft head"):
            held |= _pickled(path)
    with naming(source.name):
        tensors = _renamed(held)
        settings = _for_target(settings, target, tensors)
        return _filled(settings, tensors, target)


def _renamed(held: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors by the names of the `speculators` form; refuse two under one name that differ."""
    names: dict[str, str] = {}
    for name in held:
        known = name.removeprefix("model.").replace("midlayer.", "layers.0.", 1)
        first = names.setdefault(known, name)
        if first != name and not torch.equal(held[first], held[name]):
            raise ValueError(f"found {first} and {name}, which differ, expected one of them: both are {known}")
    return {known: held[name] for known, name in names.items() if not known.endswith("rotary_emb.inv_freq")}


def _pickled(path: Path) -> dict[str, torch.Tensor]:
    held = load_torch(read_bytes(path, limit=MOST_BYTES), "the weights of a draft head")
    if not isinstance(held, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in held.items()
    ):
        raise ValueError(f"a pickled {type(held).__name__} where tensors by name are expected")
    return held


def _for_target(settings: HeadSettings, target: PreTrainedModel, tensors: Mapping[str, torch.Tensor]) -> HeadSettings:
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
    if settings.layers > len(tensors):
        raise ValueError(
            f"num_hidden_layers: found {settings.layers} with {len(tensors)} tensors stored, expected fewer"
        )
    rows, head_dim = len(tensors.get(QUERIES, ())), settings.head_dim
    if rows not in (0, settings.heads * head_dim):
        if rows % (2 * settings.heads) or not settings.implied_head_dim:
            raise ValueError(
                f"head_dim: found {head_dim} for {settings.heads} heads, expected {rows / settings.heads:g} or another "
                f"count of heads: {QUERIES} has {rows} rows"
            )
        head_dim = rows // settings.heads
    reads = settings.reads or (2, layers // 2, layers - 3)
    if not all(0 <= number <= layers for number in reads):
        raise ValueError(
            f"found a head that reads the target's states {', '.join(map(str, reads))}, expected numbers from 0 to "
            f"{layers}, of its layers: a head for another target"
        )
    return replace(settings, reads=reads, head_dim=head_dim)


def _filled(settings: HeadSettings, tensors: dict[str, torch.Tensor], target: PreTrainedModel) -> Eagle3Head:
    embedding: Any = target.get_input_embeddings().weight
    output: Any = target.get_output_embeddings().weight
    if EMBEDDING not in tensors and settings.hidden != settings.target_hidden:
        raise ValueError(
            f"found no embed_tokens.weight, expected one: the target has {settings.target_hidden} numbers for a token, "
            f"the head {settings.hidden}"
        )
    all_tokens = settings.draft_vocab == settings.vocab
    if OUTPUT not in tensors and not (all_tokens and settings.hidden == settings.target_hidden):
        raise ValueError(
            f"found no {OUTPUT}, expected the head's own output layer [{settings.draft_vocab}, {settings.hidden}]: the "
            f"target's is {list(output.shape)}"
        )
    if settings.tied and all_tokens and EMBEDDING in tensors:
        if OUTPUT not in tensors or not torch.equal(tensors[EMBEDDING], tensors[OUTPUT]):
            raise ValueError(
                "tie_word_embeddings: found true, embed_tokens.weight and no lm_head.weight that equals it, expected "
                "false or an equal one: programs disagree on the output layer"
            )
    with torch.device("meta"):
        head = Eagle3Head(
            settings,
            None if EMBEDDING in tensors else embedding.detach(),
            None if OUTPUT in tensors else output.detach(),
        )
    weights = {name: tensor for name, tensor in tensors.items() if name not in UNUSED}
    _check_shapes(weights, head.state_dict())
    # its own memory: a file that is mapped might change, and gives weights that are not aligned
    kept = {name: tensor.to(target.dtype, copy=True) for name, tensor in weights.items()}
    for name, tensor in kept.items():
        if not tensor.isfinite().all():
            raise ValueError(not_finite(name, weights[name], target.dtype))
    head.load_state_dict(kept, assign=True)
    if OUTPUT not in tensors:
        head.remarks.append(f"The head has no {OUTPUT}: it uses the target's output layer.")
    if all_tokens:
        head.remarks += _unused_tables(settings, tensors)
    else:
        head.tokens = _own_tokens(settings, tensors)
    return head.to(embedding.device).requires_grad_(False)


def _check_shapes(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    faults = [f"no {name}" for name in expected if name not in found]
    for name, tensor in found.items():
        if name not in expected:
            faults.append(f"no place for {name}")
        elif tensor.shape != expected[name].shape:
            faults.append(f"{name} of shape {list(tensor.shape)} where it takes {list(expected[name].shape)}")
        elif not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            faults.append(f"{name} stored as {tensor.dtype}")
    if faults:
        raise ValueError(
            f"found weights that do not fit: {'; '.join(faults[:MOST_SHOWN])}, expected every tensor of the head that "
            "config.json describes, for this target, and no other"
        )


def _own_tokens(settings: HeadSettings, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the target's token of each of the head's, int64 [draft vocab], of their distances in `d2t`."""
    for name in ("d2t", "t2d"):
        if name not in tensors:
            raise ValueError(f"found no {name}, expected d2t and t2d beside a vocabulary of the head's own")
    offsets, kept = tensors["d2t"], tensors["t2d"]
    if offsets.shape != (settings.draft_vocab,) or offsets.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"d2t: found {offsets.dtype} {list(offsets.shape)}, expected int64 [{settings.draft_vocab}]")
    if kept.shape != (settings.vocab,):
        raise ValueError(f"t2d: found {list(kept.shape)}, expected [{settings.vocab}], the target's vocabulary")
    listed = kept.nonzero()[:, 0]
    if len(listed) != len(offsets):
        raise ValueError(f"t2d: found {len(listed)} tokens marked, expected {len(offsets)}, the rows of d2t")
    tokens = torch.arange(len(offsets)) + offsets
    if not tokens.sort().values.equal(listed):
        found = "distances that lead to other tokens than t2d marks"
        if offsets.sort().values.equal(listed.to(offsets)):
            found = "token ids"
        raise ValueError(
            f"d2t: found {found}, expected the distance from each of the head's tokens to the target's, which t2d marks"
        )
    return tokens


def _unused_tables(settings: HeadSettings, tensors: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Say where a table of tokens contradicts a head that has all of the target's; refuse distances other than 0."""
    moved = int(tensors.get("d2t", torch.zeros(1)).count_nonzero())
    if moved:
        raise ValueError(
            f"d2t: found {moved} distances other than 0, expected none where draft_vocab_size is the target's "
            f"{settings.vocab}"
        )
    marked = int(tensors.get("t2d", torch.ones(settings.vocab)).count_nonzero())
    if marked != settings.vocab:
        yield f"The head's t2d marks {marked} tokens, its config.json gives {settings.vocab}: t2d is not used."
