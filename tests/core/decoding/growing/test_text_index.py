"""The text index: what it finds, by counting again; the same with and without compiled code; what it forgets."""

import numpy as np
import pytest

from sequoia_core.decoding.growing.text_index import LEAST_SCORE, PRIOR, RunningText, TextIndex
from sequoia_core.native import text_index as native
from sequoia_core.native.text_index import BINS, LENGTHS, MOST, OCCURRENCES, TreeColumns

COLUMNS = "parents ranks depths tokens probs scores places sources lengths".split()


def text(seed, length=120, vocab=4):
    """Return tokens that repeat themselves: few kinds, and passages that come again."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(vocab, size=length).tolist()
    return tokens[: length // 2] + tokens[10 : 10 + length // 4] + tokens[length // 2 :]


def without_compiled_code(monkeypatch):
    monkeypatch.setattr(native, "compiled", lambda: None)


@pytest.fixture(params=["compiled", "plain"])
def each_index(request, monkeypatch):
    if request.param == "plain":
        without_compiled_code(monkeypatch)
    elif native.compiled() is None:
        pytest.skip("text_index.c cannot be built here")


def columns(size=24, depth=6, children=4, least=LEAST_SCORE):
    return TreeColumns(max_size=size, max_depth=depth, max_children=children, least=least)


def trees_along(tokens, index, tree):
    """Return the tree at every token of a text, as rows of numbers."""
    running, found = RunningText(index, len(tokens)), []
    for token in tokens:
        running.extend([token])
        size = running.grow(tree)
        found.append([tree.columns[name][:size].tolist() for name in COLUMNS])
    return found


def counted(texts, context):
    """Count again, from the texts themselves: length -> what followed the newest occurrences of that end."""
    found = {}
    for length in LENGTHS:
        if length > len(context):
            continue
        after = []
        for number, (source, tokens) in enumerate(texts):
            places = [i for i in range(length, len(tokens)) if tokens[i - length : i] == context[-length:]]
            after += [(source, number, place, tokens[place]) for place in places]
        own = sorted((entry for entry in after if entry[0] == 0), reverse=True)[:OCCURRENCES]
        store = sorted((entry for entry in after if entry[0] == 1), key=lambda e: e[1:3], reverse=True)[:OCCURRENCES]
        found[length] = [(source, token) for source, _, _, token in own + store]
    return found


@pytest.mark.usefixtures("each_index")
@pytest.mark.parametrize("seed", range(4))
def test_children_of_the_root_are_what_followed_the_longest_matches(seed):
    earlier, own = [text(100 + seed), text(200 + seed)], text(seed, vocab=5)
    index, tree = TextIndex(), columns(size=MOST + 1, depth=1, children=MOST, least=0.0)
    for tokens in earlier:
        index.add(tokens)
    running = RunningText(index, len(own))
    running.extend(own)
    size = running.grow(tree)
    by_length = counted([(0, own), *((1, tokens) for tokens in earlier)], own)
    wanted: dict[int, int] = {}  # token -> the longest match that it followed
    for length, after in by_length.items():
        for _, token in after:
            wanted.setdefault(token, length)
    found = {int(tree.columns["tokens"][node]): int(tree.columns["lengths"][node]) for node in range(1, size)}
    assert found == wanted and len(found) > 2
    for node in range(1, size):
        place, source, token = (int(tree.columns[name][node]) for name in ("places", "sources", "tokens"))
        length = wanted[token]
        assert running.passage(place, source, before=length, after=1) == [*own[-length:], token]
        assert source == min(source for source, other in by_length[length] if other == token)


@pytest.mark.usefixtures("each_index")
def test_chances_are_shares_of_what_longer_matches_leave():
    """With tables as they begin: k followers of one kind and o of others have the chance of their bin."""
    index, tree = TextIndex(max_context=2), columns(size=8, depth=1, least=0.0)
    running = RunningText(index, 40)
    running._ring.state.learns = False
    # after "1 2": 3 three times, then 4; after "2" alone also 5 once
    running.extend([1, 2, 3, 1, 2, 3, 1, 2, 3, 9, 2, 5, 1, 2, 4, 1, 2])
    size = running.grow(tree)
    assert set(tree.columns["lengths"][1:size].tolist()) == {2, 1}, "a short context is kept to"
    prior = PRIOR.reshape(BINS)
    two, one = LENGTHS.index(2), LENGTHS.index(1)
    chances = {3: prior[0, two, 2, 1, 0], 4: prior[0, two, 0, 2, 1]}  # bins: 3 to 4 times; 1 other; once, 2 to 3 others
    chances[5] = (1.0 - chances[3] - chances[4]) * prior[0, one, 0, 3, 0]  # once, 4 to 7 others
    found = dict(zip(tree.columns["tokens"][1:size].tolist(), tree.columns["probs"][1:size].tolist(), strict=True))
    assert found == pytest.approx(chances)


@pytest.mark.sample(2, cover=False)
@pytest.mark.skipif(native.compiled() is None, reason="text_index.c cannot be built here")
@pytest.mark.parametrize("bounds", [(24, 6, 4), (1, 3, 1), (17, 16, 1)], ids=str)
@pytest.mark.parametrize("max_tokens", [10_000, 100])
def test_compiled_and_plain_code_agree_number_for_number(max_tokens, bounds, monkeypatch):
    """Also where old tokens were overwritten; and both keep to the bounds of a tree."""
    size, depth, children = bounds

    def run():
        index = TextIndex(max_tokens=max_tokens)
        found = []
        for seed in range(5):
            found += trees_along(text(seed, length=90), index, columns(*bounds))
            index.add(text(seed, length=90))
        index.add([1, 2, 3] * 250)  # some bins count more than is remembered
        return found, [a.tolist() for a in (index.hits, index.trials, index.ring.tokens)]

    trees, tables = compiled = run()
    without_compiled_code(monkeypatch)
    assert run() == compiled
    assert max(len(parents) for parents, *_ in trees) == size
    assert all(max(ranks) <= children and max(depths) <= depth for _, ranks, depths, *_ in trees)
    assert max_tokens < 1_000 or 256 < max(tables[1]) <= native.FORGOTTEN_AT


@pytest.mark.sample(6)
@pytest.mark.usefixtures("each_index")
@pytest.mark.parametrize(("last", "nodes"), [(8, 1), (9, 1), (10, 2)])
def test_what_followed_an_overwritten_token_is_forgotten(last, nodes):
    """The second text ends where 8 and 9 were, with an 8 and the mark of its end; 10 and what followed it are kept."""
    index = TextIndex(max_tokens=32)
    index.add(range(20))
    index.add([*range(30, 49), 8])
    running = RunningText(index, 1)
    running.extend([last])
    assert index.tokens == 32 and running.grow(columns(depth=1)) == nodes


def test_of_a_text_longer_than_the_index_the_end_is_kept():
    index = TextIndex(max_tokens=32)
    index.add(range(100))
    assert (index.largest_token, index.tokens) == (99, 32)


@pytest.mark.usefixtures("each_index")
def test_no_context_reaches_across_texts():
    index = TextIndex()
    index.add([1, 2])
    index.add([3, 4])
    running = RunningText(index, 8)
    running.extend([1, 2])
    assert running.grow(columns()) == 1, "what begins the next text does not follow this one"
    running.extend([9, 3])
    tree = columns()
    assert running.grow(tree) == 2 and tree.columns["tokens"][1] == 4 and tree.columns["lengths"][1] == 1
    assert running.passage(int(tree.columns["places"][1]), 1, before=9, after=9) == [3, 4]


@pytest.mark.usefixtures("each_index")
def test_scores_sum_to_the_tokens_that_come_true():
    """Calibrated: over a text whose next token is known in law, drafted scores promise what is accepted."""
    generator = np.random.default_rng(0)
    follow = generator.dirichlet(np.full(12, 0.2), size=12)
    tokens = [0]
    for _ in range(1500):
        tokens.append(int(generator.choice(12, p=follow[tokens[-1]])))
    promised = came = 0.0
    running, tree = RunningText(TextIndex(), len(tokens)), columns(size=6, depth=1)
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
        ({"max_tokens": 10**12}, "max_tokens"),
    ],
)
def test_bounds_out_of_range_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        TextIndex(**arguments)


@pytest.mark.parametrize("tokens", [[1, -1], [2**31], [0.5]])
def test_what_are_no_tokens_is_refused_and_nothing_is_added(tokens):
    index = TextIndex()
    with pytest.raises(ValueError, match="token ids: found"):
        index.add(tokens)
    assert index.tokens == 0


@pytest.mark.skipif(native.compiled() is None, reason="text_index.c cannot be built here")
def test_what_follows_drafted_nodes_is_the_same_number_for_number(monkeypatch):
    """Below nodes that a draft proposed, and not below those from before them."""

    def run():
        index, own, found = TextIndex(), text(8, length=40), []
        index.add(text(7))
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
