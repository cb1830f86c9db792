"""What is recorded of both models along a path is what their own forwards say, and residuals are the rule's."""

import numpy as np
import pytest
import torch

from sequoia_core.decoding.explaining import likely
from sequoia_core.decoding.loop import decode
from sequoia_core.decoding.sampling import SamplingConfig, residual
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.design.plain_trees import branching_tree
from tests.conftest import tiny_llama

pytestmark = pytest.mark.usefixtures("each_rows")  # with compiled rows and without
PROMPT = [3, 14, 15, 9, 2, 6]
VOCABULARY = 16


@pytest.fixture(scope="module")
def models():
    return [tiny_llama(seed, vocab=VOCABULARY, layers=1, scale=1.0) for seed in (1, 2)]


def run(models, **options):
    target, draft = models
    options = {"generator": torch.Generator().manual_seed(5), "likely": VOCABULARY} | options
    return list(decode(PROMPT, target=target, draft=draft, tree=branching_tree([3, 2]), max_new_tokens=24, **options))


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
def test_rows_are_those_of_a_plain_forward(models, temperature):
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
        sequence.extend(step.new_tokens)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_residuals_follow_each_rejection(models, verifier):
    steps = run(models, sampling=SamplingConfig(1.0), verifier=verifier)
    checked = 0
    for step in steps:
        for rows in step.path_rows:
            rejected = [t for t in step.trials if step.tree.parents[t.node] == rows.node and not t.accepted]
            assert len(rows.residuals) == len(rejected)
            if rejected and (verifier == "sequoia" or (verifier == "traversal" and rows.node == 0)):
                assert as_row(rows.residuals[0]) == pytest.approx(
                    residual(as_row(rows.target), as_row(rows.draft)), abs=1e-6
                )
                checked += 1
    assert verifier not in ("sequoia", "traversal") or checked


def test_at_temperature_0_nothing_is_left_over(models):
    assert all(rows.residuals == () for step in run(models) for rows in step.path_rows)


def test_nothing_is_recorded_unless_asked_for_and_the_text_is_the_same(models):
    plain, explained = (run(models, sampling=SamplingConfig(0.8), likely=most) for most in (0, 3))
    assert all(step.path_rows == () for step in plain)
    assert [step.new_tokens for step in plain] == [step.new_tokens for step in explained]
    assert all(len(rows.target) == 3 for step in explained for rows in step.path_rows)


def test_the_most_likely_of_a_row_by_hand():
    assert likely(np.array([0.1, 0.0, 0.6, 0.3]), 2) == ((2, 0.6), (3, 0.3))
    assert likely(np.array([0.0, 1.0]), 9) == ((1, 1.0),)
