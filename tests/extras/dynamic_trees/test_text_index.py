"""The text index: its candidates against a recount, with and without compiled code, and what it overwrites."""

import numpy as np
import pytest

from sequoia_extras.dynamic_trees import text_index as module
from sequoia_extras.dynamic_trees.index_memory import (
    BIN_SHAPE,
    CONTEXT_LENGTHS,
    HALVING_TRIALS,
    MAX_CANDIDATES,
    MAX_OCCURRENCES,
    TreeColumns,
)
from sequoia_extras.dynamic_trees.text_index import MIN_SCORE, PRIOR, RunningText, TextIndex

COLUMNS = "parents ranks depths tokens probs scores positions sources lengths".split()


def repetitive_text(seed, length=120, vocab=4):
    """Return tokens of a small vocabulary with repeated passages."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(vocab, size=length).tolist()
    return tokens[: length // 2] + tokens[10 : 10 + length // 4] + tokens[length // 2 :]


def without_compiled_code(monkeypatch):
    monkeypatch.setattr(module, "compiled_index", lambda: None)


@pytest.fixture(params=["compiled", "plain"])
def each_index(request, monkeypatch):
    if request.param == "plain":
        without_compiled_code(monkeypatch)
    elif module.compiled_index() is None:
        pytest.skip("text_index.c cannot be built here")


def columns(size=24, depth=6, children=4, min_score=MIN_SCORE):
    return TreeColumns(max_size=size, max_depth=depth, max_children=children, min_score=min_score)


def trees_along(tokens, index, tree):
    """Return the tree at every token of a text, as rows of numbers."""
    running = RunningText(index, len(tokens))
    found = []
    for token in tokens:
        running.extend([token])
        size = running.grow(tree)
        found.append([tree.columns[name][:size].tolist() for name in COLUMNS])
    return found


def recount(texts, context):
    """Recount the texts: length -> the tokens after the newest occurrences of the context of that length."""
    found = {}
    for length in CONTEXT_LENGTHS:
        if length > len(context):
            continue
        after = []
        for number, (source, tokens) in enumerate(texts):
            places = [i for i in range(length, len(tokens)) if tokens[i - length : i] == context[-length:]]
            after += [(source, number, place, tokens[place]) for place in places]
        own = sorted((entry for entry in after if entry[0] == 0), reverse=True)[:MAX_OCCURRENCES]
        store = sorted((entry for entry in after if entry[0] == 1), key=lambda e: e[1:3], reverse=True)[
            :MAX_OCCURRENCES
        ]
        found[length] = [(source, token) for source, _, _, token in own + store]
    return found


@pytest.mark.usefixtures("each_index")
@pytest.mark.parametrize("seed", range(4))
def test_children_of_the_root_followed_the_longest_matches(seed):
    earlier = [repetitive_text(100 + seed), repetitive_text(200 + seed)]
    own = repetitive_text(seed, vocab=5)
    index = TextIndex()
    tree = columns(size=MAX_CANDIDATES + 1, depth=1, children=MAX_CANDIDATES, min_score=0.0)
    for tokens in earlier:
        index.add(tokens)
    running = RunningText(index, len(own))
    running.extend(own)
    size = running.grow(tree)
    by_length = recount([(0, own), *((1, tokens) for tokens in earlier)], own)
    wanted: dict[int, int] = {}  # token -> the longest match that it followed
    for length, after in by_length.items():
        for _, token in after:
            wanted.setdefault(token, length)
    found = {int(tree.columns["tokens"][node]): int(tree.columns["lengths"][node]) for node in range(1, size)}
    assert found == wanted and len(found) > 2
    for node in range(1, size):
        place, source, token = (int(tree.columns[name][node]) for name in ("positions", "sources", "tokens"))
        length = wanted[token]
        assert running.passage(place, source, before=length, after=1) == [*own[-length:], token]
        assert source == min(source for source, other in by_length[length] if other == token)


@pytest.mark.usefixtures("each_index")
def test_shorter_matches_share_the_remaining_chance():
    """With the prior tables, tokens have the chances of their bins."""
    index = TextIndex(max_context=2)
    tree = columns(size=8, depth=1, min_score=0.0)
    running = RunningText(index, 40)
    running._ring.state.learns = False
    # "1 2" was followed by 3 three times and by 4, "2" alone also by 5
    running.extend([1, 2, 3, 1, 2, 3, 1, 2, 3, 9, 2, 5, 1, 2, 4, 1, 2])
    size = running.grow(tree)
    assert set(tree.columns["lengths"][1:size].tolist()) == {2, 1}
    prior = PRIOR.reshape(BIN_SHAPE)
    two = CONTEXT_LENGTHS.index(2)
    one = CONTEXT_LENGTHS.index(1)
    chances = {3: prior[0, two, 2, 1, 0], 4: prior[0, two, 0, 2, 1]}  # bins by own and other counts
    chances[5] = (1.0 - chances[3] - chances[4]) * prior[0, one, 0, 3, 0]
    found = dict(zip(tree.columns["tokens"][1:size].tolist(), tree.columns["probs"][1:size].tolist(), strict=True))
    assert found == pytest.approx(chances)


@pytest.mark.sample(2, cover=False)
@pytest.mark.skipif(module.compiled_index() is None, reason="text_index.c cannot be built here")
@pytest.mark.parametrize("bounds", [(24, 6, 4), (1, 3, 1), (17, 16, 1)], ids=str)
@pytest.mark.parametrize("max_tokens", [10_000, 100])
def test_compiled_and_plain_indexes_agree(max_tokens, bounds, monkeypatch):
    """They agree after tokens were overwritten too, and respect the bounds of a tree."""
    size, depth, children = bounds

    def run():
        index = TextIndex(max_tokens=max_tokens)
        found = []
        for seed in range(5):
            found += trees_along(repetitive_text(seed, length=90), index, columns(*bounds))
            index.add(repetitive_text(seed, length=90))
        index.add([1, 2, 3] * 250)  # exceeds the limit at which counts are halved
        return found, [a.tolist() for a in (index.hits, index.trials, index.ring.tokens)]

    trees, tables = compiled = run()
    without_compiled_code(monkeypatch)
    assert run() == compiled
    assert max(len(parents) for parents, *_ in trees) == size
    assert all(max(ranks) <= children and max(depths) <= depth for _, ranks, depths, *_ in trees)
    assert max_tokens < 1_000 or 256 < max(tables[1]) <= HALVING_TRIALS


@pytest.mark.sample(6)
@pytest.mark.usefixtures("each_index")
@pytest.mark.parametrize(("last", "nodes"), [(8, 1), (9, 1), (10, 2)])
def test_overwritten_contexts_are_forgotten(last, nodes):
    """The second text and its end overwrite everything up to the 9 of the first."""
    index = TextIndex(max_tokens=32)
    index.add(range(20))
    index.add([*range(30, 49), 8])
    running = RunningText(index, 1)
    running.extend([last])
    assert index.tokens == 32 and running.grow(columns(depth=1)) == nodes


def test_only_the_end_of_a_long_text_is_stored():
    index = TextIndex(max_tokens=32)
    index.add(range(100))
    assert (index.largest_token, index.tokens) == (99, 32)


@pytest.mark.usefixtures("each_index")
def test_contexts_do_not_extend_across_texts():
    index = TextIndex()
    index.add([1, 2])
    index.add([3, 4])
    running = RunningText(index, 8)
    running.extend([1, 2])
    assert running.grow(columns()) == 1
    running.extend([9, 3])
    tree = columns()
    assert running.grow(tree) == 2 and tree.columns["tokens"][1] == 4 and tree.columns["lengths"][1] == 1
    assert running.passage(int(tree.columns["positions"][1]), 1, before=9, after=9) == [3, 4]


@pytest.mark.usefixtures("each_index")
def test_scores_are_calibrated():
    """Scores sum to the number of drafted tokens that come true, in text drawn from a calibration distribution."""
    generator = np.random.default_rng(0)
    follow = generator.dirichlet(np.full(12, 0.2), size=12)
    tokens = [0]
    for _ in range(1500):
        tokens.append(int(generator.choice(12, p=follow[tokens[-1]])))
    promised = came = 0.0
    running = RunningText(TextIndex(), len(tokens))
    tree = columns(size=6, depth=1)
    running.extend(tokens[:400])
    for token in tokens[400:]:
        size = running.grow(tree)
        promised += tree.columns["scores"][1:size].sum()
        came += token in tree.columns["tokens"][1:size]
        running.extend([token])
    assert came > 500 and promised == pytest.approx(came, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_context": 13}, "max_context.*13.*12"),
    ],
)
def test_invalid_bounds_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        TextIndex(**arguments)


@pytest.mark.parametrize("tokens", [[1, -1], [2**31], [0.5]])
def test_invalid_tokens_are_refused_and_not_added(tokens):
    index = TextIndex()
    with pytest.raises(ValueError, match="token ids: found"):
        index.add(tokens)
    assert index.tokens == 0


@pytest.mark.skipif(module.compiled_index() is None, reason="text_index.c cannot be built here")
def test_compiled_and_plain_indexes_agree_below_drafted_nodes(monkeypatch):
    """Continuations are looked up only below the nodes that a draft added."""

    def run():
        index = TextIndex()
        own = repetitive_text(8, length=40)
        found = []
        index.add(repetitive_text(7))
        running = RunningText(index, len(own))
        for token in own:
            running.extend([token])
            tree = columns()
            given = {"parents": [-1, 0, 0, 1, 3], "depths": [0, 1, 1, 2, 3], "tokens": [token, 2, 3, 0, 1]}
            for name, values in (
                given | {"probs": [1.0, 0.6, 0.3, 0.5, 0.9], "scores": [1.0, 0.6, 0.3, 0.3, 0.27]}
            ).items():
                tree.columns[name][:5] = values
            size = running.grow(tree, 5, 2)
            found.append([tree.columns[name][:size].tolist() for name in COLUMNS if name != "ranks"])
        return found

    compiled = run()
    without_compiled_code(monkeypatch)
    assert run() == compiled
    parents = {parent for each in compiled for parent in each[0][5:]}
    assert not parents & {0, 1} and {2, 3, 4, 5} <= parents
