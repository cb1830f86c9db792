"""llama.cpp's tokenizer of small vocabularies: the ids are those of the original library's, or worked out by hand."""

import json

import pytest
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordPiece
from tokenizers.pre_tokenizers import ByteLevel, Digits, Split
from transformers import PreTrainedTokenizerFast

from sequoia_core.models.chat import Turn, chat_remarks, encode_chat
from sequoia_core.models.gguf.tokenizer import GGUFTokenizer
from sequoia_core.models.loading import load_pair
from sequoia_core.models.prompting import Prompting, encode_prompt
from tests.chat_pair import CHATML, Reader
from tests.gguf_files import ROOT, write_random, write_vocabulary

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
TEXTS = [
    "", " ", "  ", "   ", "\t", "\n", "\n\n", "\n\n\n", "\t\n", "Hello world", " Hello world", "  Hello  world  ",
    "Hello, y'all! How are you 😁 ?我想在apple工作1314151天～", "I'll, we'VE, don't", "3", "33", "333", "3333",
    "33333333", "1½ ¾", "Cửa Việt", "discards", "нещо на Български", "កាន់តែពិសេសអាចខលចេញ", "🚀 (normal) 😶‍🌫️ (emojis) ✅",
    "ied 4 ½ months", "w048 7tuijk dsdfhu", "a\r\nb\r\n\r\nc", " \u00a0x", "x = {'a': [1, 2]};\n\n\n\n\treturn  x", "é",
    "e\u0301", "()[]{}<>!!!???...---", "def f(x):\n    return x + 1\n", "zero\0byte",
]  # fmt: skip
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SPLITS = {  # llama.cpp's names of pre-tokenizers -> what the original tokenizer.json of such a family has
    "gpt-2": [ByteLevel(add_prefix_space=False)],
    "starcoder": [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)],
    "llama-bpe": [Split(Regex(LLAMA_3), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)],
    "qwen2": [
        Split(Regex(LLAMA_3.replace("{1,3}", "")), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def pieces() -> dict:
    """The demo pair's byte pairs: 4,096 tokens, of which 0 ends a text."""
    return json.loads((ROOT / "assets" / "demo" / "target" / "tokenizer.json").read_text())["model"]


@pytest.mark.parametrize("pre", SPLITS)
def test_byte_pairs_are_split_as_their_family_splits_them(pre, pieces, tmp_path):
    tokens = sorted(pieces["vocab"], key=pieces["vocab"].get)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in pieces["merges"]]
    found = GGUFTokenizer(
        write_vocabulary(tmp_path / "v.gguf", "gpt2", tokens, types={0: CONTROL}, pre=pre, merges=merges), "v"
    )
    original = Tokenizer(
        BPE(pieces["vocab"], [tuple(merge.split(" ")) for merge in merges], ignore_merges=pre == "llama-bpe")
    )
    original.pre_tokenizer = pre_tokenizers.Sequence(SPLITS[pre])
    for text in TEXTS:
        ids = original.encode(text).ids
        assert found.encode(text, add_special_tokens=False) == ids, text
        assert found.decode(ids) == text
    assert found.get_vocab() == pieces["vocab"]


WORDS = [
    "▁the",
    "▁a",
    "▁cat",
    "ing",
    "▁▁",
    "▁▁▁▁",
    "he",
    "th",
    "in",
    "ca",
    "at",
    "▁t",
    "▁c",
    "cat",
    "▁w",
    "or",
    "ld",
    "orld",
]


def sentence_pieces() -> tuple[list[str], list[float], dict[int, int]]:
    """Return tokens, scores and types: three special tokens, 256 bytes, the letters of WORDS, and WORDS by length."""
    letters = sorted({letter for word in WORDS for letter in word} | set("bdegijklmnopqrsuvxyzH.,!ế"))
    words = sorted({*WORDS, "▁ca", "▁th"}, key=lambda word: (len(word), word))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *letters]
    kinds = {0: UNKNOWN, 1: CONTROL, 2: CONTROL} | {token: BYTE for token in range(3, 259)}
    return tokens, [-float(token) for token in range(len(tokens))], kinds


def original_sentence_pieces(tokens: list[str], *, prefix: bool) -> Tokenizer:
    """Return the same as byte pairs that merge in the order of their scores, as transformers converts such models."""
    ids = {token: place for place, token in enumerate(tokens)}
    merges = [
        (ids[word], (word[:cut], word[cut:]))
        for word in tokens[259:]
        for cut in range(1, len(word))
        if word[:cut] in ids and word[cut:] in ids
    ]
    found = Tokenizer(BPE(ids, [pair for _, pair in sorted(merges)], byte_fallback=True, unk_token="<unk>"))
    spaces = normalizers.Replace(" ", "▁")
    found.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    found.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return found


@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_pieces_with_and_without_a_leading_space(prefix, tmp_path):
    tokens, scores, kinds = sentence_pieces()
    found = GGUFTokenizer(
        write_vocabulary(
            tmp_path / "v.gguf", "llama", tokens, types=kinds, scores=scores, add_space_prefix=prefix, bos_token_id=1,
            eos_token_id=2, unknown_token_id=0,
        ),
        "v",
    )  # fmt: skip
    original = original_sentence_pieces(tokens, prefix=prefix)
    for text in [*TEXTS, "the cat", " the  cat", "catcat thing", "    the", "world"]:
        ids = original.encode(text).ids if text else []
        assert found.encode(text, add_special_tokens=False) == ids, text
        assert found.encode(text) == [1, *ids]
        assert found.decode(ids) == text
    cat = tokens.index("▁cat" if prefix else "cat")
    assert found.encode("cat</s>", add_special_tokens=False)[:2] == [cat, 2]  # worked out by hand
    assert found.decode([1, cat, 2], skip_special_tokens=True) == "cat" and "</s>" in found.decode([cat, 2])
    assert found.special_tokens_map == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    half = found.encode("é", add_special_tokens=False)[-2:]
    assert [found.decode(half[:1]), found.decode(half[1:]), found.decode(half)] == ["\ufffd", "\ufffd", "é"]


def test_word_pieces(tmp_path):
    words = ["the", "cat", "play", "##ing", "##s", "##t", "un", "##play", "!", ",", "e", "##e", "我", "1", "##3"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {token: place for place, token in enumerate([*special, *words])}
    original = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    original.normalizer = normalizers.BertNormalizer(lowercase=True)
    original.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    stored = [*special, *(word[2:] if word.startswith("##") else "▁" + word for word in words)]
    found = GGUFTokenizer(
        write_vocabulary(
            tmp_path / "v.gguf", "bert", stored, types={token: CONTROL for token in range(5)} | {1: UNKNOWN},
            bos_token_id=2, seperator_token_id=3, padding_token_id=0, unknown_token_id=1, cls_token_id=2,
        ),
        "v",
    )  # fmt: skip
    for text in ("The cat plays!", "playing, unplaying", "É ée 我 13", "cat\n\n the", "dog the"):
        ids = original.encode(text).ids
        assert found.encode(text, add_special_tokens=False) == ids, text
        assert found.encode(text) == [2, *ids, 3]


def test_every_special_token_of_a_file_is_read_as_itself_and_unused_ones_at_the_end_do_not_count(pieces, tmp_path):
    tokens = sorted(pieces["vocab"], key=pieces["vocab"].get)
    marks = [
        "<｜begin▁of▁sentence｜>",
        "<｜User｜>",
        "<|im_start|>",
        "<|im_end|>",
        "<unused0>",
        "<tool>",
        "[PAD0]",
        "[PAD1]",
    ]
    kinds = {4096 + place: kind for place, kind in enumerate([CONTROL] * 5 + [USER_DEFINED] + [UNUSED] * 2)}
    merges = [" ".join(pair) for pair in pieces["merges"]]
    found = GGUFTokenizer(
        write_vocabulary(
            tmp_path / "v.gguf", "gpt2", tokens + marks, types={0: CONTROL} | kinds, pre="qwen2", merges=merges,
            bos_token_id=4096, eos_token_id=4099, add_bos_token=True, chat_template="{{ bos_token }}" + CHATML,
        ),
        "v",
    )  # fmt: skip
    for place, mark in enumerate(marks[:6]):
        around = [found.encode(part, add_special_tokens=False) for part in ("x ", " y")]
        assert found.encode(f"x {mark} y", add_special_tokens=False) == [*around[0], 4096 + place, *around[1]]
        assert found.decode([4096 + place]) == mark
    assert max(found.get_vocab().values()) == 4096 + 5
    assert {each.content for each in found.added_tokens_decoder.values() if each.special} == {tokens[0], *marks[:5]}
    assert found.encode("x")[0] == 4096
    # what the template writes is read with its marks, once, as a folder's tokenizer reads it
    folder = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(ROOT / "assets" / "demo" / "target" / "tokenizer.json")),
        bos_token=marks[0], eos_token=marks[3],
    )  # fmt: skip
    folder.add_special_tokens({"additional_special_tokens": [marks[1], marks[2], marks[4]]})
    folder.chat_template = found.chat_template
    talk = [Turn("user", "hello"), Turn("assistant", "hi <|im_end|>"), Turn("user", "go on")]
    assert found.decode(encode_chat(found, talk)) == folder.decode(encode_chat(folder, talk))
    assert encode_chat(found, talk).count(4096) == 1 and encode_prompt(Reader(found), "x", Prompting(False))[0] == 4096
    assert chat_remarks(found, talk) == chat_remarks(folder, talk) != []


BROKEN = {
    "no bytes": ("llama", ["<unk>", "<s>", "</s>", "▁", "a"], {"scores": [0.0] * 5}, "token for byte 0x00"),
    "no vocabulary": ("none", ["a"], {}, "none|vocabulary"),
    "no marks": ("bert", ["a", "b"], {}, "word pieces without bos_token, sep_token, unk_token"),
    "another pre-tokenizer": ("gpt2", ["a", "b"], {"pre": "never", "merges": ["a b"]}, "never"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_vocabularies_that_would_end_the_process_are_refused(kind, tmp_path):
    model, tokens, fields, reason = BROKEN[kind]
    path = write_vocabulary(tmp_path / "v.gguf", model, tokens, **fields)
    with pytest.raises(ValueError, match=f"^name: found .*({reason})") as error:
        GGUFTokenizer(path, "name")
    assert "\n" not in str(error.value)


def test_ids_that_are_no_tokens_are_refused(pieces, tmp_path):
    tokens = sorted(pieces["vocab"], key=pieces["vocab"].get)
    found = GGUFTokenizer(write_vocabulary(tmp_path / "v.gguf", "gpt2", tokens, pre="gpt-2", merges=["a b"]), "name")
    for token in (-1, 4096, 2**31):
        with pytest.raises(ValueError, match=f"name: found token {token}, expected ids from 0 to 4095"):
            found.decode([5, token])


def test_a_folder_whose_ids_differ_from_the_files_is_said(tmp_path):
    path = write_random("llama", tmp_path / "t.gguf")
    letters = [chr(code) for code in range(ord("!"), ord("!") + 63)]
    vocabulary = {letter: place for place, letter in enumerate([*letters, letters[0] + letters[1]])}
    for lowered, said in ((False, 0), (True, 1)):
        tokenizer = Tokenizer(BPE(vocabulary, [(letters[0], letters[1])]))
        tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        if lowered:
            tokenizer.normalizer = normalizers.Lowercase()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / f"{lowered}")
        pair = load_pair(path, "none", tokenizer=tmp_path / f"{lowered}")
        assert len(pair.remarks) == said
    assert "other ids than llama.cpp" in pair.remarks[0] and repr(pair).count("\n") == 0
