"""Tiny random models on disk with a chat template."""

from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from tests.conftest import tiny_llama

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHATML
)
FAILING = "{{ raise_exception('no such role') }}"


class Reader(NamedTuple):
    """A tokenizer with a vocabulary size, as prompt encoding expects."""

    tokenizer: Any
    vocab_size: int = 1 << 20


def chat_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """Return a byte tokenizer with ChatML's two special tokens, 258 tokens in total."""
    tokenizer = Tokenizer(BPE({letter: index for index, letter in enumerate(sorted(ByteLevel.alphabet()))}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marked = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    marked.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    marked.chat_template = template
    return marked


def save_chat_pair(
    folder: Path, template: str | None = CHATML, *, context: int = 512, layers: int = 1
) -> tuple[str, str]:
    """Write a target and a draft with random weights; return their folders."""
    names = []
    for seed, name in enumerate(("target", "draft"), start=1):
        chat_tokenizer(template).save_pretrained(folder / name)
        tiny_llama(seed, vocab=258, layers=layers, context=context).model.save_pretrained(folder / name)
        names.append(str(folder / name))
    return names[0], names[1]
