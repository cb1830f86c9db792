"""Heads of both EAGLE-3 forms are read by name and shape; heads that do not fit the target are rejected."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tests.conftest import tiny_llama
from tests.head_folders import PUBLISHED, SPECULATORS, head_fields, head_tensors, load_head, write_head


@pytest.fixture(scope="module")
def target():
    return tiny_llama(0, layers=6).model


def written(folder, target, form=PUBLISHED, *, pickled=False, embeddings=False, change=None, **fields):
    fields = head_fields(target, form, **fields)
    tensors = head_tensors(fields, embeddings=embeddings)
    return write_head(folder, fields, tensors | (change or {}), pickled=pickled)


def outputs(head):
    """Return logits at two depths, the second computed from the head's output."""
    settings = head.settings
    positions = torch.arange(5)
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(5, settings.states * settings.target_hidden, generator=generator)
    mask = torch.full((5, 5), -torch.inf).triu(1)
    first = head(head.embed(torch.arange(5)), head.project(states), positions, mask)
    second = head(head.embed(torch.arange(1, 6)), head.feedback(first), positions, mask)
    return head.logits(first), head.logits(second)


def test_both_forms_give_the_same_head(target, tmp_path):
    published = load_head(written(tmp_path / "a", target, draft_vocab=40), target)
    spelled = load_head(written(tmp_path / "b", target, SPECULATORS, draft_vocab=40), target)
    pickled = load_head(written(tmp_path / "c", target, draft_vocab=40, pickled=True), target)
    assert published.settings.reads == spelled.settings.reads == (2, 3, 3)
    assert torch.equal(published.tokens, spelled.tokens) and published.tokens.tolist() != list(range(40))
    for one, other, third in zip(*map(outputs, (published, spelled, pickled)), strict=True):
        assert one.shape == (5, 40) and torch.equal(one, other) and torch.equal(one, third)


LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize("inside", [False, True], ids=["top level", "eagle_config"])
def test_published_layer_ids_are_zero_based_unless_they_begin_with_2(inside, target, tmp_path):
    def read(ids):
        fields = {LAYER_IDS: ids}
        fields = {"eagle_config": fields} if inside else fields | {"num_aux_hidden_states": 3}
        return load_head(written(tmp_path / str(ids), target, **fields), target).settings.reads

    assert read([1, 2, 4]) == read([2, 3, 5]) == (2, 3, 5)
    with pytest.raises(ValueError, match=f"{LAYER_IDS}: found .3, 4, 5., expected a list that begins with 1 .* or 2"):
        read([3, 4, 5])
    with pytest.raises(ValueError, match="reads the target's states 2, 3, 7, expected indices from 0 to 6"):
        read([1, 2, 6])
    both = {LAYER_IDS: [1, 2, 4], "eagle_config": {LAYER_IDS: [1, 2, 5]}}
    with pytest.raises(ValueError, match=f"{LAYER_IDS}: found .1, 2, 4., and .1, 2, 5. in eagle_config"):
        load_head(written(tmp_path / "both", target, **both), target)


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("head_dim", [4, 16])
def test_head_dim_follows_from_weights_unless_given(head_dim, pickled, target, tmp_path):
    fields = head_fields(target, layer={"head_dim": head_dim})
    tensors = head_tensors(fields)
    given = load_head(write_head(tmp_path / "given", fields, tensors), target)
    del fields["head_dim"]
    follows = load_head(write_head(tmp_path / "follows", fields, tensors, pickled=pickled), target)
    assert all(map(torch.equal, outputs(given), outputs(follows))) and follows.settings.head_dim == head_dim
    folder = write_head(tmp_path / "other", fields | {"head_dim": 8}, tensors)
    with pytest.raises(ValueError, match=f"head_dim: found 8 for 4 heads, expected {head_dim} .* rows"):
        load_head(folder, target)


def test_sharded_heads_are_joined(target, tmp_path):
    fields = head_fields(target, draft_vocab=40)
    tensors = head_tensors(fields)
    whole = load_head(write_head(tmp_path / "whole", fields, tensors), target)
    for pickled, ending in ((False, "model.safetensors"), (True, "pytorch_model.bin")):
        folder = write_head(tmp_path / ending, fields, tensors)
        (folder / "model.safetensors").unlink()
        places = {key: f"{index % 2}-{ending}" for index, key in enumerate(tensors)}
        for shard in set(places.values()):
            held = {key: tensors[key].contiguous() for key in tensors if places[key] == shard}
            (torch.save if pickled else save_file)(held, folder / shard)
        (folder / f"{ending}.index.json").write_text(json.dumps({"weight_map": places}))
        assert all(map(torch.equal, outputs(load_head(folder, target)), outputs(whole)))
        (folder / f"1-{ending}").unlink()
        with pytest.raises(ValueError, match=f"index.json: the file 1-{ending}"):
            load_head(folder, target)


def test_shared_output_layer_is_remarked_and_never_guessed(target, tmp_path):
    fields = head_fields(target)
    own = {key: tensor for key, tensor in head_tensors(fields, embeddings=True).items() if key != "lm_head.weight"}
    bare = {key: tensor for key, tensor in own.items() if key != "embed_tokens.weight"}
    tied = fields | {"tie_word_embeddings": True}
    for number, (said, tensors) in enumerate([(fields, own), (fields, bare), (tied, bare)]):
        head = load_head(write_head(tmp_path / f"{number}", said, tensors), target)
        assert head.remarks == ["The head has no lm_head.weight, so it uses the target's output layer."]
    equal = own | {"lm_head.weight": own["embed_tokens.weight"].clone()}
    assert load_head(write_head(tmp_path / "equal", tied, equal), target).remarks == []
    for name, tensors in (("none", own), ("other", equal | {"lm_head.weight": torch.ones(64, 32)})):
        with pytest.raises(ValueError, match="tie_word_embeddings: found true, embed_tokens.weight and .*lm_head"):
            load_head(write_head(tmp_path / name, tied, tensors), target)


def test_heads_without_embedding_use_the_targets(target, tmp_path):
    without = load_head(written(tmp_path / "without", target), target)
    assert torch.equal(without.embed(torch.arange(3)), target.get_input_embeddings().weight[:3])
    own = load_head(written(tmp_path / "own", target, embeddings=True), target)
    assert not torch.equal(own.embed(torch.arange(3)), without.embed(torch.arange(3)))


@pytest.mark.sample(17)
@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"hidden_size": 64}, "hidden_size: found 64, expected 32 as in this target"),
        ({"hidden_size": 48, "target_hidden_size": 32}, "found no embed_tokens.weight, expected one"),
        ({"hidden_act": "gelu"}, "hidden_act: found 'gelu', expected silu"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type: found 'dynamic', expected default"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta: found 10000.0, and 5.0 in rope_parameters"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
            "rope_scaling: found .*'linear'.*, and .*'default'.* in rope_parameters",
        ),
        ({"num_hidden_layers": 60}, "num_hidden_layers: found 60 with only 13 stored tensors"),
        ({"intermediate_size": 40}, "layers.0.mlp.gate_proj.weight of shape"),
        ({"hidden_size": "32"}, "hidden_size: found '32', expected: Input should be a valid integer"),
        ({"model_type": "gpt_oss"}, "model_type: found 'gpt_oss', expected llama or qwen3"),
        ({"norm_before_fc": True, "fc_norm": True}, "norm_before_fc and fc_norm: found both"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: found 3, expected a divisor of 4"),
        ({"head_dim": 7}, "head_dim: found 7, expected an even number"),
        ({"mlp_bias": True}, "mlp_bias: found 'True', expected False"),
        ({"layer_types": ["sliding_attention"]}, "layer_types: found 'sliding_attention', expected full_attention"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state: found false, expected true"),
        ({"num_aux_hidden_states": 4}, "num_aux_hidden_states: found 4, expected 3"),
    ],
)
def test_unsupported_settings_are_rejected(fields, found, target, tmp_path):
    own = head_fields(target)
    folder = write_head(tmp_path / "head", own | fields, head_tensors(own))
    with pytest.raises(ValueError, match=found) as caught:
        load_head(folder, target)
    assert str(caught.value).startswith(f"{folder}") and "\n" not in str(caught.value)


def test_token_map_has_offsets(target, tmp_path):
    tensors = head_tensors(head_fields(target, draft_vocab=40))
    tokens = tensors["d2t"] + torch.arange(40)
    for change, found in (
        ({"d2t": tokens}, "d2t: found token ids, expected offsets"),
        ({"d2t": tensors["d2t"].roll(1)}, "d2t: found offsets that lead to tokens that t2d"),
        ({"d2t": tensors["d2t"].float()}, "d2t: found torch.float32"),
    ):
        with pytest.raises(ValueError, match=found):
            load_head(written(tmp_path / found[:20], target, draft_vocab=40, change=change), target)
    del tensors["t2d"]
    with pytest.raises(ValueError, match="found no t2d, expected d2t and t2d"):
        load_head(write_head(tmp_path / "no-t2d", head_fields(target, draft_vocab=40), tensors), target)
    equal = written(tmp_path / "equal", target, change={"d2t": torch.zeros(64, dtype=torch.int64)})
    assert load_head(equal, target).tokens is None and load_head(equal, target).remarks == []
    head = load_head(written(tmp_path / "marked", target, change={"t2d": torch.arange(64) < 40}), target)
    assert head.remarks == ["The head's t2d marks 40 tokens, but its config.json specifies 64: t2d is ignored."]
    with pytest.raises(ValueError, match="d2t: found 63 offsets other than 0, expected none.* the target's 64"):
        load_head(written(tmp_path / "moved", target, change={"d2t": torch.arange(64)}), target)
    with pytest.raises(ValueError, match="t2d: found 41 marked tokens, expected 40"):
        load_head(written(tmp_path / "more", target, draft_vocab=40, change={"t2d": torch.arange(64) < 41}), target)


@pytest.mark.parametrize("name", ["layers.0.hidden_norm.weight", "model.norm.weight"])
def test_conflicting_tensor_names_are_rejected(name, target, tmp_path):
    tensors = head_tensors(head_fields(target))
    first = name.removeprefix("model.").replace("layers.0.", "midlayer.")
    same = written(tmp_path / "same", target, change={name: tensors[first].clone()})
    assert load_head(same, target).settings.layers == 1
    with pytest.raises(ValueError, match=f"found ({first} and {name}|{name} and {first}), which differ"):
        load_head(written(tmp_path / "differ", target, change={name: 2 * tensors[first]}), target)


def test_damaged_weights_are_rejected(target, tmp_path):
    folder = written(tmp_path / "nan", target, change={"norm.weight": torch.full((32,), torch.nan)})
    with pytest.raises(ValueError, match="found non-finite numbers in norm.weight"):
        load_head(folder, target)
    for dtype in (torch.int32, torch.float8_e4m3fn):
        folder = written(tmp_path / str(dtype), target, change={"norm.weight": torch.ones(32).to(dtype)})
        with pytest.raises(ValueError, match=f"norm.weight stored as {dtype}"):
            load_head(folder, target)
    folder = written(tmp_path / "cut", target, pickled=True)
    (folder / "pytorch_model.bin").write_bytes((folder / "pytorch_model.bin").read_bytes()[:-100])
    with pytest.raises(ValueError, match="pytorch_model.bin: found a damaged or unsupported file"):
        load_head(folder, target)
