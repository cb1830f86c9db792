"""Load a target, with or without a draft, and check that the models are complete and can read a tree.

`model_sources` resolves names and reads files.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from ..files.extras import provided
from ..files.model_names import model_name
from .checkpoint import SPREAD
from .default_dtype import default_dtype
from .folders import find_files
from .generation_settings import ignored_settings_remark
from .language_model import ModelPair
from .model_files import one_line
from .model_sources import LoadRequest, ModelFiles
from .pair_spec import PairSpec
from .pair_tokenizer import choose_tokenizer, cut_to_real_tokens, id_count
from .protocol import Tokenizer, find_dtype
from .threads import limit_threads, release_threads
from .tree_pass_check import check_tree_pass


def load_pair(
    target: str | os.PathLike | None = None,
    draft: str | os.PathLike | None = None,
    device: str | None = None,
    dtype: str | torch.dtype | None = None,
    offload: str | None = None,
    tokenizer: str | os.PathLike | None = None,
) -> ModelPair:
    """Load the pair specified by a `PairSpec` with these fields; see `load`."""
    return load(PairSpec(target, draft, device, dtype, offload, tokenizer))


def load(spec: PairSpec, *, progress: Callable[[float, str], None] | None = None) -> ModelPair:
    """Load a target and a draft, or a target alone.

    Models are often padded to more logits than their tokenizer has tokens, even by different amounts within a family.
    Both are truncated to the ids of the target's tokenizer, so no other token is ever drafted or sampled: decoding
    preserves the target's distribution over real tokens, whatever the draft.

    Attention uses PyTorch's fused kernel if the model family supports it, otherwise plain operations. Each model then
    reads one small tree (`tree_pass_check`), which takes up to seven passes over at most 20 tokens.
    `pair.target.close()` stops the streaming of layers.

    Args:
        progress: called with the completed fraction and a message about the current stage.

    Raises:
        ValueError: naming the model; no partially loaded model remains in memory. Causes include weights that are
            missing, surplus, non-finite or of the wrong shape, a model that cannot read a tree, and a draft with fewer
            logits than the target has real tokens.
    """
    return _load_pair(inspect_pair(spec), progress or (lambda fraction, words: None))


class PairFiles(NamedTuple):
    """A pair before its weights are read.

    Attributes:
        request: how to load the target.
        models: the target, and the draft if there is one.
        tokenizer_files: files of an explicitly requested tokenizer.
    """

    request: LoadRequest
    models: tuple[ModelFiles, ...]
    tokenizer_files: tuple[ModelFiles, ...]

    def tokenizer(self) -> tuple[Tokenizer, tuple[str, ...]]:
        """Return the tokenizer shared by all models, and remarks about it."""
        return choose_tokenizer((*self.tokenizer_files, *self.models))


def inspect_pair(spec: PairSpec) -> PairFiles:
    """Read the settings and headers of a pair's models; raise ValueError for invalid arguments or models."""
    for check in provided("environment_checks"):
        check()
    if (spec.target is None) != (spec.draft is None) and not spec.is_alone:
        raise ValueError(
            'found only one of target and draft, expected both, neither (the demo pair), or the draft "none"'
        )
    device = _device(spec.device)
    target = find_files(spec.sources[0], spec, device)
    if spec.dtype is not None:
        find_dtype(spec.dtype)
    if device.type == "cpu":
        limit_threads()
    target.inspect()
    models = [target]
    for name in spec.sources[1:]:
        models.append(find_files(name, target=target))
        models[-1].inspect()
    folder = next((files.name for files in models if files.fixed_dtype() is None), None)
    if folder is None and spec.dtype is not None:
        raise ValueError(f"dtype: found {str(spec.dtype)[:40]!r} for GGUF files, expected none: their dtype is fixed")
    dtype = find_dtype(spec.dtype or default_dtype(folder, gpu=device.type != "cpu").dtype)
    draft_bytes = sum(draft.resident_bytes(dtype) for draft in models[1:])
    tokenizer_files = () if spec.tokenizer is None else (find_files(spec.tokenizer),)
    return PairFiles(LoadRequest(spec, device, dtype, draft_bytes=draft_bytes), tuple(models), tokenizer_files)


@release_threads()
def _load_pair(pair_files: PairFiles, report: Callable[[float, str], None]) -> ModelPair:
    request = pair_files.request._replace(progress=lambda done, words: report((1 + 2 * done) / 5, words))
    target, *drafts = pair_files.models
    nothing_to_compare = not drafts and not pair_files.tokenizer_files and target.fixed_dtype() is not None
    if not nothing_to_compare:
        report(0.0, "reading the tokenizer")
        chosen, remarks = pair_files.tokenizer()
    with ExitStack() as undo:
        report(0.2, f"reading {_short_name(target)}, {target.size}")
        models = [target.load(request)]
        undo.callback(models[0].close)
        if nothing_to_compare:  # the loaded file contains its tokenizer, so it is not read twice
            chosen, remarks = pair_files.tokenizer()
        for draft in drafts:
            report(0.6, f"reading {_short_name(draft)}, {draft.size}")
            models.append(draft.load(request._replace(target=models[0])))
        remarks += tuple(remark for model in models for remark in model.remarks)
        pair = ModelPair(
            models[0], models[1] if drafts else None, chosen, (*remarks, *ignored_settings_remark(models[0]))
        )
        cut_to_real_tokens(pair)
        for number, (model, files) in enumerate(zip(pair.models, pair_files.models, strict=True)):
            report(0.8 + 0.1 * number, f"checking that {_short_name(files)} can read a tree")
            if not model.state_indices:
                check_tree_pass(model, chosen)
        undo.pop_all()
    report(1.0, f"loaded {' ← '.join(map(_short_name, pair_files.models))}")
    return pair


def _short_name(files: ModelFiles) -> str:
    """Return a model's name without its folder, for messages."""
    return Path(model_name(files.name)).name


class PairFacts(NamedTuple):
    """Facts about a pair that are known before its weights are read.

    Attributes:
        vocab_size: number of ids known to both its tokenizer and its target.
        contexts: context of the target and of the draft, in tokens.
        dtype: dtype in which it is loaded; None if all models are GGUF files.
    """

    tokenizer: Tokenizer
    vocab_size: int
    contexts: tuple[int, ...]
    dtype: str | None


def pair_facts(spec: PairSpec) -> PairFacts:
    """Inspect a pair's settings, headers and tokenizers; raise those errors of `load` that do not depend on weights."""
    pair = inspect_pair(spec)
    chosen, _ = pair.tokenizer()
    known = id_count(chosen)
    rows = pair.models[0].rows
    convertible = any(files.fixed_dtype() is None for files in pair.models)
    return PairFacts(
        chosen,
        known if rows is None else min(known, rows),
        tuple(files.context for files in pair.models),
        str(pair.request.dtype).removeprefix("torch.") if convertible else None,
    )


def _device(name: str | None) -> torch.device:
    """Return the models' device; raise ValueError for a device on which no tensor can be allocated."""
    if name == SPREAD and find_spec("accelerate") is None:
        raise ValueError("device: auto requires the package accelerate (pip install accelerate)")
    if name is None or name == SPREAD:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "meta":
            raise ValueError("it stores no data")
        torch.zeros(1, device=device)
    except Exception as error:  # backends report missing devices with different exceptions
        raise ValueError(
            f"device: found {str(name)!r}, which cannot be used here ({one_line(error)}), expected an available "
            "device such as cpu or cuda"
        ) from error
    return device
