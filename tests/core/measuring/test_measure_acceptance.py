import copy
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from sequoia_core.acceptance.conditions import Conditions
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.measuring.measure_acceptance import (
    CannotResume,
    Checkpoints,
    is_partial,
    measure_acceptance,
    vector_from_prompts,
)
from sequoia_core.measuring.ranks_along_text import prompt_generators
from sequoia_core.measuring.target_text import default_writing_tree
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.loading import load_pair
from sequoia_core.trees.plain import branching_tree, chain_tree
from sequoia_core.trees.replay import replay
from tests.conftest import around_passes, pair_of, tiny_llama, tokens_of
from tests.core.test_families import build, save

PROMPTS = [[1, 2, 3], [9], [4, 8, 15, 16, 23, 42]]


@pytest.fixture(scope="module")
def pair(tiny_target, tiny_draft):
    return pair_of(tiny_target, tiny_draft)


def counting(model, passes: list[tuple[int, int]]) -> HuggingFaceModel:
    """Record the tokens and rows of each pass of a model."""

    def around(append, session, ids, positions, tree_mask, keep):
        passes.append((len(ids), keep))
        return append(ids, positions, tree_mask, keep=keep)

    return around_passes(model, around)


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("verifier", ["sequoia", "specinfer", "topk"])
@pytest.mark.parametrize("offload", [None, "disk"])
def test_a_resumed_run_equals_an_uninterrupted_one(verifier, offload, pair, tmp_path):
    target = copy.copy(pair.target)
    target.offload = offload  # makes it decode with a tree
    options = {
        "pair": pair_of(target, pair.draft), "sampling": SamplingConfig(0.9, 0.95), "width": 5,
        "max_new_tokens": 12, "verifier": verifier, "seed": 7,
    }  # fmt: skip
    stop = threading.Event()
    path = tmp_path / "partial.json"

    def checkpoint(vector):
        vector.save(path)
        stop.set()

    whole = measure_acceptance(PROMPTS, **options)
    returned = measure_acceptance(PROMPTS, **options, checkpoints=Checkpoints(save=checkpoint), cancel=stop)
    partial = AcceptanceVector.load(path)
    assert returned == partial and is_partial(partial) and not is_partial(whole)
    saved = []
    assert measure_acceptance(PROMPTS, **options, checkpoints=Checkpoints(partial, saved.append)) == whole
    assert [len(vector.prompt_trials) for vector in saved] == [2, 3] and saved[-1] == whole
    finished = measure_acceptance(PROMPTS[:2], **options)
    assert measure_acceptance(PROMPTS, **options, checkpoints=Checkpoints(finished)) == whole


def test_resuming_with_other_settings_is_refused(pair):
    options = {"prompts": [[1, 2, 3], [9, 1]], "pair": pair, "width": 4, "max_new_tokens": 8}
    options |= {"sampling": SamplingConfig(1.0, 0.9)}
    partial = measure_acceptance(**options)
    assert partial.holds_for.first_cut and Conditions.from_meta(partial.meta) == partial.holds_for
    before_cuts = replace(partial, meta={key: value for key, value in partial.meta.items() if key != "first_cut"})
    assert not Conditions.from_meta(before_cuts.meta).first_cut
    for changes, resume, message in (
        ({"sampling": SamplingConfig(0.5, 0.9)}, partial, "found 1.0 for temperature, expected 0.5"),
        ({"max_new_tokens": None}, partial, 'for source, expected "measured on the user\'s own text"'),
        ({"prompts": [[1, 2, 4], [9, 1]]}, partial, "found different prompts, expected this measurement's first 2"),
        ({}, before_cuts, "found nothing for first_cut, expected True"),
        ({}, replace(partial, calibration=None), "found a vector without per-prompt sums, ranks and calibration"),
    ):
        with pytest.raises(CannotResume, match=message):
            measure_acceptance(**(options | changes), checkpoints=Checkpoints(resume))


def test_invalid_requests_are_refused(pair):
    short = HuggingFaceModel(pair.draft.model, "short", vocab_size=60)
    for changes, message in (
        ({"pair": pair_of(pair.target, short)}, "draft: found a vocabulary of 60, expected 64"),
        ({"width": 65}, "width: found 65"),
        ({"verifier": "traversal"}, "verifier: found 'traversal', expected 'sequoia'"),
        ({"max_new_tokens": None}, "text 2: found 1 tokens"),
        ({"max_new_tokens": None, "prompts": [[1, 64]]}, "text 1: found token 64"),
    ):
        with pytest.raises(ValueError, match=message):
            measure_acceptance(**({"prompts": PROMPTS, "pair": pair} | changes))


def test_the_same_text_gives_the_same_vector_as_own_text(pair):
    written = tokens_of(autoregressive([9], pair, max_new_tokens=20))
    own = measure_acceptance([[9, *written]], pair, width=6, max_new_tokens=None)
    generated = measure_acceptance([[9]], pair, width=6, max_new_tokens=20)
    np.testing.assert_array_equal(own.prompt_sums, generated.prompt_sums)
    assert "own text" in own.meta["source"] and "target wrote" in generated.meta["source"]


def test_text_longer_than_the_context_is_read_in_pieces(tiny_draft):
    target = tiny_llama(1, context=32)
    text = np.random.default_rng(0).integers(0, 64, 75).tolist()
    options = {"width": 3, "max_new_tokens": None, "sampling": SamplingConfig(1.0)}
    vector = measure_acceptance([text, text[:65]], pair_of(target, tiny_draft), **options)
    assert vector.prompt_trials.tolist() == [31 + 31 + 10, 31 + 31]  # the first token of each piece is not predicted


def test_random_streams_are_independent_per_prompt(pair):
    seeds = [stream.initial_seed() for number in range(3) for stream in prompt_generators(5, number)]
    assert len(set(seeds)) == 12  # text, draws, outcomes and calibration of three prompts
    options = {"sampling": SamplingConfig(2.0), "max_new_tokens": 12}
    vector, other = (measure_acceptance([[9], [9]], pair, **options, seed=seed) for seed in (0, 1))
    assert not np.array_equal(*vector.prompt_sums) and not np.array_equal(vector.probs, other.probs)


def test_positions_have_equal_weight_across_prompts():
    vector = vector_from_prompts([np.array([8.0, 1.0]), np.array([0.0, 0.0])], [10, 30], meta={})
    assert vector.probs.tolist() == [0.2, 0.025] and vector.trials == 40


@pytest.mark.parametrize(("temperature", "top_p"), [(0.5, 1.0), (3.0, 1.0), (3.0, 0.5)])
def test_an_identical_draft_is_always_accepted(temperature, top_p, tiny_target):
    """Both distributions are those of decoding, so a twin of the target is accepted."""
    text = np.random.default_rng(0).integers(0, 64, 60).tolist()
    twins = pair_of(tiny_target, tiny_llama(1))
    sampling = SamplingConfig(temperature, top_p)
    vector = measure_acceptance([text], twins, sampling=sampling, width=2, max_new_tokens=None)
    assert vector.probs[0] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("tree", [chain_tree(3), branching_tree([3, 2, 1])])
def test_a_greedy_replay_takes_the_steps_of_decoding(tree, pair):
    vector = measure_acceptance(PROMPTS, pair, width=8, max_new_tokens=20)
    steps = [len(list(decode(prompt, pair, tree=tree, max_new_tokens=20))) for prompt in PROMPTS]
    assert replay(tree, vector).steps.tolist() == steps
    ranks = np.concatenate(vector.prompt_ranks)
    np.testing.assert_allclose([np.mean(ranks == k) for k in range(1, 9)], vector.probs)


@pytest.mark.slow
@pytest.mark.parametrize("verifier", ["sequoia", "specinfer", "topk"])
def test_a_sampled_replay_takes_as_many_steps_as_decoding(verifier, tiny_target, tiny_draft):
    """The means of two samples of 30 prompts differ by less than 5 standard errors: a false alarm in 10^6."""
    prompts = [[1 + i] for i in range(30)]
    tree = branching_tree([3, 2, 1])
    sampling = SamplingConfig(0.8)
    models = {"pair": pair_of(tiny_target.ignore_eos(), tiny_draft), "sampling": sampling, "verifier": verifier}
    vector = measure_acceptance(prompts, width=4, max_new_tokens=24, **models)
    real = [
        len(list(decode(p, tree=tree, max_new_tokens=24, generator=torch.Generator().manual_seed(i), **models)))
        for i, p in enumerate(prompts)
    ]
    replayed = replay(tree, vector).steps
    error = np.hypot(np.std(real, ddof=1), np.std(replayed, ddof=1)) / np.sqrt(len(prompts))
    assert abs(np.mean(real) - replayed.mean()) < 5 * error and error < 0.1 * np.mean(real)


@pytest.mark.slow
def test_a_streamed_target_writes_the_same_text_in_fewer_passes(tmp_path):
    folder = save(build("Llama"), tmp_path)  # its own draft, so most drafts are right
    resident, streamed = (load_pair(folder, folder, device="cpu", offload=offload) for offload in (None, "disk"))
    found = []
    counts = []
    for loaded in (resident, streamed):
        counts.append([])
        pair = pair_of(counting(loaded.target, counts[-1]), loaded.draft)
        found.append(measure_acceptance(PROMPTS, pair, max_new_tokens=24))
    for part in ("prompt_sums", "prompt_ranks", "probs"):
        np.testing.assert_array_equal(*(getattr(vector, part) for vector in found))
    assert found[1].meta == found[0].meta | {"offload": "disk"}
    assert [size for size, _ in counts[1]].count(default_writing_tree(64).size) > 5
    assert len(counts[1]) < 0.5 * len(counts[0])
    streamed.target.close()
