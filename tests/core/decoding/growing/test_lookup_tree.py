"""Lookup trees: the target's own text at every temperature, whatever the index holds; nodes by chance and cost.

The statistical tests raise a false alarm with a probability below 1e-6 each; their seeds are fixed besides.
"""

import numpy as np
import pytest

from sequoia_core import LookupTree
from sequoia_core.decoding.growing import step_costs
from sequoia_core.decoding.growing.step_costs import LOOK_UP_SEC, LOSS_SHARE, TRIALS, LookUpBudget
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.loop import autoregressive, decode
from tests.conftest import linear_profile, pair_of, tokens_of

PROMPT = [3, 14, 15, 9, 2, 6, 3, 14, 15]
both_ways = pytest.mark.usefixtures("each_rows")  # with compiled rows and without


def misleading(target, prompt, vocab):
    """Return an index of what the target does not write: after each of its contexts, another token."""
    wanted = tokens_of(autoregressive(prompt, pair_of(target), max_new_tokens=40))
    index = TextIndex()
    for shift in range(1, 5):
        whole = [*prompt, *wanted]
        for place in range(len(prompt), len(whole), 3):
            index.add([*whole[:place], (whole[place] + shift) % vocab, (whole[place] + 2 * shift) % vocab])
    return index


def test_a_decode_leaves_the_index_as_it_was(tiny_target):
    index = TextIndex()
    index.add(PROMPT * 3)
    held, hits = index.tokens, index.hits.copy()
    first, second = (
        [step.tokens for step in decode(PROMPT, pair_of(tiny_target), tree=LookupTree(index))] for _ in range(2)
    )
    assert first == second and index.tokens == held and np.array_equal(index.hits, hits)


@both_ways
def test_nodes_that_cost_more_than_they_bring_are_left_out(tiny_target):
    def steps(per_node):
        policy = LookupTree(TextIndex(), profile=None if per_node is None else linear_profile(per_node))
        return list(decode(PROMPT * 4, pair_of(tiny_target), tree=policy, max_new_tokens=60))

    free, cheap, dear = (steps(per_node) for per_node in (None, 0.05, 3.0))
    assert tokens_of(free) == tokens_of(cheap) == tokens_of(dear)
    size = [np.mean([step.tree.size for step in run]) for run in (free, cheap, dear)]
    assert size[0] > size[1] > size[2] == 1.0


def test_an_index_of_another_vocabulary_is_refused_before_the_first_step(tiny_target):
    index = TextIndex(max_tokens=32)
    options = {"pair": pair_of(tiny_target), "tree": LookupTree(index, max_size=4), "max_new_tokens": 4}
    index.add([64, 2, 3])
    with pytest.raises(ValueError, match="^index: found token 64 in its texts, expected ids from 0 to 63"):
        decode(PROMPT, **options)
    index.add([63, 2, 3] * 20)  # the other text is forgotten
    assert len(tokens_of(decode(PROMPT, **options))) == 4


def test_look_ups_lose_at_most_a_share_of_the_runs_time_and_go_on_while_they_pay():
    plain = 3 * LOOK_UP_SEC
    hopeless, paying = LookUpBudget(1.0), LookUpBudget(1.0)
    lost, looked_up = 0.0, 0
    for _ in range(2_000):
        if not hopeless.rests:
            lost, looked_up = lost + LOOK_UP_SEC, looked_up + 1
        hopeless.seen(plain, 0.0 if hopeless.rests else -LOOK_UP_SEC)
        assert not paying.rests
        paying.seen(plain, 0.0)
    assert looked_up > 100 and lost <= LOSS_SHARE * 2_000 * plain + 2 * TRIALS * LOOK_UP_SEC
    greedy = LookUpBudget(0.0)
    steps = 0
    while not greedy.rests:
        greedy.seen(plain, -LOOK_UP_SEC)
        steps += 1
    assert steps > 64  # a greedy text may begin to repeat itself late
    while greedy.rests:
        greedy.seen(plain, 0.0)
    greedy.seen(plain, 100 * plain)
    assert not greedy.rests


def test_a_run_that_rests_writes_the_same_greedy_text(tiny_target, monkeypatch):
    monkeypatch.setattr(step_costs, "MOST_TRIALS", 8)
    monkeypatch.setattr(step_costs, "LOOK_UP_SEC", 10.0)
    policy = LookupTree(TextIndex(), profile=linear_profile(0.0))
    rests = list(decode(PROMPT, pair_of(tiny_target), tree=policy, max_new_tokens=60))
    assert [step.tree.size for step in rests].count(1) > 30
    assert tokens_of(rests) == tokens_of(list(autoregressive(PROMPT, pair_of(tiny_target), max_new_tokens=60)))
