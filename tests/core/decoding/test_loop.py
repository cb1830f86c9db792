"""The decode loop: greedy output equals `generate`, exact lengths and limits, and the records of steps."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding import loop as engine
from sequoia_core.decoding.judging import RowJudge
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.record import StepDetails
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.files.extras import provided
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.trees.optimal import optimal_tree
from sequoia_core.trees.plain import branching_tree, chain_tree, independent_chains, k_ary_tree
from sequoia_core.trees.tree import TokenTree
from tests.conftest import around_passes, pair_of, tiny_llama, tokens_of
from tests.core.decoding.test_tree_policy import assert_records_plain_probabilities

TREES = {
    "chain": chain_tree(4),
    "chains": independent_chains(3, 3),
    "binary": k_ary_tree(2, 3),
    "ragged": TokenTree(np.array([-1, 0, 0, 0, 1, 1, 3, 4, 4, 6, 9])),
    "wide": branching_tree([20, 2]),
    "root only": TokenTree(np.array([-1])),
}
PROMPT = [3, 14, 15, 9, 2, 6]


def greedy_reference(model: HuggingFaceModel, prompt: list[int], count: int) -> list[int]:
    out = model.model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=count, pad_token_id=0)
    return out[0, len(prompt) :].tolist()


def run(model, draft, tree, count=40, prompt=PROMPT, **options):
    return list(decode(prompt, pair_of(model, draft), tree=tree, max_new_tokens=count, **options))


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_greedy_output_is_identical_to_generate(tree, tiny_target, tiny_draft):
    for prompt in ([7], PROMPT):
        wanted = greedy_reference(tiny_target, prompt, 40)
        assert tokens_of(run(tiny_target, tiny_draft, tree, prompt=prompt)) == wanted


@pytest.mark.parametrize("tree", [chain_tree(5), k_ary_tree(3, 3)], ids=["chain", "ternary"])
def test_a_draft_equal_to_the_target_is_always_accepted(tree, tiny_target):
    same = tiny_llama(1)
    steps = run(tiny_target, same, tree, count=36)
    assert all(len(step.new_tokens) == tree.depth + 1 for step in steps[:-1])
    for sampling in (SamplingConfig(1.0), SamplingConfig(1.0, 0.8), SamplingConfig(0.7, top_k=5)):
        steps = run(tiny_target, same, tree, 36, sampling=sampling, generator=torch.Generator().manual_seed(0))
        assert all(len(step.new_tokens) == tree.depth + 1 for step in steps[:-1])


def test_sampled_runs_repeat_with_the_seed_and_differ_without(tiny_target, tiny_draft):
    def sample(generator=None):
        options = {"sampling": SamplingConfig(2.0, 0.95), "generator": generator}
        return tokens_of(run(tiny_target, tiny_draft, TREES["ragged"], **options))

    assert sample(torch.Generator().manual_seed(1)) == sample(torch.Generator().manual_seed(1))
    assert len({tuple(sample()) for _ in range(3)}) == 3


@pytest.mark.sample(2, cover=False)
@pytest.mark.parametrize("ended_by", ["eos", "length", "eos at the length"])
@pytest.mark.parametrize("verifier", ["greedy", "sequoia", "topk", "traversal"])
@pytest.mark.parametrize("kind", ["path", "branches"])
def test_nothing_beyond_the_end_of_the_text_counts_as_accepted(ended_by, verifier, kind, tiny_target, full):
    """The draft is the target and trees exceed the remaining length: the walk goes deeper than its record."""
    sampled = {"sampling": SamplingConfig(1.0), "verifier": verifier}
    options = {} if verifier == "greedy" else sampled
    tree = {"path": chain_tree(6), "branches": k_ary_tree(2, 4)}[kind]
    cut = 0
    for seed in range(1 if verifier == "greedy" else 12 if full else 4):
        drawn = {"generator": torch.Generator().manual_seed(seed), "details": StepDetails(likely=2), **options}
        (whole, *_) = run(tiny_target, tiny_llama(1), tree, count=20, **drawn)
        for count in range(1, len(whole.new_tokens)):
            end = whole.new_tokens[count - 1]
            if ended_by != "length" and end in whole.new_tokens[: count - 1]:
                continue
            target = HuggingFaceModel(tiny_target.model, "t", frozenset() if ended_by == "length" else frozenset({end}))
            drawn["generator"].manual_seed(seed)
            length = 20 if ended_by == "eos" else count
            (step,) = run(target, tiny_llama(1), tree, count=length, **drawn)
            assert step.new_tokens == whole.new_tokens[:count] and step.finished == ended_by.split()[0]
            assert step.accepted_path == whole.accepted_path[: count + 1] and step.bonus_token is None
            accepted = [node for node, outcome in enumerate(step.outcomes) if outcome == "accepted"]
            assert accepted == sorted(step.accepted_path)
            assert step.trials == tuple(trial for trial in whole.trials if tree.depths[trial.node] <= count)
            assert [rows.node for rows in step.path_rows] == list(step.accepted_path)
            assert step.cut_by_length == (len(whole.new_tokens) - count if ended_by == "length" else 0)
            cut += 1
    assert cut > 2


def test_a_tree_of_2048_nodes_decodes():
    target = tiny_llama(1, layers=1, context=4_096)
    draft = tiny_llama(2, layers=1, context=4_096)
    tree = optimal_tree(AcceptanceVector(0.5 ** np.arange(1, 13)), size=2_048, depth=9)
    steps = run(target, draft, tree, count=6)
    assert tree.size == 2_048 and tokens_of(steps) == tokens_of(run(target, None, TREES["root only"], count=6))


def test_a_run_that_exactly_fits_the_context_ends_at_its_length():
    target = tiny_llama(1, context=32)
    draft = tiny_llama(2, context=32)
    for count, reason in ((25, "length"), (26, "length"), (27, "context")):
        steps = run(target, draft, chain_tree(3), count=count)
        assert len(tokens_of(steps)) == min(count, 26) and steps[-1].finished == reason


def test_each_token_is_forwarded_once(tiny_target):
    """A step's passes read the tree, and only those committed tokens that no earlier tree contained."""
    asked = {"target": [], "draft": []}

    def counting(name):
        def around(append, session, ids, positions, tree_mask, keep):
            asked[name].append(len(ids))
            return append(ids, positions, tree_mask, keep=keep)

        return around

    tree = TREES["binary"]
    models = {name: around_passes(tiny_target, counting(name)) for name in asked}
    steps = list(decode(PROMPT, pair_of(**models), tree=tree, max_new_tokens=24))
    assert asked["target"] == [len(PROMPT) - 1, *[tree.size] * len(steps)]
    first, *later = np.array(asked["draft"][1:]).reshape(len(steps), tree.depth).tolist()
    assert first == [1, 2, 4] and all(made == [2, 2, 4] for made in later)  # the last accepted leaf and the root


def test_phases_are_timed_separately(tiny_target, tiny_draft, monkeypatch):
    """Only work advances the clock: a draft pass by 1 s, a target pass by 10, the walk by 100, a commit by 1000.

    Display-only work is not timed.
    """
    now = [0.0]
    monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def slow_model(model, seconds):
        def around(append, session, ids, positions, tree_mask, keep):
            now[0] += seconds
            return append(ids, positions, tree_mask, keep=keep)

        return around_passes(model, around)

    def slow(method, seconds):
        def run(*args):
            now[0] += seconds
            return method(*args)

        return run

    for judge in (RowJudge, *provided("judges")):
        monkeypatch.setattr(judge, "walk", slow(judge.walk, 100.0))
    monkeypatch.setattr(RowJudge, "commit", slow(RowJudge.commit, 1000.0))
    monkeypatch.setattr(RowJudge, "target_probs", slow(RowJudge.target_probs, 1e4))
    target = slow_model(tiny_target, 10.0)
    draft = slow_model(tiny_draft, 1.0)
    tree = TREES["ragged"]
    for step in run(target, draft, tree, count=12):
        assert (step.draft_sec, step.verify_sec) == (tree.depth, 10.0)
        commit_sec = 1000.0 if step.finished is None else 0.0
        assert (step.walk_sec, step.commit_sec, step.seconds) == (100.0, commit_sec, 110.0 + commit_sec + tree.depth)
        assert step.target_probs
        now[0] += 1e5  # work of the caller is not timed
    for step in autoregressive(PROMPT, pair_of(target), max_new_tokens=3):
        commit_sec = 1000.0 if step.finished is None else 0.0
        assert (step.draft_sec, step.verify_sec, step.walk_sec, step.commit_sec) == (0.0, 10.0, 100.0, commit_sec)


def test_the_device_is_synchronized_before_the_clock_is_read(tiny_target, monkeypatch):
    events = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append(f"wait for {device}"))
    monkeypatch.setattr(engine, "time", SimpleNamespace(perf_counter=lambda: events.append("clock") or 0.0))

    def on_cuda(append, session, ids, positions, tree_mask, keep):
        events.append("pass")
        session.device = torch.device("cpu")  # the actual device
        logits = append(ids, positions, tree_mask, keep=keep)
        session.device = torch.device("cuda")
        return logits

    list(autoregressive(PROMPT, pair_of(around_passes(tiny_target, on_cuda)), max_new_tokens=2))
    # Four phases from start to commit, with display-only work between the last two.
    step = ["clock", "clock", "pass", "wait for cuda", "clock", "clock", "clock", "clock"]
    assert events == ["pass", *step, *step]


def test_a_record_describes_the_whole_step(tiny_target, tiny_draft):
    tree = TREES["ragged"]
    options = {"sampling": SamplingConfig(1.0), "generator": torch.Generator().manual_seed(5)}
    sequence = list(PROMPT)
    for index, step in enumerate(run(tiny_target, tiny_draft, tree, **options)):
        assert step.index == index and len(step.tokens) == tree.size and step.tokens[0] == sequence[-1]
        path = step.accepted_path
        assert path[0] == 0 and all(tree.parents[b] == a for a, b in zip(path, path[1:], strict=False))
        assert [n for n, o in enumerate(step.outcomes) if o == "accepted"] == sorted(path)
        assert {t.node for t in step.trials if not t.accepted} == {
            n for n, o in enumerate(step.outcomes) if o == "rejected"
        }
        bonus = [] if step.bonus_token is None else [step.bonus_token]
        assert [step.tokens[node] for node in path[1:]] + bonus == step.new_tokens
        assert all(0 <= p <= 1 for p in step.draft_probs + step.target_probs) and step.seconds > 0
        sequence += step.new_tokens
        uniforms = [trial.uniform for trial in step.trials]
        assert len(set(uniforms)) == len(uniforms) and all(u * 2**24 % 1 for u in uniforms)  # in double precision


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_recorded_probabilities_match_a_plain_forward_pass(temperature):
    """Wrong positions, masks or commits would show several steps into the run."""
    assert_records_plain_probabilities(TREES["ragged"], temperature)


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": []}, "prompt: found no tokens"),
        ({"prompt": [1, 99]}, "found token 99"),
        ({"prompt": [1] * 256}, "found 256 tokens, expected at most 255: the target's context of 256, less"),
        ({"count": 0}, "max_new_tokens"),
        ({"verifier": "nope"}, "verifier"),
        ({"tree": branching_tree([65])}, "65 children"),
        ({"draft": None}, "draft"),
    ],
)
def test_invalid_requests_are_refused_immediately(options, message, tiny_target, tiny_draft):
    given = {"prompt": PROMPT, "count": 5, "tree": chain_tree(2), "draft": tiny_draft, "verifier": "sequoia"} | options
    pair = pair_of(tiny_target, given["draft"])
    with pytest.raises(ValueError, match=message):
        decode(given["prompt"], pair, tree=given["tree"], max_new_tokens=given["count"], verifier=given["verifier"])


def test_nan_logits_name_the_step(tiny_target, tiny_draft):
    calls = []

    def broken(append, session, ids, positions, tree_mask, keep):
        calls.append(1)
        logits = append(ids, positions, tree_mask, keep=keep)
        return logits * torch.nan if len(calls) == 4 else logits  # prefill, then three steps

    steps = []
    pair = pair_of(around_passes(tiny_target, broken), tiny_draft)
    with pytest.raises(FloatingPointError, match="step 2: the target"):
        steps.extend(decode(PROMPT, pair, tree=chain_tree(1), max_new_tokens=90))
    assert len(steps) == 2


def test_long_prompts_are_prefilled_in_chunks(monkeypatch, tiny_target, tiny_draft):
    monkeypatch.setattr("sequoia_core.models.protocol.CHUNK", 5)
    prompt = list(range(1, 33))
    assert tokens_of(run(tiny_target, tiny_draft, TREES["binary"], prompt=prompt)) == greedy_reference(
        tiny_target, prompt, 40
    )
