import json
import shutil

import pytest
import torch

from sequoia_core.construction import branching_tree, chain_tree
from sequoia_core.engine import autoregressive, decode
from sequoia_core.lossless import check_losslessness
from sequoia_core.models import DEMO_PAIR, HuggingFaceModel, TreeCache, load_pair
from sequoia_core.sampling import SamplingConfig
from tests.conftest import tiny_llama


def test_cache_keeps_chosen_slots_in_place():
    cache = TreeCache(layer_count=2, capacity=10)
    states = torch.arange(6.0).reshape(1, 1, 6, 1)
    cache.begin(torch.arange(6))
    for layer in range(2):
        keys, values = cache.write(layer, states + 10 * layer, -states)
        assert keys.shape == (1, 1, 6, 1)
    cache.end()
    buffer = cache._buffer.data_ptr()
    cache.keep(2, [0, 2, 3])
    assert cache.length == 5 and cache.positions[:5].tolist() == [0, 1, 2, 4, 5]
    written = cache._buffer._version
    cache.keep(2, [0, 1, 2])
    assert cache.length == 5 and cache._buffer._version == written  # what stays where it is costs no copy
    cache.begin(torch.tensor([5]))
    keys, values = cache.write(1, torch.full((1, 1, 1, 1), 99.0), torch.zeros(1, 1, 1, 1))
    assert keys.flatten().tolist() == [10, 11, 12, 14, 15, 99]
    assert cache._buffer.data_ptr() == buffer


def test_cache_refuses_more_than_its_capacity_and_uneven_layers():
    cache = TreeCache(layer_count=1, capacity=2)
    with pytest.raises(ValueError, match="at most 2"):
        cache.begin(torch.arange(3))
    cache.begin(torch.arange(1))
    cache.write(0, torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4))
    with pytest.raises(ValueError, match="alike"):
        cache.write(0, torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))


def test_forward_in_pieces_equals_one_forward(tiny_target):
    ids = torch.randint(64, (12,), generator=torch.Generator().manual_seed(0))
    cache = tiny_target.new_cache(12)
    rows = []
    for start, stop in ((0, 5), (5, 6), (6, 12)):
        tail = torch.full((stop - start, stop - start), -torch.inf).triu(1)
        rows.append(
            tiny_target.forward(ids[start:stop], torch.arange(start, stop), cache=cache, tail=tail, keep=stop - start)
        )
    with torch.inference_mode():
        whole = tiny_target.model(ids[None]).logits[0]
    torch.testing.assert_close(torch.cat(rows), whole, atol=1e-2, rtol=1e-4)


def test_sliding_window_masks_old_tokens():
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, sliding_window=6,
    )  # fmt: skip
    model = HuggingFaceModel(MistralForCausalLM(config), "mistral")
    ids = torch.randint(64, (20,))
    cache = model.new_cache(20)
    model.forward(ids[:19], torch.arange(19), cache=cache, tail=torch.full((19, 19), -torch.inf).triu(1), keep=1)
    last = model.forward(ids[19:], torch.tensor([19]), cache=cache, tail=torch.zeros(1, 1), keep=1)
    with torch.inference_mode():
        whole = model.model(ids[None]).logits[0, -1:]
    torch.testing.assert_close(last, whole, atol=1e-4, rtol=1e-4)


def test_demo_pair_meets_its_card(demo_pair):
    assert demo_pair.target.parameters >= 15_000_000
    assert demo_pair.target.parameters >= 8 * demo_pair.draft.parameters
    assert demo_pair.target.vocab_size == demo_pair.draft.vocab_size == len(demo_pair.tokenizer)
    assert demo_pair.target.eos_ids == {demo_pair.tokenizer.eos_token_id}
    text = "def f(x):\n    return x['a'] + \"é☃\"\n"
    assert demo_pair.tokenizer.decode(demo_pair.tokenizer.encode(text)) == text


def test_one_model_of_a_pair_is_not_enough():
    with pytest.raises(ValueError, match="only one"):
        load_pair(target="x")


@pytest.mark.parametrize("dtype", ["int8", "fp32"])
def test_unknown_dtype_is_named(dtype):
    with pytest.raises(ValueError, match=dtype):
        load_pair(dtype=dtype)


def test_broken_folders_are_explained(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for folder, wanted in ((tmp_path / "absent", "no such local folder"), (tmp_path, "found a folder")):
        with pytest.raises(ValueError, match=wanted) as error:
            load_pair(str(folder), str(folder))
        assert "\n" not in str(error.value)


def test_missing_weights_are_explained(tmp_path):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((DEMO_PAIR / "draft" / name).read_bytes())
    with pytest.raises(ValueError, match="safetensors"):
        load_pair(str(tmp_path), str(tmp_path))


def test_different_tokenizers_are_refused_with_the_first_difference(tmp_path):
    tokenizer = json.loads((DEMO_PAIR / "draft" / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    a, b = [token for token, index in vocab.items() if index in (300, 301)]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((DEMO_PAIR / "draft" / name).read_bytes())
    with pytest.raises(ValueError, match="id 300 is"):
        load_pair(str(DEMO_PAIR / "target"), str(tmp_path))


def test_state_space_layers_are_refused_by_name(tiny_target):
    model = tiny_llama(3).model
    model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ValueError, match="linear_attention"):
        HuggingFaceModel(model, "hybrid")


def save_padded(folder, *, seed, rows, tokens):
    """Write a tiny model of `rows` logits whose tokenizer has `tokens` words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {f"w{index}": index for index in range(tokens)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="w0"))).save_pretrained(folder)
    tiny_llama(seed, vocab=rows, layers=1, scale=1.0).model.save_pretrained(folder)
    return str(folder)


PADDINGS = {"target is larger": (72, 64), "draft is larger": (64, 72), "both padded alike": (72, 72)}


@pytest.fixture(params=PADDINGS)
def padded_pair(request, tmp_path):
    target_rows, draft_rows = PADDINGS[request.param]
    return load_pair(
        save_padded(tmp_path / "target", seed=1, rows=target_rows, tokens=60),
        save_padded(tmp_path / "draft", seed=2, rows=draft_rows, tokens=60),
        device="cpu",
    )


def test_padding_beyond_the_tokenizer_is_cut_off_both_models(padded_pair):
    assert padded_pair.target.vocab_size == padded_pair.draft.vocab_size == len(padded_pair.tokenizer) == 60
    for model in (padded_pair.target, padded_pair.draft):
        ids = torch.tensor([3, 14, 15])
        tail = torch.full((3, 3), -torch.inf).triu(1)
        logits = model.forward(ids, torch.arange(3), cache=model.new_cache(3), tail=tail, keep=3)
        with torch.inference_mode():
            whole = model.model(ids[None]).logits[0]
        torch.testing.assert_close(logits, whole[:, :60], atol=1e-5, rtol=1e-5)


def test_a_padded_pair_is_greedy_as_generate_among_real_tokens(padded_pair):
    prompt, model = [3, 14, 15, 9], padded_pair.target.model
    wanted = model.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=60, pad_token_id=0,
        suppress_tokens=list(range(60, model.config.vocab_size)) or None,
    )[0, 4:].tolist()  # fmt: skip
    pair = {"target": padded_pair.target, "draft": padded_pair.draft}
    for tree in (chain_tree(3), branching_tree([5, 2, 1])):
        steps = decode(prompt, tree=tree, max_new_tokens=60, **pair)
        assert [token for step in steps for token in step.new_tokens] == wanted
    steps = autoregressive(prompt, target=padded_pair.target, max_new_tokens=60)
    assert [token for step in steps for token in step.new_tokens] == wanted
    assert max(wanted) < 60


@pytest.mark.parametrize("verifier", ["sequoia", "specinfer", "topk"])
def test_a_padded_pair_is_lossless_among_real_tokens(verifier, padded_pair):
    """The law compared with is cut from the model's own softmax; false alarms below 1e-6."""
    pair = {"target": padded_pair.target, "draft": padded_pair.draft}
    options = {"sampling": SamplingConfig(1.0), "samples": 600, "generator": torch.Generator().manual_seed(0)}
    report = check_losslessness([3], tree=branching_tree([3]), verifier=verifier, new_tokens=1, **pair, **options)
    with torch.inference_mode():
        law = padded_pair.target.model(torch.tensor([[3]])).logits[0, -1].double().softmax(-1)[:60]
    law = law / law.sum()
    assert report.passed and report.degrees_of_freedom > 10
    for tokens, pooled, expected in zip(report.cells, report.pooled, report.expected, strict=True):
        assert pooled or expected == pytest.approx(600 * float(law[tokens[0]]), rel=1e-4)


def test_a_wide_tree_drafts_all_real_tokens_and_no_other(padded_pair):
    for step in decode(
        [3], target=padded_pair.target, draft=padded_pair.draft, tree=branching_tree([60]), max_new_tokens=10,
        sampling=SamplingConfig(1.0), generator=torch.Generator().manual_seed(0),
    ):  # fmt: skip
        assert sorted(step.tokens[1:]) == list(range(60))


def test_a_draft_that_cannot_read_a_real_token_is_refused_by_name(tmp_path):
    target = save_padded(tmp_path / "target", seed=1, rows=72, tokens=70)
    draft = save_padded(tmp_path / "draft", seed=2, rows=64, tokens=64)
    with pytest.raises(ValueError, match=r"draft: found a vocabulary of 64 .*at least 70.*token 64 \('w64'\)"):
        load_pair(target, draft, device="cpu")


def test_tokens_that_only_the_draft_knows_are_never_drafted(tmp_path):
    pair = load_pair(
        save_padded(tmp_path / "target", seed=1, rows=72, tokens=60),
        save_padded(tmp_path / "draft", seed=2, rows=72, tokens=66),
        device="cpu",
    )
    assert pair.target.vocab_size == pair.draft.vocab_size == 60


def test_a_tokenizer_with_more_tokens_than_the_target_has_logits(tmp_path):
    pair = load_pair(
        save_padded(tmp_path / "target", seed=1, rows=64, tokens=66),
        save_padded(tmp_path / "draft", seed=2, rows=72, tokens=66),
        device="cpu",
    )
    assert pair.target.vocab_size == pair.draft.vocab_size == 64


@pytest.mark.parametrize("size", [0, 65])
def test_a_vocabulary_beyond_the_rows_is_refused(size, tiny_target):
    with pytest.raises(ValueError, match=f"found a vocabulary of {size}, expected 1 to its 64 rows"):
        HuggingFaceModel(tiny_target.model, "cut", vocab_size=size)


@pytest.mark.parametrize(("method", "package"), [("hqq", "hqq"), ("quanto", "optimum-quanto")])
def test_a_quantised_model_without_its_library_says_what_to_install(method, package, tmp_path):
    folder = tmp_path / "quantised"
    shutil.copytree(DEMO_PAIR / "draft", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": method}}))
    with pytest.raises(ValueError, match=f"quantised with {method}.*pip install {package}"):
        load_pair(folder, DEMO_PAIR / "draft")
