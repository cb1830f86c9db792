"""Loading a pair: names, devices, dtypes, matching tokenizers, and padded vocabularies."""

import json
import shutil

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.folders import Folder
from sequoia_core.models.loading import load, load_pair, pair_facts
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.pair_tokenizer import choose_tokenizer
from sequoia_core.models.prompting import encode_prompt
from sequoia_core.models.protocol import causal_mask
from tests.conftest import tiny_llama

DRAFT = DEMO_PAIR / "draft"
REFUSED = {  # part of the error message -> invalid arguments
    "found only one of target and draft": {"target": "x"},
    "dtype: found 'int8'": {"dtype": "int8"},
    "device: found 'cuda:99', which cannot be used here .*expected": {"device": "cuda:99"},
}


@pytest.mark.sample(len(REFUSED))
@pytest.mark.parametrize("said", REFUSED)
def test_invalid_arguments_are_refused_before_reading_files(said, monkeypatch):
    monkeypatch.setattr("sequoia_core.models.folders.read_plan", lambda source: pytest.fail("files were read"))
    with pytest.raises(ValueError, match=said) as error:
        load_pair(**({"device": "cpu"} | REFUSED[said]))
    assert "\n" not in str(error.value)


MISSING_PACKAGES = {  # part of the error message -> arguments
    "a.gguf: a GGUF file requires the optional package gguf": {"draft": "a.gguf"},
    "mtp: a draft head requires the optional package draft_heads": {"draft": "mtp"},
    "offload: 'disk' requires the optional package offloading": {"draft": "none", "offload": "disk"},
    "EAGLE-3.*, or the optional package draft_heads to draft with it": {"draft": DEMO_PAIR / "head"},
}


@pytest.mark.parametrize("said", MISSING_PACKAGES)
def test_models_of_missing_optional_packages_are_refused(said, monkeypatch):
    monkeypatch.setattr("sequoia_core.models.model_sources.provided", lambda seam: ())
    for module in ("architectures", "folders"):
        monkeypatch.setattr(f"sequoia_core.models.{module}.has", lambda name: False)
    with pytest.raises(ValueError, match=said):
        load_pair(**({"target": DEMO_PAIR / "target", "device": "cpu"} | MISSING_PACKAGES[said]))


def test_differing_tokenizers_are_described(tmp_path):
    for name, words in (("target", ["<s>", "a", "b"]), ("draft", ["<s>", "b", "a", "c"])):
        save_words(tmp_path / name, words)
    said = r"in 2 of 3 common ids, for example.* id 1 is 'a' in .*; found 3 tokens \(WordLevel\) and 4 \(WordLevel\)"
    with pytest.raises(ValueError, match=f"^tokenizers differ {said}.*expected a draft with the target's tokenizer$"):
        choose_tokenizer([Folder(tmp_path / "target"), Folder(tmp_path / "draft")])


def test_a_token_beyond_the_models_rows_is_refused_in_a_prompt(tmp_path):
    """A tokenizer may have more tokens than its model has rows, which matters only for some texts."""
    folder = save_padded(tmp_path, seed=1, rows=40, tokens=40)
    spec = PairSpec(folder, "none", device="cpu")
    pair = load(spec)
    facts = pair_facts(spec)
    assert (pair.vocab_size, facts.vocab_size) == (40, 40)
    for reader in (pair, facts):
        reader.tokenizer.add_special_tokens({"additional_special_tokens": ["<|tool|>"]})
        with pytest.raises(
            ValueError, match=r"^prompt 'w3<.tool.>': found '<.tool.>', token 40, expected ids below 40: "
        ):
            encode_prompt(reader, "w3<|tool|>")
    pair.tokenizer.save_pretrained(folder)
    assert pair_facts(spec).vocab_size == 40


def test_text_excludes_a_final_eos_token(tmp_path):
    pair = load_pair(save_padded(tmp_path, seed=1, rows=40, tokens=40), "none", device="cpu")
    pair.target.eos_ids = frozenset({7})  # an ordinary word, not a special token
    assert [pair.text(tokens) for tokens in ([5, 6], [5, 6, 7], [7], [])] == ["w5 w6", "w5 w6", "", ""]


def save_words(folder, words):
    """Save a tokenizer of whole words."""
    model = WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0])
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model)).save_pretrained(folder)


def save_padded(folder, *, seed, rows, tokens):
    """Save a tiny model with `rows` logits and a tokenizer with `tokens` words."""
    save_words(folder, [f"w{index}" for index in range(tokens)])
    tiny_llama(seed, vocab=rows, layers=1, scale=1.0).model.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("target", "draft", "real"),
    [
        ({"rows": 72, "tokens": 60}, None, 60),
        (
            {"rows": 72, "tokens": 60},
            {"rows": 72, "tokens": 66},
            60,
        ),  # the draft's extra tokens are never drafted
        ({"rows": 64, "tokens": 66}, {"rows": 72, "tokens": 66}, 64),
    ],
)
def test_padding_logits_are_cut_off_all_models(target, draft, real, tmp_path):
    places = [save_padded(tmp_path / "target", seed=1, **target)]
    places += ["none"] if draft is None else [save_padded(tmp_path / "draft", seed=2, **draft)]
    for model in load_pair(*places, device="cpu").models:
        assert model.vocab_size == real
        ids = torch.tensor([3, 14, 15])
        logits = model.open(3).forward(ids, torch.arange(3), causal_mask(3), keep=3)
        with torch.inference_mode():
            whole = model.model(ids[None]).logits[0]
        torch.testing.assert_close(logits, whole[:, :real], atol=1e-5, rtol=1e-5)


def test_a_draft_with_too_few_logits_is_refused(tmp_path):
    target = save_padded(tmp_path / "target", seed=1, rows=72, tokens=70)
    draft = save_padded(tmp_path / "draft", seed=2, rows=64, tokens=64)
    with pytest.raises(ValueError, match=r"draft: found a vocabulary of 64 .*at least 70.*token 64 \('w64'\)"):
        load_pair(target, draft, device="cpu")


def test_home_and_relative_paths_are_folders(tmp_path, monkeypatch):
    shutil.copytree(DRAFT, tmp_path / "models" / "small")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "models")
    for name in ("~/models/small", "../models/small/"):
        assert load_pair(name, name, device="cpu").target.name == str(tmp_path / "models" / "small")


@pytest.mark.parametrize("name", ["./absent", "", "a\0b", DRAFT / "config.json"])
def test_invalid_names_are_refused_without_asking_the_hub(name, monkeypatch):
    def ask(*_, **__):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("sequoia_core.models.model_files.hf_hub_download", ask)
    with pytest.raises(ValueError, match=r"found .*, expected a model's folder or a hub id"):
        load_pair(name, name)


TOKENIZER_FAULTS = {  # settings that make the tokenizers library panic or fail
    "chunks of length 0": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "no vocabulary": {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []},
}


@pytest.mark.parametrize("fault", TOKENIZER_FAULTS)
def test_a_broken_tokenizer_is_refused_on_loading(fault, tmp_path):
    folder = shutil.copytree(DRAFT, tmp_path / "model")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | TOKENIZER_FAULTS[fault]))
    with pytest.raises(ValueError, match="model: found a tokenizer that .*, expected") as error:
        load_pair(folder, folder)
    assert "\n" not in str(error.value)
