"""Load a target, with its draft or alone, from folders or the hub: whole and able to read a tree, or not at all.

Knows tokenizers, and what the engine asks of a model; what makes one model's files whole is known by `checkpoint`.
"""

import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import NamedTuple

import torch

from ..files.gguf_header import is_gguf, read_gguf_header
from ..files.model_names import MTP, model_name
from ..native.instruction_sets import check_environment
from ..native.threads import limit_threads, release_threads
from .architectures import check_gguf_architecture
from .checkpoint import COMPRESSED_TENSORS, SPREAD, Plan, load_weights, read_plan
from .default_dtype import default_dtype
from .generation_settings import left_out_remark
from .gguf.model import GGUFModel, gguf_path
from .gguf.tokenizer import GGUFTokenizer
from .heads.head_files import HeadFiles, find_head, read_head
from .heads.mtp import MtpFiles, find_mtp, read_mtp
from .heads.session import HeadModel
from .language_model import HuggingFaceModel, ModelPair, context_of
from .model_files import Source, explained, locate, one_line
from .offload.loading import check_tier, load_offloaded, predicted_needs
from .offload.needs import OffloadNeeds
from .offload.packed_layers import DamagedCopy
from .pair_spec import PairSpec
from .pair_tokenizer import cut_to_real_tokens, known_ids, tokenizer_of
from .protocol import LanguageModel, Tokenizer, find_dtype
from .tree_pass_check import check_tree_pass


def load_pair(
    target: str | os.PathLike | None = None,
    draft: str | os.PathLike | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    offload: str | None = None,
    tokenizer: str | os.PathLike | None = None,
) -> ModelPair:
    """Load the pair of a `PairSpec` with these fields; see `load`."""
    return load(PairSpec(target, draft, device, dtype, offload, tokenizer))


def load(spec: PairSpec, *, progress: Callable[[float, str], None] | None = None) -> ModelPair:
    """Load a target and a draft, or a target alone.

    Models are often padded to a rounder number of logits than their tokenizer has tokens, differently so within one
    family. Both are cut to the ids that the target's tokenizer knows, so that no other token is ever drafted or
    sampled: the distribution that decoding preserves is the target's own given a real token, whatever the draft.

    Attention runs through PyTorch's fused kernel where the family has it and as plain operations elsewhere. Each model
    then reads one small tree (`tree_pass_check`), which takes four passes over at most twelve tokens.
    `pair.target.close()` ends the streaming of layers.

    Args:
        progress: called with a fraction and words: what is read, with its size, and what is checked.

    Raises:
        ValueError: naming the model, what was found and what was expected; nothing stays half-loaded. Also for weights
            that are missing, of another shape, without a place in the model or not finite; for a model that cannot read
            a tree; and for a draft with fewer logits than the target has real tokens: it could not read those tokens.
    """
    device = _checked_device(spec)
    tell = progress or (lambda fraction, words: None)
    try:
        return _load(spec, device, tell)
    except DamagedCopy:
        pass  # what was loaded goes before the copy is made anew: once, as the disk may do so again
    return _load(spec, device, tell)


@release_threads()
def _load(spec: PairSpec, device: torch.device, tell: Callable[[float, str], None]) -> ModelPair:
    def open_file(name: str | os.PathLike) -> GGUFModel:
        asked = None if spec.device == SPREAD else spec.device
        return GGUFModel(gguf_path(name), model_name(name), device=asked)

    target, *drafts = spec.sources
    target_files, *draft_files = _files_of(spec)
    dtype = _dtype(spec, device)
    reading = f"reading {model_name(target)}, {_size(target, target_files)}"
    file: GGUFModel | None = None
    chosen: Tokenizer
    remarks: tuple[str, ...] = ()
    if target_files is None and spec.is_alone and spec.tokenizer is None:  # there is nothing to compare: read it once
        tell(0.0, reading)
        file = open_file(target)
        chosen = GGUFTokenizer(gguf_path(target), str(target), file.weights)
    else:
        tell(0.0, "reading the tokenizer")
        chosen, remarks = tokenizer_of(_with_tokens(spec, draft_files), spec.tokenizer)
    with ExitStack() as undo:
        target_model: LanguageModel
        tell(0.2, reading)
        if target_files is None:
            target_model = file or open_file(target)
        elif spec.offload is None:
            weights = load_weights(*target_files, device, dtype, spread=spec.device == SPREAD)
            target_model = HuggingFaceModel(weights, model_name(target))
        else:
            target_model = load_offloaded(
                *target_files, device, dtype, spec.offload, name=model_name(target),
                beside=_weights_bytes(draft_files, dtype),
                progress=lambda done, words: tell((1 + 2 * done) / 5, words),
            )  # fmt: skip
        undo.callback(target_model.close)
        draft_model: LanguageModel | None = None
        for draft, files in zip(drafts, draft_files, strict=True):
            tell(0.6, f"reading {model_name(draft)}, {_size(draft, files)}")
            if files is None:
                draft_model = open_file(draft)
            elif isinstance(files, HeadFiles | MtpFiles):
                assert isinstance(target_model, HuggingFaceModel), "a head for a GGUF file was refused"
                target_model.wake()
                own = target_model.model
                head = read_mtp(files, own) if isinstance(files, MtpFiles) else read_head(files, own)
                target_model.rest()
                remarks += tuple(head.remarks)
                draft_model = HeadModel(head, MTP if draft == MTP else model_name(files.source.name), target_model)
            else:
                draft_model = HuggingFaceModel(load_weights(*files, device, dtype), model_name(files.source.name))
        pair = ModelPair(target_model, draft_model, chosen, (*remarks, *left_out_remark(target_model)))
        cut_to_real_tokens(pair)
        for number, model in enumerate(pair.models):
            tell(0.8 + 0.1 * number, f"checking that {model.name} reads a tree")
            if not model.reads:
                check_tree_pass(model, chosen)
        undo.pop_all()
    tell(1.0, f"loaded {' ← '.join(model.name for model in pair.models)}")
    return pair


def streaming_needs(spec: PairSpec) -> OffloadNeeds:
    """Predict what loading a pair that streams would take, from settings and file headers; nothing large is read.

    Raises:
        ValueError: for what `load` refuses in these, and where memory does not suffice; the message has the numbers.
    """
    assert spec.offload is not None, "a pair in memory does not stream"
    device = _checked_device(spec)
    target_files, *draft_files = _files_of(spec)
    assert target_files is not None, "a GGUF target does not stream"
    source, plan = target_files
    dtype = _dtype(spec, device)
    beside = _weights_bytes(draft_files, dtype)
    needs = predicted_needs(source, plan, device, dtype, spec.offload, beside=beside)
    needs.check(source.name, device)
    return needs


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


def pair_facts(spec: PairSpec) -> PairFacts:
    """Return what settings, headers and tokenizers say of a pair; refuse what `load` does without reading weights."""
    device = _checked_device(spec)
    target_files, *draft_files = _files_of(spec)
    chosen, _ = tokenizer_of(_with_tokens(spec, draft_files), spec.tokenizer)
    known = known_ids(chosen)
    if target_files is not None:
        known = min(known, target_files.plan.config.get_text_config().vocab_size)
    contexts = tuple(map(_context, spec.sources, [target_files, *draft_files]))
    loaded = None if all(map(is_gguf, spec.sources)) else str(_dtype(spec, device)).removeprefix("torch.")
    return PairFacts(chosen, known, contexts, loaded)


def _dtype(spec: PairSpec, device: torch.device) -> torch.dtype:
    folder = next((name for name in spec.sources if not is_gguf(name)), None)
    return find_dtype(spec.dtype or default_dtype(folder, gpu=device.type != "cpu").dtype)


class _Files(NamedTuple):
    source: Source
    plan: Plan


_DraftFiles = _Files | HeadFiles | MtpFiles | None  # None for a GGUF file


def _checked_device(spec: PairSpec) -> torch.device:
    """Return where the models go; refuse what can be refused before any file is read."""
    check_environment()
    if (spec.target is None) != (spec.draft is None) and not spec.is_alone:
        raise ValueError(
            "found only one of target and draft, expected both, neither (the demo pair), or none as the draft"
        )
    device = _device(spec.device)
    if spec.offload is not None:
        check_tier(spec.offload, device)
        if is_gguf(spec.sources[0]):
            raise ValueError(
                f"offload: found {spec.offload!r} for a GGUF file, expected none: llama.cpp reads its files through "
                "memory itself"
            )
    if spec.dtype is not None:
        find_dtype(spec.dtype)
        if all(map(is_gguf, spec.sources)):
            raise ValueError(
                f"dtype: found {str(spec.dtype)[:40]!r} for GGUF files, expected none: they have their own"
            )
    if device.type == "cpu":
        limit_threads()
    return device


def _files_of(spec: PairSpec) -> tuple[_Files | None, *tuple[_DraftFiles, ...]]:
    """Return what the small files of a pair's models say; only a draft may be a head, and only of a folder's model."""
    target, drafts = _read(spec.sources[0]), []
    for name in spec.sources[1:]:
        head: HeadFiles | MtpFiles | None
        if name == MTP and target is not None:
            head = find_mtp(*target)
        else:
            head = None if is_gguf(name) or name == MTP else find_head(locate(name))
        if (head is not None or name == MTP) and target is None:
            raise ValueError(
                f"{name}: found a draft head for a GGUF file, expected a folder as its target: llama.cpp does not give "
                "the hidden states that a head reads"
            )
        drafts.append(_read(name) if head is None else head)
    return target, *drafts


def _with_tokens(spec: PairSpec, drafts: Sequence[_DraftFiles]) -> list[str | os.PathLike]:
    """Return the models of a pair that have a tokenizer; a head reads its target's tokens."""
    names = zip(spec.sources[1:], drafts, strict=True)
    return [spec.sources[0], *(name for name, files in names if not isinstance(files, HeadFiles | MtpFiles))]


def _context(name: str | os.PathLike, files: _DraftFiles) -> int:
    if files is None:
        return int(read_gguf_header(gguf_path(name)).of_model("context_length"))
    return files.settings.context if isinstance(files, HeadFiles | MtpFiles) else context_of(files.plan.config)


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


def _size(name: str | os.PathLike, files: _DraftFiles) -> str:
    if not isinstance(files, _Files):
        size = read_gguf_header(gguf_path(name)).file_bytes if files is None else files.size
        return f"{size / 1e6:,.0f} MB"
    return f"{sum(math.prod(shape) for shape, _ in files.plan.stored.values()) / 1e6:,.0f} million weights"


def _weights_bytes(drafts: Sequence[_DraftFiles], dtype: torch.dtype) -> int:
    """Return the memory of resident drafts: weights twice, dequantised, as compiled passes hold them in tiles."""
    weights = 0
    for files in drafts:
        if isinstance(files, HeadFiles | MtpFiles):
            table = files.settings.vocab * files.settings.hidden  # the target's embedding, once more
            weights += files.size // 2 + table // 2
        elif files is not None:
            packed, stored = 8 if files.plan.quantised == COMPRESSED_TENSORS else 1, files.plan.stored.values()
            weights += sum(math.prod(shape) * (packed if kind == "I32" else 1) for shape, kind in stored)
    return 2 * weights * dtype.itemsize


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
