"""Draft heads load like any draft, and their sessions match the head without a cache."""

import json

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.files.model_names import DEMO_PAIR
from sequoia_core.measuring.measure_acceptance import pair_settings
from sequoia_core.models.loading import load_pair
from sequoia_core.models.protocol import causal_mask, prefill
from sequoia_core.trees.plain import k_ary_tree
from sequoia_extras.dynamic_trees.policies import HybridTree, SpecExecTree
from sequoia_extras.dynamic_trees.text_index import TextIndex
from tests.conftest import calibration_of, pair_of, tiny_llama, tokens_of
from tests.gguf_files import write_vocabulary
from tests.head_folders import head_fields, head_tensors, plain_row, random_head, write_head

TARGET = DEMO_PAIR / "target"
PROMPT = [3, 14, 15, 9, 2, 6]


@pytest.fixture(scope="module")
def demo_head(demo_pair, tmp_path_factory):
    """Return the folder of a random head for the demo target."""
    fields = head_fields(demo_pair.target.model, draft_vocab=1_000)
    return str(write_head(tmp_path_factory.mktemp("head"), fields, head_tensors(fields)))


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize(("dtype", "offload"), [("float32", None), ("bfloat16", None), ("bfloat16", "disk")])
def test_head_loads_like_any_draft(dtype, offload, demo_head, copies):
    pair = load_pair(TARGET, demo_head, device="cpu", dtype=dtype, offload=offload)
    assert pair.draft.state_indices == (2, 5, 7) and pair.draft.vocab_size == pair.target.vocab_size == 4096
    assert "EAGLE-3" in repr(pair) and "2, 5, 7" in pair.draft.backend
    prompt = pair.tokenizer.encode("def read_lines(path):\n")
    wanted = tokens_of(autoregressive(prompt, pair, max_new_tokens=12))
    for tree in (k_ary_tree(2, 2), SpecExecTree(max_size=8, max_depth=3, beam=2)):
        assert tokens_of(decode(prompt, pair, tree=tree, max_new_tokens=12)) == wanted
    pair.target.close()


def test_shared_output_layer_is_remarked_by_pair_and_measurement(demo_pair, tmp_path):
    fields = head_fields(demo_pair.target.model)
    tensors = {key: tensor for key, tensor in head_tensors(fields).items() if key != "lm_head.weight"}
    pair = load_pair(TARGET, write_head(tmp_path, fields, tensors), device="cpu")
    said = "The head has no lm_head.weight, so it uses the target's output layer."
    assert pair.remarks == (said,) and pair_settings(pair)["remarks"] == [said]
    assert "remarks" not in pair_settings(demo_pair)


@pytest.mark.slow
def test_shipped_head_matches_generate():
    pair = load_pair(TARGET, DEMO_PAIR / "head", device="cpu", dtype="float32")
    prompt = pair.tokenizer.encode("def read_lines(path):\n")
    wanted = pair.target.model.generate(torch.tensor([prompt]), max_new_tokens=48, do_sample=False)[0, len(prompt) :]
    looked_up = HybridTree(TextIndex(), max_size=16, max_depth=8, profile=None, calibration=calibration_of(0.8))
    for tree in (k_ary_tree(1, 5), k_ary_tree(2, 3), SpecExecTree(max_size=24, max_depth=6, beam=4), looked_up):
        steps = list(decode(prompt, pair, tree=tree, max_new_tokens=48))
        assert tokens_of(steps) == wanted.tolist() and len(steps) < 24, "a head wired wrong would need 48"


def test_heads_for_unsupported_targets_are_rejected(demo_head, tmp_path):
    path = write_vocabulary(tmp_path / "model.gguf", "gpt2", ["a", "b"])
    with pytest.raises(ValueError, match="found a draft head for a GGUF file, expected a folder as its target"):
        load_pair(path, demo_head, device="cpu")
    with pytest.raises(ValueError, match="found a draft head"):
        load_pair(demo_head, demo_head, device="cpu")


@pytest.mark.parametrize("fields", [{}, {"norm_output": True}, {"layers": 2}, {"draft_vocab": 20}], ids=str)
def test_sessions_match_the_head_without_a_cache(fields):
    """Read committed tokens in passes of several widths, then a tree, its path and other tokens in its place."""
    target = tiny_llama(4, layers=3, scale=1.0)
    head = random_head(target, reads=(2, 0, 1), **fields)
    text = torch.randint(64, (12,)).tolist()
    read = target.open(24, head.state_indices)
    own = head.open(24)
    prefill(read, text, reader=own)
    rows = [
        own.forward(
            torch.tensor(part), torch.arange(own.length, own.length + len(part)), causal_mask(len(part)), keep=len(part)
        ).clone()
        for part in (text[:1], text[1:8])
    ]
    torch.testing.assert_close(torch.cat(rows)[1:], head.plain_logits(torch.tensor(text))[1:8], rtol=1e-4, atol=1e-5)
    mask = torch.full((4, 4), -torch.inf).fill_diagonal_(0.0)
    mask[1:, 0] = mask[3, 1] = 0.0
    tree = [text[8], 5, 6, 7]
    places = torch.tensor([8, 9, 9, 10])
    own.commit(7, [0])  # the target has read no tokens after this
    for _ in range(2):
        found = own.forward(torch.tensor(tree), places, mask, keep=4)
        for row, path in zip(found, ([], [5], [6], [5, 7]), strict=True):
            wanted = plain_row(head, [*text[:8], text[8], *path], true=8)
            torch.testing.assert_close(row, wanted, rtol=1e-4, atol=1e-5)
        own.commit(8, [])
    own.forward(torch.tensor(tree), places, mask, keep=4)
    own.commit(8, [0, 1])  # drops drafted tokens even if accepted
    assert own.length == 9


def test_scaled_rotary_embedding_matches_transformers():
    rotation = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
    head = random_head(tiny_llama(4), layer={"rope_parameters": rotation}).head
    seen = []
    head.layers[0].register_forward_pre_hook(lambda layer, given: seen.extend(given[2]))
    head(torch.ones(5, 32), torch.ones(5, 32), torch.arange(5))
    config = LlamaConfig(hidden_size=32, num_attention_heads=4, max_position_embeddings=512, rope_parameters=rotation)
    for found, wanted in zip(seen, LlamaRotaryEmbedding(config)(seen[0], torch.arange(5)[None]), strict=True):
        torch.testing.assert_close(found[:, 0], wanted[0, :, :4])


def test_drafting_stops_at_the_heads_context():
    target = tiny_llama(1)
    head = random_head(target)
    head.max_context = 20
    for prompt in (PROMPT, list(range(30))):
        wanted = tokens_of(autoregressive(prompt, pair_of(target), max_new_tokens=40))
        with pytest.warns(UserWarning, match="found a context of 20 tokens"):
            steps = list(decode(prompt, pair_of(target, head), tree=k_ary_tree(2, 3), max_new_tokens=40))
        assert tokens_of(steps) == wanted and steps[-1].tree.size == 1


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("eagle", "P-EAGLE head"),
        ("mtp", "P-EAGLE head"),
        ("dspark", "P-EAGLE head: each of its rows depends on the token drawn before it"),
        ("dflash2", "P-EAGLE head: its selector depends on the tokens drawn before"),
    ],
)
def test_other_heads_are_rejected_as_drafts(kind, reason, tmp_path):
    config = {"speculators_model_type": kind, "speculators_config": {"algorithm": kind}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=rf"found a draft head \({kind}\).*or an EAGLE-3, DFlash or {reason}"):
        load_pair(DEMO_PAIR / "target", tmp_path, device="cpu")
