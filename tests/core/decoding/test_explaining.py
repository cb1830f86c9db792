"""Recorded rows match plain forward passes, and recorded residuals match the rules."""

import numpy as np
import pytest
import torch

from sequoia_core.decoding.explaining import acceptance_at
from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.rank_acceptance import OPTIMA
from sequoia_core.decoding.record import TOKENS_ONLY, StepDetails
from sequoia_core.decoding.row_operations import row_operations
from sequoia_core.decoding.sampling import SamplingConfig, residual_share
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.trees.plain import branching_tree
from tests.conftest import pair_of, tiny_llama
from tests.core.decoding.test_rank_acceptance import exact_rank_acceptance

PROMPT = [3, 14, 15, 9, 2, 6]
VOCABULARY = 16


@pytest.fixture(scope="module")
def models():
    return [tiny_llama(seed, vocab=VOCABULARY, layers=1, scale=1.0) for seed in (1, 2)]


def run(models, **options):
    target, draft = models
    details = StepDetails(likely=VOCABULARY)
    options = {"generator": torch.Generator().manual_seed(5), "details": details} | options
    return list(decode(PROMPT, pair_of(target, draft), tree=branching_tree([3, 2]), max_new_tokens=24, **options))


def row_of(model, text, temperature) -> np.ndarray:
    with torch.inference_mode():
        logits = model.model(input_ids=torch.tensor([text])).logits[0, -1, :VOCABULARY]
    return torch.softmax(logits.double() / temperature, -1).numpy()


def as_row(pairs) -> np.ndarray:
    row = np.zeros(VOCABULARY)
    for token, probability in pairs:
        row[token] = probability
    return row


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_rows_match_a_plain_forward_pass(models, temperature):
    sequence = list(PROMPT)
    for step in run(models, sampling=SamplingConfig(temperature)):
        assert [rows.node for rows in step.path_rows] == list(step.accepted_path)
        for rows in step.path_rows:
            text = sequence[:-1] + [step.tokens[node] for node in step.tree.path_to(rows.node)]
            seen = [rows.target, *([rows.draft] if rows.draft else [])]
            for model, pairs in zip(models, seen, strict=False):
                assert as_row(pairs) == pytest.approx(row_of(model, text, temperature or 1.0), abs=1e-4)
                assert [p for _, p in pairs] == sorted((p for _, p in pairs), reverse=True)
            assert bool(rows.draft) == bool(step.tree.children(rows.node))
            assert temperature or (rows.residuals, rows.accepted) == ((), None)
        sequence.extend(step.new_tokens)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_residuals_match_each_rejection(models, verifier):
    steps = run(models, sampling=SamplingConfig(1.0), verifier=verifier)
    checked = deeper = 0
    for step in steps:
        root = step.path_rows[0]
        for rows in step.path_rows:
            rejected = [t for t in step.trials if step.tree.parents[t.node] == rows.node and not t.accepted]
            assert len(rows.residuals) == len(rejected)
            if rejected and (verifier == "sequoia" or (verifier == "traversal" and rows.node == 0)):
                assert as_row(rows.residuals[0]) == pytest.approx(
                    row_operations().residual(as_row(rows.target), as_row(rows.draft)), abs=1e-6
                )
                checked += 1
            if rejected and verifier == "traversal" and rows.node == 1:  # which is kept less often than always
                token = step.tokens[1]
                kept = min(1.0, as_row(root.target)[token] / as_row(root.draft)[token])
                left = residual_share(kept * as_row(rows.target), as_row(rows.draft))
                assert as_row(rows.residuals[0]) == pytest.approx(left, abs=1e-6)
                deeper += kept < 1.0
    assert verifier not in ("sequoia", "traversal") or checked
    assert verifier != "traversal" or deeper


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_acceptance_matches_enumeration_and_the_optimum(models, verifier):
    seen = 0
    for step in run(models, sampling=SamplingConfig(1.0), verifier=verifier)[:2]:
        for rows in step.path_rows:
            children = len(step.tree.children(rows.node))
            if not children or verifier == "traversal":
                assert rows.accepted is None
                continue
            seen = seen + 1
            found = rows.accepted
            assert set(found) == {"sequoia", "specinfer", "topk", "best"}
            target = as_row(rows.target)
            draft = as_row(rows.draft)
            for name, within in {"sequoia": 0.1, "specinfer": 1e-9, "topk": 1e-9}.items():  # only Sequoia's is sampled
                exact = exact_rank_acceptance(name, target, draft, children).sum()
                assert found[name] == pytest.approx(exact, abs=within)
            if verifier == "topk":
                assert found["best"] == found["topk"]
                continue
            optimum = OPTIMA["optimum_with_replacement" if verifier == "specinfer" else "optimum"]
            best = optimum(*(torch.tensor(row)[None] for row in (target, draft)), children, None).sum()
            assert found["best"] == pytest.approx(float(best), abs=1e-6)
    assert seen or verifier == "traversal"


def test_details_are_recorded_only_on_request_and_do_not_change_the_text(models):
    sampling = SamplingConfig(0.8)
    shown = StepDetails(likely=3)
    plain, explained = (run(models, sampling=sampling, details=details) for details in (TOKENS_ONLY, shown))
    assert all(step.path_rows == step.target_probs == step.draft_probs == () for step in plain)
    assert all(len(step.target_probs) == len(step.draft_probs) == step.tree.size for step in explained)
    assert [step.new_tokens for step in plain] == [step.new_tokens for step in explained]
    assert all(len(rows.target) == 3 for step in explained for rows in step.path_rows)


def test_acceptance_is_computed_for_up_to_sixteen_children():
    target, draft = np.random.default_rng(0).dirichlet(np.ones(40), 2)
    found = [acceptance_at(target, draft, count, VERIFIERS["sequoia"]) for count in (1, 16, 17)]
    assert found[1] is not None and found[2] is None
    shared = np.minimum(target, draft).sum()
    for name in ("sequoia", "specinfer", "best"):  # all agree for one child
        assert found[0][name] == pytest.approx(shared, abs=1e-5)
    assert found[0]["topk"] == pytest.approx(target[draft.argmax()])
