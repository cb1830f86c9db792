"""Load a target, with its draft or alone, from folders or the hub: whole and able to read a tree, or not at all.

Knows tokenizers, and what the engine asks of a model; what makes one model's files whole is known by `checkpoint`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import NamedTuple

import torch

from ..files.gguf_header import is_gguf, read_gguf_header
from ..files.model_names import DEMO_PAIR, NO_DRAFT, model_name
from ..native.instruction_sets import check_environment
from .architectures import check_gguf_architecture
from .checkpoint import COMPRESSED_TENSORS, SPREAD, Plan, load_weights, read_plan
from .default_dtype import default_dtype
from .generation_settings import left_out_remark
from .gguf.model import GGUFModel, LlamaCppOptions, gguf_path
from .gguf.tokenizer import GGUFTokenizer
from .language_model import HuggingFaceModel, ModelPair, context_of
from .model_files import Source, explained, locate, one_line
from .offload.loading import check_tier, load_offloaded, predicted_needs
from .offload.needs import OffloadNeeds, free_bytes
from .offload.packed_layers import DamagedCopy
from .pair_tokenizer import cut_to_real_tokens, known_ids, tokenizer_of
from .protocol import LoadedModel, Tokenizer, find_dtype
from .tree_pass_check import check_tree_pass


def load_pair(
    target: str | os.PathLike | None = None,
    draft: str | os.PathLike | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    offload: str | None = None,
    progress: Callable[[float, str], None] | None = None,
    *,
    tokenizer: str | os.PathLike | None = None,
    llama_cpp: LlamaCppOptions | None = None,
) -> ModelPair:
    """Load a target and a draft from local folders, hub ids or GGUF files.

    Models are often padded to a rounder number of logits than their tokenizer has tokens, differently so within one
    family. Both are cut to the ids that the target's tokenizer knows, so that no other token is ever drafted or
    sampled: the distribution that decoding preserves is the target's own given a real token, whatever the draft.

    Attention runs through PyTorch's fused kernel where the family has it and as plain operations elsewhere. Each model
    then reads one small tree (`tree_pass_check`), which takes four passes over at most twelve tokens.

    Args:
        target, draft: None, None loads the shipped demo pair; otherwise both are needed. The word "none" for the draft
            loads the target alone, the demo's for None; a folder of that name is "./none". `~` is the home folder. A
            name that ends in .gguf is a file that llama.cpp runs; one of the two may be that and the other a folder.
        device: such as "cpu" or "cuda"; None takes CUDA where there is one; "auto" has accelerate spread the target
            over several GPUs, then memory and disk. A GGUF file goes to whatever llama.cpp was
            built for, or with "cpu" to the CPU.
        dtype: "float32", "bfloat16" or "float16"; None for the rule of `default_dtype`. GGUF files have their own.
        offload: "disk" or "host" streams the target's decoder layers from there in every pass, for targets larger than
            memory, see `offload.loading.load_offloaded`; None keeps them in memory. `pair.target.close()` ends it.
        progress: called with a fraction and words: what is read, with its size, and what is checked.
        tokenizer: folder or hub id whose tokenizer is used; None for the target's, or that of a draft folder beside a
            GGUF target. llama.cpp's files hold a copy that may split text otherwise than the original does.
        llama_cpp: options for GGUF files; None for those in llama.cpp's own environment variables.

    Raises:
        ValueError: naming the model, what was found and what was expected; nothing stays half-loaded. Also for weights
            that are missing, of another shape, without a place in the model or not finite; for a model that cannot read
            a tree; and for a draft with fewer logits than the target has real tokens: it could not read those tokens.
    """
    names, place = _request(target, draft, device, dtype, offload)
    with_options = (GGUFSettings(device, llama_cpp), tokenizer)
    try:
        return _load(names, place, dtype, offload, progress, *with_options)
    except DamagedCopy:
        pass  # what was loaded goes before the copy is made anew: once, as the disk may do so again
    return _load(names, place, dtype, offload, progress, *with_options)


class GGUFSettings(NamedTuple):
    """How GGUF files are opened: the device as it was asked for, and llama.cpp's options."""

    device: str | None
    options: LlamaCppOptions | None

    def open(self, name: str | os.PathLike) -> GGUFModel:
        device = None if self.device == SPREAD else self.device
        return GGUFModel(gguf_path(name), model_name(name), device=device, options=self.options)


def _load(
    names: _Names,
    place: torch.device,
    dtype: str | torch.dtype | None,
    offload: str | None,
    progress: Callable[[float, str], None] | None,
    settings: GGUFSettings,
    tokenizer: str | os.PathLike | None,
) -> ModelPair:
    tell = progress or (lambda fraction, words: None)
    target_files = _read(names.target)
    draft_files = None if names.draft is None else _read(names.draft)
    folders = [name for name in names if name is not None and not is_gguf(name)]
    kind = _dtype(folders, dtype, place)
    reading = f"reading {model_name(names.target)}, {_size(names.target, target_files)}"
    file: GGUFModel | None = None
    chosen: Tokenizer
    remarks: tuple[str, ...] = ()
    if target_files is None and names.draft is None and tokenizer is None:  # there is nothing to compare: read it once
        tell(0.0, reading)
        file = settings.open(names.target)
        chosen = GGUFTokenizer(gguf_path(names.target), str(names.target), file.weights)
    else:
        tell(0.0, "reading the tokenizer")
        chosen, remarks = tokenizer_of(names, tokenizer)
    with ExitStack() as undo:
        target_model: LoadedModel
        tell(0.2, reading)
        if target_files is None:
            target_model = file or settings.open(names.target)
        elif offload is None:
            weights = load_weights(*target_files, place, kind, spread=settings.device == SPREAD)
            target_model = HuggingFaceModel(weights, model_name(names.target))
        else:
            target_model = load_offloaded(
                *target_files, place, kind, offload, name=model_name(names.target),
                beside=_weights_bytes(draft_files, kind),
                progress=lambda done, words: tell(0.2 + 0.4 * done, words),
            )  # fmt: skip
        undo.callback(target_model.close)
        draft_model: LoadedModel | None = None
        if names.draft is not None:
            tell(0.6, f"reading {model_name(names.draft)}, {_size(names.draft, draft_files)}")
        if draft_files is not None:
            draft_model = HuggingFaceModel(load_weights(*draft_files, place, kind), model_name(draft_files.source.name))
        elif names.draft is not None:
            draft_model = settings.open(names.draft)
        pair = ModelPair(target_model, draft_model, chosen, (*remarks, *left_out_remark(target_model)))
        cut_to_real_tokens(pair)
        for number, model in enumerate(pair.models):
            tell(0.8 + 0.1 * number, f"checking that {model.name} reads a tree")
            check_tree_pass(model, chosen)
        undo.pop_all()
    tell(1.0, f"loaded {' ← '.join(model.name for model in pair.models)}")
    return pair


class StreamingNeeds(NamedTuple):
    """What a pair takes whose target streams, and the bytes of memory that are free (None where that is not known)."""

    needs: OffloadNeeds
    free: int | None


def streaming_needs(
    target: str | os.PathLike | None = None,
    draft: str | os.PathLike | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    offload: str = "disk",
) -> StreamingNeeds:
    """Predict what `load_pair` with `offload` would take, from settings and file headers; nothing large is read.

    Raises:
        ValueError: for what `load_pair` refuses in these, and where memory does not suffice; the message has the
            numbers.
    """
    names, place = _request(target, draft, device, dtype, offload)
    target_files, draft_files = _read(names.target), None if names.draft is None else _read(names.draft)
    assert target_files is not None, "a GGUF target does not stream"
    source, plan = target_files
    kind = _dtype([names.target], dtype, place)
    needs = predicted_needs(source, plan, place, kind, offload, beside=_weights_bytes(draft_files, kind))
    needs.check(source.name, place)
    return StreamingNeeds(needs, free_bytes(place))


class PairFacts(NamedTuple):
    """What is known of a pair before a weight is read.

    Attributes:
        vocab_size: ids that its tokenizer knows and its target has rows for.
        contexts: of the target and the draft, in tokens.
        dtype: that it loads in; None where all are GGUF files, which have their own.
    """

    tokenizer: Tokenizer
    vocab_size: int
    contexts: tuple[int, ...]
    dtype: str | None


def pair_facts(
    target: str | os.PathLike | None = None,
    draft: str | os.PathLike | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    offload: str | None = None,
    *,
    tokenizer: str | os.PathLike | None = None,
) -> PairFacts:
    """Return what settings, headers and tokenizers say of a pair; arguments as for `load_pair`.

    Raises:
        ValueError: for what `load_pair` refuses without reading weights.
    """
    names, place = _request(target, draft, device, dtype, offload)
    chosen, _ = tokenizer_of(names, tokenizer)
    vocab_size = known_ids(chosen)
    contexts = []
    for name in names:
        if name is None:
            continue
        files = _read(name)
        if files is not None and name == names.target:
            vocab_size = min(vocab_size, files.plan.config.get_text_config().vocab_size)
        contexts.append(
            int(read_gguf_header(gguf_path(name)).of_model("context_length"))
            if files is None
            else context_of(files.plan.config)
        )
    folders = [name for name in names if name is not None and not is_gguf(name)]
    loaded = str(_dtype(folders, dtype, place)).removeprefix("torch.") if folders else None
    return PairFacts(chosen, vocab_size, tuple(contexts), loaded)


def _dtype(folders: Sequence[str | os.PathLike], given: str | torch.dtype | None, place: torch.device) -> torch.dtype:
    return find_dtype(given or default_dtype(next(iter(folders), None), gpu=place.type != "cpu").dtype)


class _Names(NamedTuple):
    target: str | os.PathLike
    draft: str | os.PathLike | None


class _Files(NamedTuple):
    source: Source
    plan: Plan


def _request(
    target: str | os.PathLike | None,
    draft: str | os.PathLike | None,
    device: str | None,
    dtype: str | torch.dtype | None,
    offload: str | None,
) -> tuple[_Names, torch.device]:
    """Return the names of both models and where they go; refuse what can be refused before any file is read."""
    check_environment()
    alone = draft == NO_DRAFT
    if (target is None) != (draft is None) and not alone:
        raise ValueError(
            "found only one of target and draft, expected both, neither (the demo pair), or none as the draft"
        )
    place = _device(device)
    if offload is not None:
        check_tier(offload, place)
        if target is not None and is_gguf(target):
            raise ValueError(
                f"offload: found {offload!r} for a GGUF file, expected none: llama.cpp reads its files through memory "
                "itself"
            )
    if dtype is not None:
        find_dtype(dtype)
        if all(name is not None and is_gguf(name) for name in (target, target if alone else draft)):
            raise ValueError(f"dtype: found {str(dtype)[:40]!r} for GGUF files, expected none: they have their own")
    target = DEMO_PAIR / "target" if target is None else target
    draft = DEMO_PAIR / "draft" if draft is None else draft
    return _Names(target, None if alone else draft), place


def _read(name: str | os.PathLike) -> _Files | None:
    """Return what a model's small files say; None for a GGUF file, which llama.cpp reads."""
    if is_gguf(name):
        path = gguf_path(name)
        with explained(str(name), "a GGUF file that can be read"):
            architecture = read_gguf_header(path).architecture
        check_gguf_architecture(str(name), architecture)
        return None
    source = locate(name)
    return _Files(source, read_plan(source))


def _size(name: str | os.PathLike, files: _Files | None) -> str:
    if files is None:
        return f"{gguf_path(name).stat().st_size / 1e6:,.0f} MB"
    return f"{sum(math.prod(shape) for shape, _ in files.plan.stored.values()) / 1e6:,.0f} million weights"


def _weights_bytes(draft_files: _Files | None, dtype: torch.dtype) -> int:
    """Return the memory of a resident draft: its weights twice, dequantised, as compiled passes hold them in tiles."""
    if draft_files is None:
        return 0
    packed = 8 if draft_files.plan.quantised == COMPRESSED_TENSORS else 1
    stored = draft_files.plan.stored.values()
    return 2 * sum(math.prod(shape) * (packed if kind == "I32" else 1) for shape, kind in stored) * dtype.itemsize


def _device(name: str | None) -> torch.device:
    """Return where the models go, refusing a place that cannot hold a tensor."""
    if name == SPREAD and find_spec("accelerate") is None:
        raise ValueError("device: found auto without the package accelerate, expected it (pip install accelerate)")
    if name is None or name == SPREAD:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise ValueError("it holds no numbers")
        torch.zeros(1, device=device)
    except Exception as error:  # each backend has its own way of saying that it is not there
        raise ValueError(
            f"device: found {str(name)!r}, which cannot be used here ({one_line(error)}), expected such as cpu, or "
            "cuda on a machine with a CUDA device"
        ) from error
    return device
