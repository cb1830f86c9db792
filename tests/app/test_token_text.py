"""The pieces of streamed text add up to the text, even if tokens split characters."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from ui.token_text import TokenText

LETTERS = "ab é€🎉🔥日本語👩‍👩‍👧 שלום\n\ufffd"


def byte_level(size: int) -> Tokenizer:
    """Return a tokenizer with bytes as tokens, as in GPT-2, and some pairs of bytes."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(["日本 the fox 🎉 jumps 🔥 over 日本語"] * 9, trainer)
    return made


def byte_fallback() -> Tokenizer:
    """Return a tokenizer with byte fallback, as in Llama 2 and Gemma."""
    known = {f"<0x{byte:02X}>": byte for byte in range(256)} | {letter: 256 + n for n, letter in enumerate("ab é")}
    made = Tokenizer(models.BPE(known, [], byte_fallback=True))
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return made


TOKENIZERS = {"bytes": byte_level(256), "pairs of bytes": byte_level(280), "fallback": byte_fallback()}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_pieces_are_whole_characters_and_add_up_to_the_text(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    numbers = random.Random(kind)
    for _ in range(150):
        prompt, text = ("".join(numbers.choices(LETTERS, k=numbers.randint(1, 9))) for _ in "ab")
        context, tokens = (tokenizer.encode(part, add_special_tokens=False).ids for part in (prompt, text))
        end = numbers.randint(1, len(tokens))
        cut = TokenText(tokenizer.decode, context)
        streamed = "".join(cut.pieces(tokens[:end]))
        assert text.startswith(streamed)
        kept = tokenizer.decode(cut.whole(tokens[:end]))
        assert text.startswith(kept) and kept == streamed
        following = cut.pieces(tokens[end:])
        assert (streamed + "".join(following)).rstrip("\ufffd") == text.rstrip("\ufffd")
        assert len(following) == len(tokens) - end


def test_invalid_bytes_are_shown_once_certain() -> None:
    tokenizer = TOKENIZERS["bytes"]
    party, letter = (tokenizer.encode(text).ids for text in ("🎉", "a"))
    text = TokenText(tokenizer.decode, letter)
    assert text.pieces(party[:2]) == ["", ""] and text.whole(party[:2]) == []
    assert "".join(text.pieces(letter)) == "\ufffda" and text.whole([*party[:2], *letter]) == [*party[:2], *letter]


def test_a_passage_starts_and_ends_at_characters() -> None:
    tokenizer = TOKENIZERS["bytes"]
    tokens = tokenizer.encode("🎉b🔥").ids
    assert TokenText(tokenizer.decode, tokens).passage(tokens[2:5], tokens[5:8]) == ("b", "\ufffd")
    assert TokenText(tokenizer.decode, tokens).passage(tokens[2:4], tokens[4:7]) == ("", "b")


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_partial_characters_have_a_readable_label(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    tokens = tokenizer.encode("aך", add_special_tokens=False).ids
    text = TokenText(tokenizer.decode, tokens[:1])
    assert [text.label(token) for token in tokens] == ["a", "<bytes>", "<bytes>"]
