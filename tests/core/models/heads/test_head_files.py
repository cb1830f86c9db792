"""Heads of both EAGLE-3 forms are read by name and shape; other heads, and those of other targets, are refused."""

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
    """Return logits at two depths, the second one from the head's own output."""
    settings, positions = head.settings, torch.arange(5)
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(5, settings.states * settings.target_hidden, generator=generator)
    mask = torch.full((5, 5), -torch.inf).triu(1)
    first = head(head.embed(torch.arange(5)), head.project(states), positions, mask)
    second = head(head.embed(torch.arange(1, 6)), head.feedback(first), positions, mask)
    return head.logits(first), head.logits(second)


def test_both_forms_of_one_head_are_the_same(target, tmp_path):
    published = load_head(written(tmp_path / "a", target, draft_vocab=40), target)
    spelled = load_head(written(tmp_path / "b", target, SPECULATORS, draft_vocab=40), target)
    pickled = load_head(written(tmp_path / "c", target, draft_vocab=40, pickled=True), target)
    assert published.settings.reads == spelled.settings.reads == (2, 3, 3)
    assert torch.equal(published.tokens, spelled.tokens) and published.tokens.tolist() != list(range(40))
    for one, other, third in zip(*map(outputs, (published, spelled, pickled)), strict=True):
        assert one.shape == (5, 40) and torch.equal(one, other) and torch.equal(one, third)


def test_layers_are_counted_from_0_in_the_published_form_unless_they_begin_with_2(target, tmp_path):
    ids = "eagle_aux_hidden_state_layer_ids"
    for name, listed in (("outputs", [1, 2, 4]), ("states", [2, 3, 5])):
        folder = written(tmp_path / name, target, eagle_config={ids: listed})
        assert load_head(folder, target).settings.reads == (2, 3, 5)
    with pytest.raises(ValueError, match=f"{ids}: found .3, 4, 5., expected a list that begins with 1 .* or 2"):
        load_head(written(tmp_path / "neither", target, eagle_config={ids: [3, 4, 5]}), target)
    with pytest.raises(ValueError, match="reads the target's states 2, 3, 7, expected numbers from 0 to 6"):
        load_head(written(tmp_path / "deeper", target, eagle_config={ids: [1, 2, 6]}), target)


def test_layers_beside_the_settings_of_its_family_are_read_by_the_same_rule(target, tmp_path):
    ids = "eagle_aux_hidden_state_layer_ids"
    beside = written(tmp_path / "beside", target, **{ids: [1, 2, 4], "num_aux_hidden_states": 3})
    assert load_head(beside, target).settings.reads == (2, 3, 5)
    with pytest.raises(ValueError, match=f"{ids}: found .3, 5, 7., expected a list that begins with 1"):
        load_head(written(tmp_path / "neither", target, **{ids: [3, 5, 7]}), target)
    both = {ids: [1, 2, 4], "eagle_config": {ids: [1, 2, 5]}}
    with pytest.raises(ValueError, match=f"{ids}: found .1, 2, 4., and .1, 2, 5. in eagle_config"):
        load_head(written(tmp_path / "both", target, **both), target)


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("head_dim", [4, 16])
def test_the_width_of_a_head_follows_from_the_weights_unless_it_is_given(head_dim, pickled, target, tmp_path):
    fields = head_fields(target, layer={"head_dim": head_dim})
    tensors = head_tensors(fields)
    given = load_head(write_head(tmp_path / "given", fields, tensors), target)
    del fields["head_dim"]
    follows = load_head(write_head(tmp_path / "follows", fields, tensors, pickled=pickled), target)
    assert all(map(torch.equal, outputs(given), outputs(follows))) and follows.settings.head_dim == head_dim
    folder = write_head(tmp_path / "other", fields | {"head_dim": 8}, tensors)
    with pytest.raises(ValueError, match=f"head_dim: found 8 for 4 heads, expected {head_dim} .* rows"):
        load_head(folder, target)


def test_shards_with_an_index_are_one_head(target, tmp_path):
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
        with pytest.raises(ValueError, match=f"index.json: found no file 1-{ending}"):
            load_head(folder, target)


def test_an_output_layer_that_is_borrowed_is_said_and_never_guessed(target, tmp_path):
    fields = head_fields(target)
    own = {key: tensor for key, tensor in head_tensors(fields, embeddings=True).items() if key != "lm_head.weight"}
    bare = {key: tensor for key, tensor in own.items() if key != "embed_tokens.weight"}
    tied = fields | {"tie_word_embeddings": True}
    for number, (said, tensors) in enumerate([(fields, own), (fields, bare), (tied, bare)]):
        head = load_head(write_head(tmp_path / f"{number}", said, tensors), target)
        assert head.remarks == ["The head has no lm_head.weight: it uses the target's output layer."]
    equal = own | {"lm_head.weight": own["embed_tokens.weight"].clone()}
    assert load_head(write_head(tmp_path / "equal", tied, equal), target).remarks == []
    for name, tensors in (("none", own), ("other", equal | {"lm_head.weight": torch.ones(64, 32)})):
        with pytest.raises(ValueError, match="tie_word_embeddings: found true, embed_tokens.weight and .*lm_head"):
            load_head(write_head(tmp_path / name, tied, tensors), target)


def test_embeddings_are_the_targets_where_a_head_brings_none(target, tmp_path):
    without = load_head(written(tmp_path / "without", target), target)
    assert torch.equal(without.embed(torch.arange(3)), target.get_input_embeddings().weight[:3])
    own = load_head(written(tmp_path / "own", target, embeddings=True), target)
    assert not torch.equal(own.embed(torch.arange(3)), without.embed(torch.arange(3)))


@pytest.mark.sample(17)
@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"hidden_size": 64}, "hidden_size: found 64, expected 32 as the target has"),
        ({"hidden_size": 48, "target_hidden_size": 32}, "found no embed_tokens.weight, expected one"),
        ({"hidden_act": "gelu"}, "hidden_act: found 'gelu', expected silu"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type: found 'dynamic', expected default"),
        ({"rope_parameters": {"rope_theta": 5.0}}, "rope_theta: found 10000.0, and 5.0 in rope_parameters"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
            "rope_scaling: found .*'linear'.*, and .*'default'.* in rope_parameters",
        ),
        ({"num_hidden_layers": 60}, "num_hidden_layers: found 60 with 13 tensors stored"),
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
def test_what_does_not_fit_is_refused(fields, found, target, tmp_path):
    own = head_fields(target)
    folder = write_head(tmp_path / "head", own | fields, head_tensors(own))
    with pytest.raises(ValueError, match=found) as caught:
        load_head(folder, target)
    assert str(caught.value).startswith(f"{folder}") and "\n" not in str(caught.value)


def test_the_map_of_tokens_holds_distances(target, tmp_path):
    tensors = head_tensors(head_fields(target, draft_vocab=40))
    tokens = tensors["d2t"] + torch.arange(40)
    for change, found in (
        ({"d2t": tokens}, "d2t: found token ids, expected the distance"),
        ({"d2t": tensors["d2t"].roll(1)}, "d2t: found distances that lead to other tokens"),
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
    assert head.remarks == ["The head's t2d marks 40 tokens, its config.json gives 64: t2d is not used."]
    with pytest.raises(ValueError, match="d2t: found 63 distances other than 0, expected none .* the target's 64"):
        load_head(written(tmp_path / "moved", target, change={"d2t": torch.arange(64)}), target)
    with pytest.raises(ValueError, match="t2d: found 41 tokens marked, expected 40"):
        load_head(written(tmp_path / "more", target, draft_vocab=40, change={"t2d": torch.arange(64) < 41}), target)


@pytest.mark.parametrize("name", ["layers.0.hidden_norm.weight", "model.norm.weight"])
def test_one_tensor_under_two_names_is_refused_where_they_differ(name, target, tmp_path):
    tensors = head_tensors(head_fields(target))
    first = name.removeprefix("model.").replace("layers.0.", "midlayer.")
    same = written(tmp_path / "same", target, change={name: tensors[first].clone()})
    assert load_head(same, target).settings.layers == 1
    with pytest.raises(ValueError, match=f"found ({first} and {name}|{name} and {first}), which differ"):
        load_head(written(tmp_path / "differ", target, change={name: 2 * tensors[first]}), target)


def test_damaged_weights_are_refused_in_one_line(target, tmp_path):
    folder = written(tmp_path / "nan", target, change={"norm.weight": torch.full((32,), torch.nan)})
    with pytest.raises(ValueError, match="found numbers that are not finite in norm.weight"):
        load_head(folder, target)
    for dtype in (torch.int32, torch.float8_e4m3fn):
        folder = written(tmp_path / str(dtype), target, change={"norm.weight": torch.ones(32).to(dtype)})
        with pytest.raises(ValueError, match=f"norm.weight stored as {dtype}"):
            load_head(folder, target)
    folder = written(tmp_path / "cut", target, pickled=True)
    (folder / "pytorch_model.bin").write_bytes((folder / "pytorch_model.bin").read_bytes()[:-100])
    with pytest.raises(ValueError, match="pytorch_model.bin: found a damaged or foreign file"):
        load_head(folder, target)
