"""llama.cpp's tokenizer with small vocabularies: ids match the original library or were worked out by hand."""

import json

import pytest
from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from sequoia_core.models.chat import Turn, chat_remarks, chat_text, encode_chat
from sequoia_core.models.loading import load_pair
from sequoia_core.models.prompting import Prompting, encode_prompt
from sequoia_extras.gguf.model import GGUFModel
from sequoia_extras.gguf.tokenizer import GGUFTokenizer
from tests.chat_pair import CHATML, Reader
from tests.gguf_files import ROOT, write_random, write_vocabulary

pytestmark = pytest.mark.usefixtures("needed")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
TEXTS = [
    "",
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\n\n\n",
    "\t\n",
    "Hello world",
    " Hello world",
    "  Hello  world  ",
    "Hello, y'all! How are you 😁 ?我想在apple工作1314151天～",
    "I'll, we'VE, don't",
    "3",
    "33",
    "333",
    "3333",
    "33333333",
    "1½ ¾",
    "Cửa Việt",
    "discards",
    "нещо на Български",
    "កាន់តែពិសេសអាចខលចេញ",
    "🚀 (normal) 😶‍🌫️ (emojis) ✅",
    "ied 4 ½ months",
    "w048 7tuijk dsdfhu",
    "a\r\nb\r\n\r\nc",
    " \u00a0x",
    "x = {'a': [1, 2]};\n\n\n\n\treturn  x",
    "é",
    "e\u0301",
    "()[]{}<>!!!???...---",
    "def f(x):\n    return x + 1\n",
    "zero\0byte",
]


@pytest.fixture(scope="module")
def pieces() -> dict:
    """The demo pair's byte pairs: 4,096 tokens; 0 is end-of-text."""
    return json.loads((ROOT / "assets" / "demo" / "target" / "tokenizer.json").read_text())["model"]


def test_byte_pairs(pieces, tmp_path):
    tokens = sorted(pieces["vocab"], key=pieces["vocab"].get)
    merges = [" ".join(pair) for pair in pieces["merges"]]
    path = write_vocabulary(tmp_path / "v.gguf", "gpt2", tokens, types={0: CONTROL}, pre="gpt-2", merges=merges)
    found = GGUFTokenizer(path, "v")
    original = Tokenizer(BPE(pieces["vocab"], [tuple(p) for p in pieces["merges"]]))
    original.pre_tokenizer = ByteLevel(add_prefix_space=False)
    for text in TEXTS:
        ids = original.encode(text).ids
        assert found.encode(text, add_special_tokens=False) == ids, text
        assert found.decode(ids) == text
    assert found.get_vocab() == pieces["vocab"]
    with pytest.raises(ValueError, match="v: found token 4096, expected ids from 0 to 4095"):
        found.decode([5, 4096])


def sentence_pieces() -> tuple[list[str], list[float], dict[int, int]]:
    """Return tokens, scores and types: three special tokens, 256 bytes, words by length, and their letters."""
    words = "or th he in ca at ▁c ▁t ▁w ▁a ▁▁ ld ing cat ▁ca ▁th orld ▁the ▁cat ▁▁▁▁".split()
    letters = sorted({letter for word in words for letter in word} | set("bdegijklmnopqrsuvxyzH.,!ế"))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *letters]
    kinds = {0: UNKNOWN, 1: CONTROL, 2: CONTROL} | {token: BYTE for token in range(3, 259)}
    return tokens, [-float(token) for token in range(len(tokens))], kinds


@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_pieces_with_and_without_leading_space(prefix, tmp_path):
    tokens, scores, kinds = sentence_pieces()
    found = GGUFTokenizer(
        write_vocabulary(
            tmp_path / "v.gguf",
            "llama",
            tokens,
            types=kinds,
            scores=scores,
            add_space_prefix=prefix,
            bos_token_id=1,
            eos_token_id=2,
            unknown_token_id=0,
        ),
        "v",
    )
    for text in [*TEXTS, "the cat", " the  cat", "catcat thing", "    the", "world"]:
        ids = found.encode(text, add_special_tokens=False)
        assert found.encode(text) == [1, *ids]
        assert found.decode(ids) == text
    cat = tokens.index("▁cat" if prefix else "cat")
    assert found.encode("cat</s>", add_special_tokens=False)[:2] == [cat, 2]  # worked out by hand
    assert found.decode([1, cat, 2], skip_special_tokens=True) == "cat" and "</s>" in found.decode([cat, 2])
    assert found.special_tokens_map == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    half = found.encode("é", add_special_tokens=False)[-2:]
    assert [found.decode(half[:1]), found.decode(half[1:]), found.decode(half)] == ["\ufffd", "\ufffd", "é"]


def test_special_tokens_are_parsed_and_trailing_unused_ones_ignored(pieces, tmp_path):
    tokens = sorted(pieces["vocab"], key=pieces["vocab"].get)
    marks = "<｜begin▁of▁sentence｜> <｜User｜> <|im_start|> <|im_end|> <unused0> <tool> [PAD0] [PAD1]".split()
    kinds = {4096 + place: kind for place, kind in enumerate([CONTROL] * 5 + [USER_DEFINED] + [UNUSED] * 2)}
    merges = [" ".join(pair) for pair in pieces["merges"]]
    found = GGUFTokenizer(
        write_vocabulary(
            tmp_path / "v.gguf",
            "gpt2",
            tokens + marks,
            types={0: CONTROL} | kinds,
            pre="qwen2",
            merges=merges,
            bos_token_id=4096,
            eos_token_id=4099,
            add_bos_token=True,
            chat_template="{{ bos_token }}" + CHATML,
        ),
        "v",
    )
    for place, mark in enumerate(marks[:6]):
        around = [found.encode(part, add_special_tokens=False) for part in ("x ", " y")]
        assert found.encode(f"x {mark} y", add_special_tokens=False) == [*around[0], 4096 + place, *around[1]]
        assert found.decode([4096 + place]) == mark
    assert max(found.get_vocab().values()) == 4096 + 5
    assert {each.content for each in found.added_tokens_decoder.values() if each.special} == {tokens[0], *marks[:5]}
    assert found.encode("x")[0] == 4096
    talk = [Turn("user", "hello"), Turn("assistant", "hi <|im_end|>"), Turn("user", "go on")]
    assert found.decode(encode_chat(found, talk)) == chat_text(found, talk)
    assert encode_chat(found, talk).count(4096) == 1 and encode_prompt(Reader(found), "x", Prompting(False))[0] == 4096
    assert chat_remarks(found, talk) != []


@pytest.mark.parametrize(("pre", "fields"), [("llama-bpe", {}), ("gpt-2", {"add_bos_token": True})])
def test_undefined_bos_and_eos_are_not_assumed(pre, fields, pieces, tmp_path):
    """llama.cpp assumes token 11 for both in byte-pair files that define neither."""
    tokens = sorted(pieces["vocab"], key=pieces["vocab"].get)
    merges = [" ".join(pair) for pair in pieces["merges"]]
    written = {}
    for name, more in {"none": {}, "named": {"bos_token_id": 5}}.items():
        path = write_vocabulary(tmp_path / name, "gpt2", tokens, pre=pre, merges=merges, **fields, **more)
        written[name] = GGUFTokenizer(path, name)
    plain = written["none"].encode("x y", add_special_tokens=False)
    assert written["none"].encode("x y") == plain and written["none"].special_tokens_map == {}
    assert written["named"].encode("x y") == [5, *plain]
    assert written["named"].special_tokens_map == {"bos_token": tokens[5]}
    assert GGUFModel(write_random("llama", tmp_path / "model.gguf"), "model").eos_ids == frozenset()


BROKEN = {
    "no bytes": ("llama", ["<unk>", "<s>", "</s>", "▁", "a"], {"scores": [0.0] * 5}, "token for byte 0x00"),
    "no vocabulary": ("none", ["a"], {}, "none|vocabulary"),
    "no marks": ("bert", ["a", "b"], {}, "WordPiece vocabulary without bos_token, sep_token, unk_token"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_vocabularies_that_abort_llama_cpp_are_rejected(kind, tmp_path):
    model, tokens, fields, reason = BROKEN[kind]
    path = write_vocabulary(tmp_path / "v.gguf", model, tokens, **fields)
    with pytest.raises(ValueError, match=f"^name: found .*({reason})") as error:
        GGUFTokenizer(path, "name")
    assert "\n" not in str(error.value)


def test_folder_with_other_ids_is_remarked(tmp_path):
    path = write_random("llama", tmp_path / "t.gguf")
    letters = [chr(code) for code in range(ord("!"), ord("!") + 63)]
    vocabulary = {letter: place for place, letter in enumerate([*letters, letters[0] + letters[1]])}
    for lowered in (False, True):
        tokenizer = Tokenizer(BPE(vocabulary, [(letters[0], letters[1])]))
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        if lowered:
            tokenizer.normalizer = normalizers.Lowercase()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / f"{lowered}")
        found = load_pair(path, "none", tokenizer=tmp_path / f"{lowered}").remarks
        assert ["give different ids" in remark for remark in found] == [True] * lowered
