"""The one tokenizer of a pair: its models have to number tokens alike, and no id may lie beyond their rows."""

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from transformers import AutoTokenizer

from ..files.gguf_header import is_gguf
from .gguf.model import gguf_path
from .gguf.tokenizer import GGUFTokenizer
from .language_model import ModelPair
from .model_files import Source, explained, locate
from .protocol import Tokenizer

PROBES = (  # texts that converted tokenizers get wrong
    "def f(x):\n\treturn x + 1  # naïve ☃ 中文", "Hello world", " leading", "   three spaces", "a\n\n\nb \t\r\n",
    "33333 1½", "Cửa Việt", "🦙 👩‍👩‍👧", "I'll we'VE", "<unk><s>x</s>",
)  # fmt: skip
FILES = re.compile(r"(tokenizer|tekken)\.json$|(vocab|merges)\.|.*\.(model|tiktoken)$")  # that hold a vocabulary
Names = Sequence[str | os.PathLike | None]


def tokenizer_of(names: Names, given: str | os.PathLike | None) -> tuple[Tokenizer, tuple[str, ...]]:
    """Return the tokenizer of some models, the target first, and what to know of it.

    None takes the first folder's tokenizer, and that of a GGUF file where there is none.
    """
    tokenizers: dict[str, Tokenizer] = {}
    for name in (given, *names):
        if name is not None and str(name) not in tokenizers:
            tokenizers[str(name)] = (
                GGUFTokenizer(gguf_path(name), str(name)) if is_gguf(name) else _of_folder(locate(name))
            )
    original = next((name for name in tokenizers if not is_gguf(name)), next(iter(tokenizers)))
    chosen = tokenizers.pop(original)
    remarks: list[str] = []
    for name, tokenizer in tokenizers.items():
        _check_same_tokens(chosen, tokenizer, original, name)
        if isinstance(tokenizer, GGUFTokenizer) and not isinstance(chosen, GGUFTokenizer):
            remarks += _differing_ids(chosen, tokenizer, original, name)
    return chosen, tuple(remarks)


def _of_folder(source: Source) -> Tokenizer:
    source.read_object("tokenizer_config.json")  # transformers takes the last of a key given twice
    expected = "tokenizer files that transformers can read and that encode text"
    try:
        with explained(source.name, expected, "a tokenizer that does not work"):
            tokenizer: Any = AutoTokenizer.from_pretrained(source.place, trust_remote_code=False)
            ids = tokenizer.encode(PROBES[0])
            tokenizer.decode(ids)
    except ValueError:
        source.read_object("tokenizer.json")  # refuses what is no JSON by its name
        if os.path.isdir(source.place) and not any(map(FILES.match, os.listdir(source.place))):
            raise ValueError(
                f"{source.name}: found no tokenizer files, expected files such as tokenizer.json"
            ) from None
        raise
    if not ids:
        raise ValueError(f"{source.name}: found a tokenizer that makes no tokens of {PROBES[0]!r}, expected some")
    return tokenizer


def _check_same_tokens(a: Tokenizer, b: Tokenizer, name_a: str, name_b: str) -> None:
    """Refuse a pair whose token ids mean different things; extra tokens at the end of one of them are harmless.

    Files of llama.cpp write the spaces of some tokens as spaces, other formats as SentencePiece's "▁".
    """
    vocab_a, vocab_b = a.get_vocab(), b.get_vocab()
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
    sizes = f"{len(vocab_a):,} tokens ({_kind(a)}) and {len(vocab_b):,} ({_kind(b)})"
    how_far = f"in {len(differing):,} of {len(ids):,} ids that both have, the first"
    if len(differing) == 1:
        how_far = f"in one {'special ' if _is_special(first, a, b) else ''}token only"
    raise ValueError(
        f"tokenizers differ {how_far}: {example}; found {sizes}, expected a draft with the target's tokenizer"
    )


def _kind(tokenizer: Tokenizer) -> str:
    inner = getattr(tokenizer, "backend_tokenizer", None)  # of transformers' fast ones
    return type(tokenizer if inner is None else inner.model).__name__


def _is_special(index: int, *tokenizers: Tokenizer) -> bool:
    added = [tokenizer.added_tokens_decoder.get(index) for tokenizer in tokenizers]
    return any(token is not None and token.special for token in added)


def _differing_ids(chosen: Tokenizer, other: Tokenizer, name: str, name_other: str) -> Iterable[str]:
    """Yield a sentence where a folder and a GGUF file give other ids for the same text."""
    differing = [text for text in PROBES if chosen.encode(text) != other.encode(text)]
    if differing:
        yield (
            f"The tokenizer of {name} gives other ids than llama.cpp does with that of {name_other} for "
            f"{len(differing)} of {len(PROBES)} texts, such as {differing[0]!r}: {chosen.encode(differing[0])[:8]} and "
            f"{other.encode(differing[0])[:8]}. The first is used."
        )


def known_ids(tokenizer: Tokenizer) -> int:
    """Return how many ids there are before those that no token has."""
    return tokenizer.known if isinstance(tokenizer, GGUFTokenizer) else max(tokenizer.get_vocab().values()) + 1


def cut_to_real_tokens(pair: ModelPair) -> None:
    """Drop the logits that the target's tokenizer has no token for, from every model."""
    real = min(known_ids(pair.tokenizer), pair.target.vocab_size)
    for model in pair.models:
        readable = model.vocab_size
        if readable < real:
            raise ValueError(
                f"{model.name}: found a vocabulary of {readable} logits, expected at least {real}: it could not read "
                f"token {readable} ({_by_id(pair.tokenizer.get_vocab()).get(readable)!r}) of {pair.target.name}"
            )
        model.vocab_size = real
    beyond = next((token for token in pair.tokenizer.encode(PROBES[0]) if token >= real), None)
    if beyond is not None:
        token = _by_id(pair.tokenizer.get_vocab()).get(beyond)
        raise ValueError(
            f"{pair.target.name}: found a tokenizer that makes token {beyond} ({token!r}) of any text, expected "
            f"ids below the model's {real} rows"
        )


def _by_id(vocab: dict[str, int]) -> dict[int, str]:
    return {index: token for token, index in vocab.items()}
