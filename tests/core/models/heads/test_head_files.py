"""Heads of both EAGLE-3 forms are read by name and shape; other heads, and those of other targets, are refused."""

import pytest
import torch

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


def test_embeddings_are_the_targets_where_a_head_brings_none(target, tmp_path):
    without = load_head(written(tmp_path / "without", target), target)
    assert torch.equal(without.embed(torch.arange(3)), target.get_input_embeddings().weight[:3])
    own = load_head(written(tmp_path / "own", target, embeddings=True), target)
    assert not torch.equal(own.embed(torch.arange(3)), without.embed(torch.arange(3)))


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"hidden_size": 64}, "hidden_size: found 64, expected 32 as the target has"),
        ({"hidden_size": 48, "target_hidden_size": 32}, "found no embed_tokens.weight, expected one"),
        ({"hidden_act": "gelu"}, "hidden_act: found 'gelu', expected silu"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type: found 'dynamic', expected default"),
        ({"num_hidden_layers": 60}, "num_hidden_layers: found 60 with 13 tensors stored"),
        ({"intermediate_size": 40}, "layers.0.mlp.gate_proj.weight of shape"),
        ({"hidden_size": "32"}, "hidden_size: found '32', expected: Input should be a valid integer"),
        ({"model_type": "gpt_oss"}, "model_type: found 'gpt_oss', expected llama or qwen3"),
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
    assert load_head(equal, target).tokens is None


def test_damaged_weights_are_refused_in_one_line(target, tmp_path):
    folder = written(tmp_path / "nan", target, change={"norm.weight": torch.full((32,), torch.nan)})
    with pytest.raises(ValueError, match="found numbers that are not finite in norm.weight"):
        load_head(folder, target)
    folder = written(tmp_path / "cut", target, pickled=True)
    (folder / "pytorch_model.bin").write_bytes((folder / "pytorch_model.bin").read_bytes()[:-100])
    with pytest.raises(ValueError, match="pytorch_model.bin: found what does not load"):
        load_head(folder, target)
