"""The shared tokenizer of a pair: models must agree on token ids and have a logit for each of them."""

import os
import re
from collections.abc import Iterable
from typing import Any

from transformers import AutoTokenizer

from .language_model import ModelPair
from .model_files import Source, explain_load_errors
from .model_sources import ModelFiles
from .protocol import Tokenizer

PROBE_TEXTS = (  # texts that converted tokenizers get wrong
    "def f(x):\n\treturn x + 1  # naïve ☃ 中文",
    "Hello world",
    " leading",
    "   three spaces",
    "a\n\n\nb \t\r\n",
    "33333 1½",
    "Cửa Việt",
    "🦙 👩‍👩‍👧",
    "I'll we'VE",
    "<unk><s>x</s>",
)
VOCABULARY_FILES = re.compile(r"(tokenizer|tekken)\.json$|(vocab|merges)\.|.*\.(model|tiktoken)$")


def choose_tokenizer(models: Iterable[ModelFiles]) -> tuple[Tokenizer, tuple[str, ...]]:
    """Return the first original tokenizer, or else the first converted copy, with remarks about it.

    All other tokenizers are checked against it.
    """
    tokenizers: dict[str, Tokenizer] = {}
    converted: set[str] = set()
    for files in models:
        name = str(files.name)
        if name not in tokenizers and (tokenizer := files.tokenizer()) is not None:
            tokenizers[name] = tokenizer
            if files.fixed_dtype() is not None:
                converted.add(name)
    original = next((name for name in tokenizers if name not in converted), next(iter(tokenizers)))
    chosen = tokenizers.pop(original)
    remarks: list[str] = []
    for name, tokenizer in tokenizers.items():
        _check_same_tokens(chosen, tokenizer, original, name)
        if name in converted and original not in converted:
            remarks += _differing_ids(chosen, tokenizer, original, name)
    return chosen, tuple(remarks)


def folder_tokenizer(source: Source) -> Tokenizer:
    """Return the tokenizer in a model's folder; raise ValueError if it does not work."""
    source.read_object("tokenizer_config.json")  # rejects duplicate keys, which transformers does not
    expected = "tokenizer files that transformers can read and that encode text"
    try:
        with explain_load_errors(source.name, expected, "a tokenizer that does not work"):
            tokenizer: Any = AutoTokenizer.from_pretrained(source.location, trust_remote_code=False)
            ids = tokenizer.encode(PROBE_TEXTS[0])
            tokenizer.decode(ids)
    except ValueError:
        source.read_object("tokenizer.json")  # raises an error that names a file that is not JSON
        if os.path.isdir(source.location) and not any(map(VOCABULARY_FILES.match, os.listdir(source.location))):
            raise ValueError(
                f"{source.name}: found no tokenizer files, expected files such as tokenizer.json"
            ) from None
        raise
    if not ids:
        raise ValueError(
            f"{source.name}: found a tokenizer that encodes {PROBE_TEXTS[0]!r} as no tokens, expected at least one"
        )
    return tokenizer


def _check_same_tokens(a: Tokenizer, b: Tokenizer, name_a: str, name_b: str) -> None:
    """Raise ValueError if token ids differ in meaning; extra tokens at the end of one vocabulary are harmless.

    llama.cpp files write the spaces in some tokens as spaces, whereas other formats use SentencePiece's "▁".
    """
    vocab_a = a.get_vocab()
    vocab_b = b.get_vocab()
    if vocab_a == vocab_b:
        return
    by_id_a, by_id_b = ({i: t.replace("▁", " ") for t, i in vocab.items()} for vocab in (vocab_a, vocab_b))
    common = min(max(by_id_a), max(by_id_b))
    ids = sorted(index for index in by_id_a.keys() | by_id_b.keys() if index <= common)
    differing = [index for index in ids if by_id_a.get(index) != by_id_b.get(index)]
    if not differing:
        return
    first = differing[0]
    example = f"id {first} is {by_id_a.get(first)!r} in {name_a} and {by_id_b.get(first)!r} in {name_b}"
    sizes = f"{len(vocab_a):,} tokens ({_tokenizer_type(a)}) and {len(vocab_b):,} ({_tokenizer_type(b)})"
    how_far = f"in {len(differing):,} of {len(ids):,} common ids, for example"
    if len(differing) == 1:
        how_far = f"in one {'special ' if _is_special(first, a, b) else ''}token only"
    raise ValueError(
        f"tokenizers differ {how_far}: {example}; found {sizes}, expected a draft with the target's tokenizer"
    )


def _tokenizer_type(tokenizer: Tokenizer) -> str:
    inner = getattr(tokenizer, "backend_tokenizer", None)  # only fast tokenizers have one
    return type(tokenizer if inner is None else inner.model).__name__


def _is_special(index: int, *tokenizers: Tokenizer) -> bool:
    added = [tokenizer.added_tokens_decoder.get(index) for tokenizer in tokenizers]
    return any(token is not None and token.special for token in added)


def _differing_ids(chosen: Tokenizer, other: Tokenizer, name: str, name_other: str) -> Iterable[str]:
    """Yield a sentence if the tokenizers of a folder and a GGUF file give different ids for the same text."""
    differing = [text for text in PROBE_TEXTS if chosen.encode(text) != other.encode(text)]
    if differing:
        first = differing[0]
        yield (
            f"The tokenizer of {name} and llama.cpp's tokenizer for {name_other} give different ids for "
            f"{len(differing)} of {len(PROBE_TEXTS)} test texts. The former is used. For example, it encodes {first!r} "
            f"as {chosen.encode(first)[:8]}, the latter as {other.encode(first)[:8]}."
        )


def id_count(tokenizer: Tokenizer) -> int:
    """Return the largest token id plus 1."""
    return max(tokenizer.get_vocab().values()) + 1


def cut_to_real_tokens(pair: ModelPair) -> None:
    """Truncate every model's logits to the vocabulary of the target's tokenizer."""
    real = min(id_count(pair.tokenizer), pair.target.vocab_size)
    for model in pair.models:
        readable = model.vocab_size
        if readable < real:
            raise ValueError(
                f"{model.name}: found a vocabulary of {readable} logits, expected at least {real}: it cannot read "
                f"token {readable} ({_by_id(pair.tokenizer.get_vocab()).get(readable)!r}) of {pair.target.name}"
            )
        model.vocab_size = real
    beyond = next((token for token in pair.tokenizer.encode(PROBE_TEXTS[0]) if token >= real), None)
    if beyond is not None:
        token = _by_id(pair.tokenizer.get_vocab()).get(beyond)
        raise ValueError(
            f"{pair.target.name}: found a tokenizer that adds token {beyond} ({token!r}) to every text, expected "
            f"ids below {real}, the model's number of logits"
        )


def _by_id(vocab: dict[str, int]) -> dict[int, str]:
    return {index: token for token, index in vocab.items()}
