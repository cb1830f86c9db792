"""Lookup trees: which nodes they draft, when look-ups pause, and which times they measure."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sequoia_core.decoding import pass_times as module
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.record import StepDetails
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_extras.dynamic_trees import LookupTree, step_costs
from sequoia_extras.dynamic_trees.step_costs import LOOK_UP_SEC, MAX_LOSS_SHARE, RESUME_TRIALS, LookUpBudget
from sequoia_extras.dynamic_trees.text_index import TextIndex
from tests.conftest import linear_profile, pair_of, tokens_of
from tests.core.decoding.test_pass_times import cache  # noqa: F401

PROMPT = [3, 14, 15, 9, 2, 6, 3, 14, 15]
REPEATED = [5, 6, 7, 8] * 6
both_ways = pytest.mark.usefixtures("each_rows")  # with and without compiled row operations


def misleading_index(target, prompt, vocab):
    """Return an index in which every context of the target's text is followed by a wrong token."""
    wanted = tokens_of(autoregressive(prompt, pair_of(target), max_new_tokens=40))
    index = TextIndex()
    for shift in range(1, 5):
        whole = [*prompt, *wanted]
        for position in range(len(prompt), len(whole), 3):
            index.add([*whole[:position], (whole[position] + shift) % vocab, (whole[position] + 2 * shift) % vocab])
    return index


def test_decoding_does_not_change_the_index(tiny_target):
    index = TextIndex()
    index.add(PROMPT * 3)
    tokens = index.tokens
    hits = index.hits.copy()
    first, second = (
        [step.tokens for step in decode(PROMPT, pair_of(tiny_target), tree=LookupTree(index))] for _ in range(2)
    )
    assert first == second and index.tokens == tokens and np.array_equal(index.hits, hits)


@both_ways
def test_nodes_that_do_not_pay_are_left_out(tiny_target):
    def steps(per_node):
        policy = LookupTree(TextIndex(), profile=None if per_node is None else linear_profile(per_node))
        return list(decode(PROMPT * 4, pair_of(tiny_target), tree=policy, max_new_tokens=60))

    free, cheap, expensive = (steps(per_node) for per_node in (None, 0.05, 3.0))
    assert tokens_of(free) == tokens_of(cheap) == tokens_of(expensive)
    size = [np.mean([step.tree.size for step in run]) for run in (free, cheap, expensive)]
    assert size[0] > size[1] > size[2] == 1.0


def test_an_index_with_unknown_tokens_is_refused(tiny_target):
    index = TextIndex(max_tokens=32)
    options = {"pair": pair_of(tiny_target), "tree": LookupTree(index, max_size=4), "max_new_tokens": 4}
    index.add([64, 2, 3])
    with pytest.raises(ValueError, match="^index: found token 64 in its texts, expected ids from 0 to 63"):
        decode(PROMPT, **options)
    index.add([63, 2, 3] * 20)  # overwrites the other text
    assert len(tokens_of(decode(PROMPT, **options))) == 4


def test_look_up_budget_limits_the_loss_and_resumes():
    plain = 3 * LOOK_UP_SEC
    hopeless = LookUpBudget(1.0)
    paying = LookUpBudget(1.0)
    lost = 0.0
    looked_up = 0
    for _ in range(2_000):
        if not hopeless.paused:
            lost = lost + LOOK_UP_SEC
            looked_up = looked_up + 1
        hopeless.record_step(plain, 0.0 if hopeless.paused else -LOOK_UP_SEC)
        assert not paying.paused
        paying.record_step(plain, 0.0)
    assert looked_up > 100 and lost <= MAX_LOSS_SHARE * 2_000 * plain + 2 * RESUME_TRIALS * LOOK_UP_SEC
    greedy = LookUpBudget(0.0)
    steps = 0
    while not greedy.paused:
        greedy.record_step(plain, -LOOK_UP_SEC)
        steps += 1
    assert steps > 64  # greedy text may begin to repeat itself late
    while greedy.paused:
        greedy.record_step(plain, 0.0)
    greedy.record_step(plain, 100 * plain)
    assert not greedy.paused


def test_paused_look_ups_do_not_change_greedy_text(tiny_target, monkeypatch):
    monkeypatch.setattr(step_costs, "MAX_TRIALS", 8)
    monkeypatch.setattr(step_costs, "LOOK_UP_SEC", 10.0)
    policy = LookupTree(TextIndex(), profile=linear_profile(0.0))
    rests = list(decode(PROMPT, pair_of(tiny_target), tree=policy, max_new_tokens=60))
    assert [step.tree.size for step in rests].count(1) > 30
    assert tokens_of(rests) == tokens_of(list(autoregressive(PROMPT, pair_of(tiny_target), max_new_tokens=60)))


def test_looked_up_children_have_no_known_acceptance(tiny_target):
    tree = LookupTree(TextIndex(), max_size=4, max_depth=2)
    options = {"sampling": SamplingConfig(1.0), "details": StepDetails(likely=3)}
    options["generator"] = torch.Generator().manual_seed(5)
    steps = list(decode(PROMPT * 3, pair_of(tiny_target), tree=tree, max_new_tokens=12, **options))
    assert any(step.tree.size > 1 for step in steps)
    assert all(rows.accepted is None for step in steps for rows in step.path_rows)


def test_only_trees_without_a_size_time_the_target(tiny_target, cache):  # noqa: F811
    options = {"pair": pair_of(tiny_target), "max_new_tokens": 8}
    plain = [step.new_tokens for step in decode(REPEATED, tree=LookupTree(TextIndex(), max_size=4), **options)]
    assert not cache.exists()
    tree = replace(LookupTree(TextIndex()), index=TextIndex())
    found = [step.new_tokens for step in decode(REPEATED, tree=tree, **options)]
    assert len(list(cache.iterdir())) == 1
    assert sum(map(list, found), []) == sum(map(list, plain), [])


def test_no_trees_are_drafted_when_wider_passes_do_not_pay(tiny_target, cache, monkeypatch):  # noqa: F811
    monkeypatch.setattr(module, "_time_passes", lambda target, *few: (128, np.array([1.0, 2.0, 4.0, 8.0, 16.0])))
    tree = LookupTree(TextIndex()).with_pass_times(tiny_target)
    steps = list(decode(REPEATED, pair_of(tiny_target), tree=tree, max_new_tokens=16))
    assert all(step.tree.size == 1 for step in steps)
