"""A pair: places named by the user, devices, formats, tokenizers that agree and work, padding cut off both models."""

import json
import shutil

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.design.plain_trees import branching_tree, chain_tree
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.loading import load, load_pair, pair_facts
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.pair_tokenizer import tokenizer_of
from sequoia_core.models.prompting import encode_prompt
from sequoia_core.models.protocol import causal_mask
from tests.conftest import tiny_llama, tokens_of

DRAFT = DEMO_PAIR / "draft"
REFUSED = {  # by what is asked for alone
    "found only one of target and draft": {"target": "x"},
    "dtype: found 'int8'": {"dtype": "int8"},
    "offload: found 'tape', expected disk or host": {"offload": "tape"},
    "offload: found 'host' with the device cpu, expected a CUDA device": {"offload": "host"},
    "device: found 'cuda:99', which cannot be used here .*expected": {"device": "cuda:99"},
}


@pytest.mark.sample(len(REFUSED))
@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_read(said, monkeypatch):
    monkeypatch.setattr("sequoia_core.models.loading.read_plan", lambda source: pytest.fail("files were read"))
    with pytest.raises(ValueError, match=said) as error:
        load_pair(**({"device": "cpu"} | REFUSED[said]))
    assert "\n" not in str(error.value)


def test_how_far_two_tokenizers_differ_is_said(tmp_path):
    for name, words in (("target", ["<s>", "a", "b"]), ("draft", ["<s>", "b", "a", "c"])):
        save_words(tmp_path / name, words)
    said = r"in 2 of 3 ids .* id 1 is 'a' in .*; found 3 tokens \(WordLevel\) and 4 \(WordLevel\)"
    with pytest.raises(ValueError, match=f"^tokenizers differ {said}.*expected a draft with the target's tokenizer$"):
        tokenizer_of([tmp_path / "target", tmp_path / "draft"], None)


def test_a_token_without_a_row_is_named_where_a_prompt_is_encoded(tmp_path):
    """A tokenizer may have more tokens than its model has rows, which only some texts need."""
    folder = save_padded(tmp_path, seed=1, rows=40, tokens=40)
    spec = PairSpec(folder, "none", device="cpu")
    pair, facts = load(spec), pair_facts(spec)
    assert (pair.vocab_size, facts.vocab_size) == (40, 40)
    for reader in (pair, facts):
        reader.tokenizer.add_special_tokens({"additional_special_tokens": ["<|tool|>"]})
        with pytest.raises(
            ValueError, match=r"^prompt 'w3<.tool.>': found '<.tool.>', token 40, expected ids below 40: "
        ):
            encode_prompt(reader, "w3<|tool|>")
    pair.tokenizer.save_pretrained(folder)
    assert pair_facts(spec).vocab_size == 40


def test_the_token_that_ends_a_text_is_no_part_of_it(tmp_path):
    pair = load_pair(save_padded(tmp_path, seed=1, rows=40, tokens=40), "none", device="cpu")
    pair.target.eos_ids = frozenset({7})  # an ordinary word, which no tokenizer skips
    assert [pair.text(tokens) for tokens in ([5, 6], [5, 6, 7], [7], [])] == ["w5 w6", "w5 w6", "", ""]


def save_words(folder, words):
    """Write a tokenizer of whole words."""
    model = WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0])
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model)).save_pretrained(folder)


def save_padded(folder, *, seed, rows, tokens):
    """Write a tiny model of `rows` logits whose tokenizer has `tokens` words."""
    save_words(folder, [f"w{index}" for index in range(tokens)])
    tiny_llama(seed, vocab=rows, layers=1, scale=1.0).model.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("target", "draft", "real"),
    [
        ({"rows": 72, "tokens": 60}, None, 60),
        ({"rows": 72, "tokens": 60}, {"rows": 72, "tokens": 66}, 60),  # what only the draft knows is never drafted
        ({"rows": 64, "tokens": 66}, {"rows": 72, "tokens": 66}, 64),
    ],
)
def test_padding_beyond_the_targets_tokens_is_cut_off_all_models(target, draft, real, tmp_path):
    places = [save_padded(tmp_path / "target", seed=1, **target)]
    places += ["none"] if draft is None else [save_padded(tmp_path / "draft", seed=2, **draft)]
    for model in load_pair(*places, device="cpu").models:
        assert model.vocab_size == real
        ids = torch.tensor([3, 14, 15])
        logits = model.open(3).forward(ids, torch.arange(3), causal_mask(3), keep=3)
        with torch.inference_mode():
            whole = model.model(ids[None]).logits[0]
        torch.testing.assert_close(logits, whole[:, :real], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_padded_pair_is_greedy_as_generate_among_real_tokens(tmp_path):
    places = [save_padded(tmp_path / f"{rows}", seed=rows, rows=rows, tokens=60) for rows in (72, 64)]
    pair, prompt = load_pair(*places, device="cpu"), [3, 14, 15, 9]
    model = pair.target.model
    wanted = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=60, pad_token_id=0,
        suppress_tokens=list(range(60, 72)),
    )[0, 4:].tolist()  # fmt: skip
    for tree in (chain_tree(3), branching_tree([5, 2, 1])):
        steps = decode(prompt, pair, tree=tree, max_new_tokens=60)
        assert tokens_of(steps) == wanted
    steps = autoregressive(prompt, pair, max_new_tokens=60)
    assert tokens_of(steps) == wanted


def test_a_draft_that_cannot_read_a_real_token_is_refused_by_name(tmp_path):
    target = save_padded(tmp_path / "target", seed=1, rows=72, tokens=70)
    draft = save_padded(tmp_path / "draft", seed=2, rows=64, tokens=64)
    with pytest.raises(ValueError, match=r"draft: found a vocabulary of 64 .*at least 70.*token 64 \('w64'\)"):
        load_pair(target, draft, device="cpu")


def test_a_home_folder_and_a_relative_path_are_folders(tmp_path, monkeypatch):
    shutil.copytree(DRAFT, tmp_path / "models" / "small")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "models")
    for name in ("~/models/small", "small", "./small", "../models/small/"):
        assert load_pair(name, name, device="cpu").target.name == str(tmp_path / "models" / "small")


@pytest.mark.parametrize("name", ["./absent", "", "a\0b", DRAFT / "config.json"])
def test_a_name_that_can_be_no_model_is_refused_without_asking_the_hub(name, monkeypatch):
    def ask(*_, **__):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("sequoia_core.models.model_files.hf_hub_download", ask)
    with pytest.raises(ValueError, match=r"found .*, expected a model's folder or a hub id"):
        load_pair(name, name)


TOKENIZER_FAULTS = {  # parts that make the tokenizers library panic or fail when it loads, encodes or decodes
    "chunks of length 0": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "no vocabulary": {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []},
}


@pytest.mark.parametrize("fault", TOKENIZER_FAULTS)
def test_a_tokenizer_that_does_not_work_is_refused_at_load(fault, tmp_path):
    folder = shutil.copytree(DRAFT, tmp_path / "model")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | TOKENIZER_FAULTS[fault]))
    with pytest.raises(ValueError, match="model: found a tokenizer that .*, expected") as error:
        load_pair(folder, folder)
    assert "\n" not in str(error.value)
