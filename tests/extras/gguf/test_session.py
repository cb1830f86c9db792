"""Trees in a llama.cpp context: each node gets the logits of its path, before and after any number of commits.

Keys and values are float16 and rounding depends on the batch size, so rows are compared within a fraction of
their spread, at most what `check_tree_pass` allows for rounded formats.
"""

import numpy as np
import pytest
import torch

from sequoia_core.models.protocol import causal_mask
from sequoia_core.models.tree_pass_check import check_tree_pass
from sequoia_core.planning.profile import MAX_SEQUENCES
from sequoia_core.trees.tree import TokenTree
from sequoia_extras.gguf.model import GGUFModel
from tests.gguf_files import ARCHITECTURES, CONTEXT, VOCAB, write_random

pytestmark = pytest.mark.usefixtures("needed")
ALLOWED = 0.01  # fraction of the spread of a row's logits; keys and values have 11 bits


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, GGUFModel]:
    folder = tmp_path_factory.mktemp("families")
    return {name: GGUFModel(write_random(name, folder / f"{name}.gguf"), name) for name in ARCHITECTURES}


def random_tree(draw, size: int) -> list[int]:
    return [-1, *(int(draw.integers(0, node)) for node in range(1, size))]


def masks(parents: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return depths [n] and the additive mask [n, n] of a tree."""
    visible = torch.from_numpy(TokenTree.from_valid_parents(np.array(parents)).ancestor_mask)
    return visible.sum(1) - 1, torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)


def path_to(parents: list[int], node: int) -> list[int]:
    return TokenTree.from_valid_parents(np.array(parents)).path_to(node)


def read(session, ids, keep=1):
    ids = torch.as_tensor(ids)
    positions = torch.arange(len(ids)) + session.length
    return session.forward(ids, positions, causal_mask(len(ids)), keep=keep).clone()


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    spread = (wanted - wanted.mean(-1, keepdim=True)).norm()
    return float((found - wanted).norm() / spread)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_tree_rows_match_their_paths(models, architecture):
    model = models[architecture]
    size = 40
    draw = np.random.default_rng(1)
    assert (model.max_context, model.vocab_size, model.dtype) == (CONTEXT, VOCAB, "F32")
    check_tree_pass(model)
    prefix = draw.integers(0, VOCAB, 20).tolist()
    parents = random_tree(draw, size)
    ids = torch.tensor(draw.integers(0, VOCAB, size))
    depths, mask = masks(parents)
    session = model.open(128)
    read(session, prefix)
    rows = session.forward(ids, len(prefix) + depths, mask, keep=size).clone()
    for node in range(size):
        plain = model.plain_logits(torch.tensor([*prefix, *ids[path_to(parents, node)].tolist()]))[-1]
        assert difference(rows[node], plain) < ALLOWED, (node, model.name)


@pytest.mark.slow
def test_cache_is_intact_after_a_thousand_commits(models):
    """Each tree is read in two passes; the second adds children to any node of the first."""
    draw = np.random.default_rng(3)
    model = models["llama"]
    session = model.open(160)
    text = []
    for step in range(1000):
        if len(text) > 90:  # return to an earlier length, as a conversation does
            text = text[:5]
            session.commit(5, [])
        parents = random_tree(draw, int(draw.integers(1, 24)))
        ids = draw.integers(0, VOCAB, len(parents))
        middle = len(parents) // 2
        depths, mask = masks(parents)
        for start, stop in ((0, middle), (middle, len(parents))):
            if start < stop:
                places = len(text) + depths[start:stop]
                session.forward(torch.tensor(ids[start:stop]), places, mask[start:stop, :stop], keep=1)
        kept = path_to(parents, int(draw.integers(len(parents))))
        session.commit(len(text), kept)
        text += ids[kept].tolist()
        assert session.length == len(text)
        if step % 20 == 19:
            fresh = model.open(160)
            read(fresh, text)
            assert difference(read(session, [7]), read(fresh, [7])) < ALLOWED
            session.commit(len(text), [])


def test_committing_nothing_empties_the_cache(models):
    session = models["llama"].open(32)
    read(session, [1, 2, 3])
    session.commit(0, [])
    assert session.length == 0
    wanted = models["llama"].plain_logits(torch.tensor([4, 5]))
    assert difference(read(session, [4, 5], keep=2), wanted) < ALLOWED


def test_leaves_are_limited_by_llama_cpps_sequences(models):
    model = models["llama"]
    session = model.open(MAX_SEQUENCES + 8)
    read(session, [1, 2])
    depths, mask = masks([-1, *[0] * MAX_SEQUENCES])
    ids = torch.arange(MAX_SEQUENCES + 1) % VOCAB
    rows = session.forward(ids, 2 + depths, mask, keep=3).clone()
    plain = model.plain_logits(torch.tensor([1, 2, 0, int(ids[-1])]))[-1]
    assert difference(rows[-1], plain) < ALLOWED
    session.commit(2, [0, 5])
    assert session.length == 4
    wider = model.open(MAX_SEQUENCES + 8)
    depths, mask = masks([-1, *[0] * (MAX_SEQUENCES + 1)])
    with pytest.raises(ValueError, match="found more than 256 leaves, expected at most 256"):
        wider.forward(torch.zeros(MAX_SEQUENCES + 2, dtype=torch.int64), depths, mask, keep=1)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_growing_context_retains_tokens(models, architecture):
    draw = np.random.default_rng(3)
    model = models[architecture]
    session = model.open(200)
    text = draw.integers(0, VOCAB, 12).tolist()
    read(session, text)
    for _ in range(2):  # also in a context that has grown before
        levels = [0], [0] * 10, [1 + int(at) for at in draw.integers(0, 10, 60)]
        parents = [at - (place == 0) for place, level in enumerate(levels) for at in level]
        depths, mask = masks(parents)
        ids = torch.tensor(draw.integers(0, VOCAB, len(parents)))
        start = 0
        end = 0
        for level in levels:  # 10, then 60 leaves below cached tokens
            start = end
            end = end + len(level)
            places = len(text) + depths[start:end]
            seen = mask[start:end, :end]
            rows = session.forward(ids[start:end], places, seen, keep=len(level))
            for node in draw.integers(start, end, 4).tolist():
                path = path_to(parents, node)
                plain = model.plain_logits(torch.tensor([*text, *ids[path].tolist()]))[-1]
                assert difference(rows[node - start], plain) < ALLOWED, (node, architecture)
        kept = path_to(parents, len(parents) - 1)
        session.commit(len(text), kept)
        text += ids[kept].tolist()
    assert session.length == len(text) == 18


def test_full_cache_is_rejected(models):
    session = models["llama"].open(8)
    read(session, [1] * 6)
    with pytest.raises(ValueError, match=r"cache: found 6 \+ 3 tokens, expected at most 8 slots"):
        read(session, [1] * 3)
