"""Lookup trees: the target's own text at every temperature, whatever the index holds; nodes by chance and cost.

The statistical tests raise a false alarm with a probability below 1e-6 each; their seeds are fixed besides.
"""

import numpy as np
import pytest
import torch

from sequoia_core import HybridTree, LookupTree
from sequoia_core.decoding.drafting import DraftOptions, Reach
from sequoia_core.decoding.growing import step_costs
from sequoia_core.decoding.growing.compiled_growing import CompiledGrower
from sequoia_core.decoding.growing.drafter import GrowingDrafter
from sequoia_core.decoding.growing.expansion import worth_verifying
from sequoia_core.decoding.growing.step_costs import LOOK_UP_SEC, LOSS_SHARE, TRIALS, LookUpBudget, Rate
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.judging import CompiledJudge, RowJudge
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.record import StepDetails
from sequoia_core.decoding.sampling import SamplingConfig, take_most_likely
from sequoia_core.studies.losslessness import check_losslessness
from tests.conftest import calibration_of, linear_profile, pair_of, recalled, tiny_llama, tokens_of
from tests.core.test_families import FAMILIES, assert_decodes_as_generate, build, save

PROMPT = [3, 14, 15, 9, 2, 6, 3, 14, 15]
both_ways = pytest.mark.usefixtures("each_rows")  # with compiled rows and without


def hybrid(index):
    return HybridTree(index, profile=None, calibration=calibration_of(0.6), max_size=8, max_depth=4)


def misleading(target, prompt, vocab):
    """Return an index of what the target does not write: after each of its contexts, another token."""
    wanted = tokens_of(autoregressive(prompt, pair_of(target), max_new_tokens=40))
    index = TextIndex()
    for shift in range(1, 5):
        whole = [*prompt, *wanted]
        for place in range(len(prompt), len(whole), 3):
            index.add([*whole[:place], (whole[place] + shift) % vocab, (whole[place] + 2 * shift) % vocab])
    return index


def test_a_tree_that_knows_what_the_target_drew_is_caught(monkeypatch):
    """The check sees a lookup that depends on this step's draw: children are kept only where they come true."""
    target = recalled(tiny_llama(1, vocab=16, layers=1, scale=1.0))
    own = RowJudge.walk

    def looking_first(judge, draft):
        walk = own(judge, draft)
        if len(walk.path) == 1 and draft.tree.size > 1 and walk.bonus_token % 2:
            walk = own(judge, draft)  # draws again where nothing was accepted: a choice that depends on the draw
        return walk

    for judge in (RowJudge, CompiledJudge):
        monkeypatch.setattr(judge, "walk", looking_first)
    policy = LookupTree(misleading(target, [3, 5, 3], 16), max_size=12, max_depth=4)
    options = {"samples": 3_000, "new_tokens": 1, "generator": torch.Generator().manual_seed(0), "verifier": "topk"}
    report = check_losslessness((3, 5, 3), pair_of(target), tree=policy, sampling=SamplingConfig(1.0), **options)
    assert report.p_value < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_decodes_as_generate(family, tmp_path):
    """The prompt says 60 tokens twice over, and random models loop: there is something to look up."""
    policy = LookupTree(TextIndex(), max_size=16, max_depth=6)
    assert_decodes_as_generate(save(build(family), tmp_path), prompt_length=70, tree=policy, most_steps=40)


def test_the_demo_target_alone(demo_pair):
    prompt = demo_pair.tokenizer.encode("def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return")
    wanted = tokens_of(autoregressive(prompt, demo_pair, max_new_tokens=64))
    details, tree = StepDetails(likely=3), LookupTree(TextIndex())
    steps = list(decode(prompt, pair_of(demo_pair.target), tree=tree, max_new_tokens=64, details=details))
    assert tokens_of(steps) == wanted and len(steps) < 50
    assert all(row.draft == () for step in steps for row in step.path_rows), "no draft model said anything"


def test_a_draft_that_is_there_is_left_aside(tiny_target, tiny_draft):
    def text(draft):
        sampling, generator = SamplingConfig(0.8), torch.Generator().manual_seed(3)
        policy = LookupTree(TextIndex(), max_size=8)
        options = {"sampling": sampling, "generator": generator, "max_new_tokens": 40}
        return [step.tokens for step in decode(PROMPT, pair_of(tiny_target, draft), tree=policy, **options)]

    assert text(None) == text(tiny_draft)


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


def drafter_of(policy, capacity=256):
    options = DraftOptions(take_most_likely, SamplingConfig(1.0), Reach(capacity, 0), torch.Generator())
    return GrowingDrafter(None, policy, options)


def test_the_rate_of_the_run_decides_what_is_worth_it():
    """At a tenth of a second for each node and one token per second, nodes with a chance above 0.1 are worth it."""
    drafter, whole = (drafter_of(LookupTree(TextIndex(), profile=linear_profile(each))) for each in (0.1, 0.0))
    text = np.random.default_rng(0).integers(4, size=150).tolist()  # no next token is sure
    whole.grow(text)
    draft, scores = drafter.grow(text), whole.nodes.scores
    assert draft.tree.size > 3
    assert scores[draft.tree.size - 1] > 0.1 > scores[draft.tree.size]
    rate = drafter._costs
    for _ in range(100):
        rate.seen(3, draft.tree.size)  # three tokens a step
    expected = Rate(1.0, 1.0)
    for _ in range(100):
        expected.seen(3, 1.0 + 0.1 * (draft.tree.size - 1))
    least = 0.1 * expected.tokens_per_sec
    later = drafter.grow(text)
    assert 1 < later.tree.size < draft.tree.size
    assert scores[later.tree.size - 1] > least > scores[later.tree.size]


def test_worth_is_the_largest_sum_less_cost():
    scores = np.array([1.0, 0.9, 0.2, 0.19, 0.18])
    assert worth_verifying(scores, np.array([0.0, 0.5, 0.6, 1.0, 1.05, 1.1])) == 5  # 0.2 alone would not be
    assert worth_verifying(scores, np.array([0.0, 0.5, 1.5, 3.0, 4.0, 5.0])) == 1
    assert worth_verifying(scores[:1], np.array([0.0, 9.0])) == 1


def test_compiled_numbering_is_the_plain_one(monkeypatch):
    text, found = (PROMPT * 5)[:41], []
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(CompiledGrower, "supports", lambda *_: False)
        draft = drafter_of(LookupTree(TextIndex(), max_size=40)).grow(text)
        plan = draft.plan
        arrays = [draft.tokens.numpy(), draft.probs.numpy(), plan.depths, plan.child_counts, plan.tree_mask.numpy()]
        inner = plan.child_counts > 0
        found.append((draft.tree, [array.tolist() for array in (*arrays, plan.first_children[inner])]))
    assert found[0] == found[1] and found[0][0].size > 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"index": [1, 2]}, "index: found list, expected a TextIndex"),
        ({"max_size": 0}, "max_size"),
        ({"max_depth": 0}, "max_depth"),
    ],
)
def test_settings_out_of_range_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        LookupTree(**{"index": TextIndex()} | arguments)


def test_trees_are_no_larger_than_what_was_profiled():
    assert LookupTree(TextIndex(), max_size=65, profile=linear_profile(0.1)).max_size == 64


def test_a_verifier_that_is_not_exact_is_refused(tiny_target):
    with pytest.raises(ValueError, match="verifier: found 'sequoia', expected topk"):
        decode(
            PROMPT, pair_of(tiny_target), tree=LookupTree(TextIndex()), sampling=SamplingConfig(1.0),
            verifier="sequoia",
        )  # fmt: skip


@both_ways
def test_an_explained_step_says_where_each_node_was_found(tiny_target):
    wanted = tokens_of(autoregressive(PROMPT, pair_of(tiny_target), max_new_tokens=40))
    index = TextIndex()
    index.add([*PROMPT, *wanted])
    options = {"pair": pair_of(tiny_target), "tree": LookupTree(index, max_size=12), "max_new_tokens": 40}
    assert not any(step.occurrences for step in decode(PROMPT, **options))  # worked out only to be shown
    seen, text = set(), list(PROMPT)
    for step in decode(PROMPT, **options, details=StepDetails(likely=1)):
        assert all((found is None) == (node == 0) for node, found in enumerate(step.occurrences))
        for found in found_where_it_says(step, text, [*PROMPT, *wanted]):
            assert not found.drafted
            seen.add(found.earlier)
        text += step.new_tokens
    assert seen == {False, True}


def found_where_it_says(step, text, earlier):
    """Yield the occurrences of a step's nodes, each checked against the text so far and an earlier one."""
    for node, found in enumerate(step.occurrences):
        if found is None:
            continue
        path, above = [], node
        while above >= 0:
            path.insert(0, step.tokens[above])
            above = step.tree.parents[above]
        context = text[:-1] + path[:-1]
        assert found.after[0] == step.tokens[node] and 1 <= len(found.before) <= 6 >= len(found.after)
        same = min(found.match, len(found.before))
        assert list(found.before[-same:]) == context[-same:]
        source = earlier if found.earlier else text
        passage = [*found.before, *found.after]
        assert any(source[at : at + len(passage)] == passage for at in range(len(source)))
        yield found


@pytest.mark.parametrize("token", [64, 65, 2**31 - 1])
def test_an_index_of_another_vocabulary_is_refused_before_the_first_step(token, tiny_target, tiny_draft):
    index = TextIndex()
    index.add([1, 2, 63])
    for tree, draft in ((LookupTree(index), None), (hybrid(index), tiny_draft)):
        assert len(tokens_of(decode(PROMPT, pair_of(tiny_target, draft), tree=tree, max_new_tokens=4))) == 4
    index.add([token, 2, 3])
    for tree, draft in ((LookupTree(index), None), (hybrid(index), tiny_draft)):
        with pytest.raises(ValueError, match=f"^index: found token {token} in its texts, expected ids from 0 to 63"):
            decode(PROMPT, pair_of(tiny_target, draft), tree=tree)


def test_what_an_index_has_forgotten_is_no_obstacle(tiny_target):
    index = TextIndex(max_tokens=8)
    index.add([900, 901])
    for _ in range(4):
        index.add([1, 2, 3] * 20)
    assert index.largest_token == 3
    assert len(tokens_of(decode(PROMPT, pair_of(tiny_target), tree=LookupTree(index), max_new_tokens=4))) == 4


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
