"""The pair and the prompts that a command was given. Heavy modules are imported where they are needed."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ..files.model_names import ASSETS, needed_draft, pair_names
from .output import held_stderr, progress_bar, tell

if TYPE_CHECKING:
    from ..decoding.sampling import SamplingConfig
    from ..models.language_model import ModelPair
    from ..models.prompting import Prompting


def checked_sampling(temperature: float, top_p: float, verifier: str | None) -> SamplingConfig:
    """Return the way of sampling, and refuse a verifier that does not exist before a model is loaded for it."""
    from ..decoding.sampling import SamplingConfig
    from ..decoding.verifiers import choose_verifier

    sampling = SamplingConfig(temperature, top_p)
    if verifier is not None:
        choose_verifier(verifier, greedy=sampling.greedy)
    return sampling


def open_pair(
    target: str | None,
    draft: str | None,
    device: str | None = None,
    dtype: str | None = None,
    offload: str | None = None,
    *,
    tokenizer: str | None = None,
    draft_for: str | None = None,
) -> ModelPair:
    """Load a pair, saying on a terminal which dtype it is in where none was asked for, and how packing gets on.

    Args:
        draft_for: why there has to be a draft; None where the target may be alone.
    """
    if draft_for is not None:
        needed_draft(pair_names(target, draft)[1], draft_for)
    from huggingface_hub.utils import logging as hub_logging
    from transformers.utils import logging

    from ..models.default_dtype import default_dtype
    from ..models.loading import load_pair
    from ..models.protocol import dtype_name

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    hub_logging.set_verbosity_error()  # else each retry is a line of its own on stderr
    progress = None if offload is None else progress_bar(as_json=False)
    with held_stderr() if progress is None else nullcontext():
        pair = load_pair(target, draft, device, dtype, offload, progress, tokenizer=tokenizer)
    if dtype is None:
        chosen = default_dtype(target, gpu=pair.target.device.type != "cpu")
        other = "; --dtype chooses another" if pair.in_transformers else ""
        tell(f"Loaded in {dtype_name(pair.target)} ({chosen.reason}){other}.")
    return pair


def prompt_texts(prompts: Path | None, count: int | None, column: str | None = None) -> list[str]:
    from ..files.prompt_files import load_prompts

    return load_prompts(prompts or ASSETS / "prompts" / "prompts.jsonl", column)[:count]


def prompting_of(chat: bool | None, template_arguments: list[str] | None) -> Prompting:
    """Return how texts become prompts, by the options of a command."""
    from ..models.prompting import Prompting, parsed_arguments

    return Prompting(chat, parsed_arguments(template_arguments or ()))


def encode_within(pair: ModelPair, texts: list[str], room: int, prompting: Prompting) -> list[list[int]]:
    """Return token ids of each prompt, refusing one that leaves no room for the new tokens."""
    context, found = pair.max_context, encoded(pair, texts, prompting)
    for text, ids in zip(texts, found, strict=True):
        if not ids or len(ids) + room > context:
            raise ValueError(
                f"prompt {text[:40]!r}: found {len(ids)} tokens, expected 1 to {context - room} "
                f"(context {context} less --max-new-tokens {room})"
            )
    return found


def encoded(pair: ModelPair, texts: list[str], prompting: Prompting) -> list[list[int]]:
    from ..models.prompting import encode_prompt

    with held_stderr():
        return [encode_prompt(pair, text, prompting) for text in texts]
