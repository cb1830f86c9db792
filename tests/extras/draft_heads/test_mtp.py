"""MTP layers in a target's shards as its draft, in both namings."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.models.loading import load_pair
from sequoia_core.models.protocol import prefill
from sequoia_core.trees.plain import k_ary_tree
from sequoia_extras.draft_heads import loading
from sequoia_extras.dynamic_trees.policies import SpecExecTree
from sequoia_extras.evaluation.losslessness import check_losslessness
from tests.conftest import tokens_of
from tests.mtp_folders import FORMS, PARTS, write_target

PROMPT = [3, 14, 15, 9, 2, 6, 5, 35]


@pytest.fixture(scope="module", params=FORMS)
def folder(request, tmp_path_factory):
    return write_target(tmp_path_factory.mktemp("target") / request.param, request.param)


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("dtype_and_place", [("float32", None), ("bfloat16", None), ("float32", "disk")], ids=str)
def test_greedy_text_matches_generate(dtype_and_place, folder, copies):
    dtype, offload = dtype_and_place
    if offload and "Qwen" not in folder:
        pytest.skip("joined experts are not streamed, whatever the draft")
    pair = load_pair(folder, "mtp", device="cpu", dtype=dtype, offload=offload)
    assert "MTP" in repr(pair) and pair.draft.state_indices == (2,)
    alone = load_pair(folder, "none", device="cpu", dtype=dtype).target.model
    wanted = alone.generate(torch.tensor([PROMPT]), max_new_tokens=24, do_sample=False)[0, len(PROMPT) :].tolist()
    for tree in (k_ary_tree(1, 3), k_ary_tree(2, 3), SpecExecTree(max_size=8, max_depth=3, beam=2)):
        found = tokens_of(decode(PROMPT, pair, tree=tree, max_new_tokens=24))
        assert found == wanted or (dtype == "bfloat16" and found[:4] == wanted[:4])
    pair.target.close()


def direct_logits(folder, form, pair, text, path):
    """Compute an MTP layer's logits after a text (without its first token) and a drafted path with separate modules."""
    longer = getattr(transformers, f"{form}ForCausalLM").from_pretrained(f"{folder}/longer", dtype=torch.float32).eval()
    stored = load_file(f"{folder}/model-00002-of-00002.safetensors")
    fc, embedding, hidden, last = (stored[f"{part}.weight"] for part in PARTS[form][:4])
    target = pair.target.model
    ids = torch.tensor([[*text, *path]])

    def norm(values, weight):
        weight = weight + 1 if form == "Qwen3_5" else weight
        return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + target.config.rms_norm_eps) * weight

    with torch.inference_mode():
        states = target.model(ids[:, : len(text)]).last_hidden_state[:, :-1]
        for _ in (None, *path):
            count = states.shape[1]
            embedded = norm(target.model.embed_tokens(ids[:, 1 : count + 1]), embedding)
            both = F.linear(torch.cat([embedded, norm(states, hidden)], -1), fc)
            places = torch.arange(count)[None]
            mask = torch.full((1, 1, count, count), -torch.inf).triu(1)
            turned = longer.model.rotary_emb(both, places)
            output = longer.model.layers[2](both, attention_mask=mask, position_ids=places, position_embeddings=turned)
            own = norm(output, last) if form == "Qwen3_5" else output
            states = torch.cat([states, own[:, -1:]], 1)
        return target.lm_head(norm(output, last))[0]


def test_logits_match_separate_modules(folder):
    """Compare depth 1 with and without a session, and deeper tokens, which read the head's output, in a session."""
    form = next(form for form in FORMS if folder.endswith(form))
    path = [5, 7]
    pair = load_pair(folder, "mtp", device="cpu", dtype="float32")
    wanted = direct_logits(folder, form, pair, PROMPT, path)
    head = pair.draft
    count = len(PROMPT) - 1
    found = head.plain_logits(torch.tensor(PROMPT))[1:]
    torch.testing.assert_close(found, wanted[:count], rtol=1e-4, atol=1e-4)
    read = pair.target.open(16, head.state_indices)
    own = head.open(16)
    prefill(read, PROMPT[:-1], reader=own)
    prefill(own, PROMPT[:-1])
    for depth, token in enumerate([PROMPT[-1], *path]):
        place = torch.tensor([count + depth])
        mask = torch.zeros(1, count + depth + 1)
        row = own.forward(torch.tensor([token]), place, mask, keep=1)[0]
        torch.testing.assert_close(row, wanted[count - 1 + depth], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("tree", [k_ary_tree(1, 3), k_ary_tree(2, 2)], ids=["chain", "tree"])
def test_sampled_text_follows_the_target(tree, temperature, form, tmp_path):
    pair = load_pair(write_target(tmp_path, form, scale=2.0, vocab_size=16), "mtp", device="cpu", dtype="float32")
    report = check_losslessness(
        [3, 5, 3],
        pair,
        tree=tree,
        sampling=SamplingConfig(temperature),
        samples=300,
        new_tokens=3,
        generator=torch.Generator().manual_seed(0),
    )
    assert report.passed and report.degrees_of_freedom > 5


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held, parts: held.pop(f"{parts[2]}.weight"), "found MTP layers without .*(hnorm|pre_fc_norm_hidden)"),
        (lambda held, parts: held.update({f"{parts[0]}.weight": torch.ones(32, 32)}), "{0}.weight: found shape"),
        (
            lambda held, parts: held.pop(f"{parts[4]}self_attn.q_proj.weight"),
            "MTP layers: no model.layers.0.self_attn.q",
        ),
        (lambda held, parts: held.update({f"{parts[4]}extra.weight": torch.ones(2)}), "an unexpected .*extra.weight"),
        (lambda held, parts: held[f"{parts[1]}.weight"].fill_(torch.nan), "{1}"),
    ],
    ids=["norm", "shape", "layer", "surplus", "nan"],
)
def test_mismatched_tensors_are_rejected_by_name(change, message, tmp_path):
    for form, parts in PARTS.items():
        path = write_target(tmp_path / form, form, change=lambda held, parts=parts: change(held, parts))
        with pytest.raises(ValueError, match=message.format(*parts)):
            load_pair(path, "mtp", device="cpu")


def test_several_mtp_layers_are_rejected(tmp_path):
    path = write_target(tmp_path, "Glm4Moe", num_nextn_predict_layers=2)
    with pytest.raises(ValueError, match="config.json: found 2 MTP layers, expected one"):
        load_pair(path, "mtp", device="cpu")


def test_quantized_targets_are_rejected(tmp_path, monkeypatch):
    find = loading.find_mtp
    monkeypatch.setattr(loading, "find_mtp", lambda source, plan: find(source, replace(plan, quantized="fp8")))
    with pytest.raises(ValueError, match="found MTP layers with fp8 weights, expected unquantized ones"):
        load_pair(write_target(tmp_path, "Glm4Moe"), "mtp", device="cpu")


def test_target_without_mtp_layers_is_rejected():
    with pytest.raises(ValueError, match="found no MTP layers among its tensors"):
        load_pair(DEMO_PAIR / "target", "mtp", device="cpu")
