import copy
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.conditions import Conditions
from sequoia_core.design.plain_trees import branching_tree, chain_tree
from sequoia_core.design.replay import replay
from sequoia_core.files.faults import Cancelled
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.loading import load_pair
from sequoia_core.studies.measure_acceptance import (
    CannotResume,
    Checkpoints,
    is_partial,
    measure_acceptance,
    vector_from_prompts,
)
from sequoia_core.studies.race import repeated_share
from sequoia_core.studies.ranks_along_text import CHUNK, prompt_generators, ranks_on_text, writing_tree
from tests.conftest import around_passes, pair_of, tiny_llama, tokens_of
from tests.core.test_families import build, save

PROMPTS = [[1, 2, 3], [9], [4, 8, 15, 16, 23, 42]]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_measured_vector_has_the_shape_and_sums_it_claims(temperature, tiny_target, tiny_draft):
    told = []
    vector = measure_acceptance(
        PROMPTS, pair_of(tiny_target, tiny_draft), sampling=SamplingConfig(temperature), width=6, max_new_tokens=20,
        progress=lambda fraction, message: told.append(fraction),
    )  # fmt: skip
    assert len(vector.probs) == 6 and vector.trials == 60 and vector.prompt_sums.shape == (3, 6)
    np.testing.assert_allclose(vector.prompt_sums.sum(0) / 60, vector.probs)
    assert told[-1] == pytest.approx(1.0) and vector.meta["temperature"] == temperature
    low, high = vector.interval()
    assert np.all(low <= vector.probs + 1e-12) and np.all(vector.probs <= high + 1e-12)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_equal_to_the_target_accepts_the_first_child(temperature, tiny_target):
    vector = measure_acceptance(
        PROMPTS,
        pair_of(tiny_target, tiny_llama(1)),
        sampling=SamplingConfig(temperature),
        width=3,
        max_new_tokens=15,
    )
    assert vector.probs[0] == pytest.approx(1.0, abs=1e-4)


def test_cancel_keeps_the_prompts_that_are_complete(tiny_target, tiny_draft):
    stop = threading.Event()

    def stop_in_the_second(fraction, message):
        if fraction > 0.5:
            stop.set()

    options = {"pair": pair_of(tiny_target, tiny_draft), "width": 4, "max_new_tokens": 10, "cancel": stop}
    assert measure_acceptance(PROMPTS, progress=stop_in_the_second, **options).trials == 10
    with pytest.raises(Cancelled, match="cancelled"):
        measure_acceptance(PROMPTS, **options)


@pytest.mark.parametrize("verifier", ["sequoia", "specinfer", "topk"])
@pytest.mark.parametrize("cut", [1, 2])
def test_a_resumed_run_gives_exactly_the_vector_of_an_uninterrupted_one(
    verifier, cut, tiny_target, tiny_draft, tmp_path
):
    options = {
        "pair": pair_of(tiny_target, tiny_draft), "sampling": SamplingConfig(0.9, 0.95), "width": 5,
        "max_new_tokens": 12, "verifier": verifier, "seed": 7,
    }  # fmt: skip
    stop, path = threading.Event(), tmp_path / "partial.json"

    def checkpoint(vector):
        vector.save(path)
        if len(vector.prompt_trials) == cut:
            stop.set()

    whole = measure_acceptance(PROMPTS, **options)
    returned = measure_acceptance(PROMPTS, **options, checkpoints=Checkpoints(save=checkpoint), cancel=stop)
    partial = AcceptanceVector.load(path)
    assert returned == partial and is_partial(partial) and not is_partial(whole)
    saved = []
    assert measure_acceptance(PROMPTS, **options, checkpoints=Checkpoints(partial, saved.append)) == whole
    assert [len(vector.prompt_trials) for vector in saved] == list(range(cut + 1, 4)) and saved[-1] == whole
    assert measure_acceptance(PROMPTS, **options, checkpoints=Checkpoints(whole)) == whole


def test_more_prompts_continue_a_finished_run(tiny_target, tiny_draft):
    options = {"pair": pair_of(tiny_target, tiny_draft), "sampling": SamplingConfig(1.0), "width": 4}
    options |= {"max_new_tokens": 8}
    some = measure_acceptance(PROMPTS[:2], **options)
    whole = measure_acceptance(PROMPTS, **options)
    assert measure_acceptance(PROMPTS, **options, checkpoints=Checkpoints(some)) == whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": SamplingConfig(0.5)}, "found 1.0 for temperature, expected 0.5"),
        ({"sampling": SamplingConfig(1.0, 0.9)}, "found 1.0 for top_p, expected 0.9"),
        ({"width": 5}, "found 4 for width, expected 5"),
        ({"max_new_tokens": 9}, "found 8 for max_new_tokens, expected 9"),
        ({"seed": 1}, "found 0 for seed, expected 1"),
        ({"max_new_tokens": None}, 'for source, expected "measured on the user\'s own text"'),
        ({"verifier": "topk"}, "found 'sequoia' for verifier"),
        ({"pair": pair_of(tiny_llama(1), tiny_llama(5))}, "found 'tiny-2' for draft, expected 'tiny-5'"),
        ({"prompts": [[1, 2, 4], [9, 1]]}, "found other prompts, expected this measurement's first 2"),
        ({"prompts": [[1, 2, 3]]}, "found 2 prompts measured, expected at most the 1"),
    ],
)
def test_resuming_another_measurement_names_what_differs(changes, message, tiny_target, tiny_draft):
    options = {"prompts": [[1, 2, 3], [9, 1]], "pair": pair_of(tiny_target, tiny_draft)}
    options |= {"sampling": SamplingConfig(1.0), "width": 4, "max_new_tokens": 8}
    partial = measure_acceptance(**options)
    with pytest.raises(CannotResume, match=message):
        measure_acceptance(**(options | changes), checkpoints=Checkpoints(partial))


def test_a_measurement_from_before_first_children_were_cut_does_not_go_on(tiny_target, tiny_draft):
    options = {"prompts": [[1, 2, 3], [9, 1]], "pair": pair_of(tiny_target, tiny_draft)}
    options |= {"sampling": SamplingConfig(1.0, 0.9), "width": 4, "max_new_tokens": 8}
    partial = measure_acceptance(**options)
    assert partial.holds_for.first_cut and Conditions.recorded_in(partial.meta) == partial.holds_for
    old = replace(partial, meta={key: value for key, value in partial.meta.items() if key != "first_cut"})
    assert not Conditions.recorded_in(old.meta).first_cut
    with pytest.raises(CannotResume, match="found nothing for first_cut, expected True"):
        measure_acceptance(**options, checkpoints=Checkpoints(old))


def test_traversal_is_measured_as_sequoia(tiny_target, tiny_draft):
    with pytest.raises(ValueError, match="verifier: found 'traversal', expected 'sequoia'"):
        measure_acceptance(PROMPTS, pair_of(tiny_target, tiny_draft), verifier="traversal")


def test_a_foreign_vector_cannot_be_resumed(tiny_target, tiny_draft):
    with pytest.raises(ValueError, match="found nothing for source"):
        measure_acceptance(
            PROMPTS, pair_of(tiny_target, tiny_draft), checkpoints=Checkpoints(AcceptanceVector(np.array([0.5])))
        )


def test_the_seed_decides_the_random_stream(tiny_target, tiny_draft):
    options = {"pair": pair_of(tiny_target, tiny_draft), "sampling": SamplingConfig(1.0), "max_new_tokens": 10}
    first, again, other = (measure_acceptance(PROMPTS, **options, seed=seed) for seed in (3, 3, 4))
    assert first == again and not np.array_equal(first.probs, other.probs)


def test_own_text_is_read_as_the_targets_text_would_be(tiny_target, tiny_draft):
    options = {"pair": pair_of(tiny_target, tiny_draft), "width": 6}
    steps = autoregressive([9], pair_of(tiny_target), max_new_tokens=20)
    written = tokens_of(steps)
    own = measure_acceptance([[9, *written]], **options, max_new_tokens=None)
    generated = measure_acceptance([[9]], **options, max_new_tokens=20)
    np.testing.assert_array_equal(own.prompt_sums, generated.prompt_sums)
    assert "own text" in own.meta["source"] and "target wrote" in generated.meta["source"]


def test_own_text_beyond_the_context_is_read_in_pieces(tiny_draft):
    target = tiny_llama(1, context=32)
    text = np.random.default_rng(0).integers(0, 64, 75).tolist()
    told = []
    vector = measure_acceptance(
        [text, text[:65]], pair_of(target, tiny_draft), width=3, max_new_tokens=None, sampling=SamplingConfig(1.0),
        progress=lambda fraction, message: told.append(fraction),
    )  # fmt: skip
    assert vector.prompt_trials.tolist() == [31 + 31 + 10, 31 + 31]  # the first token of a piece has nothing before it
    assert told == sorted(told) and told[-1] == 1.0


def test_positions_share_one_pass_per_chunk(tiny_target, tiny_draft):
    passes = {"tiny-1": [], "tiny-2": []}

    def counted(model):
        def around(append, session, ids, positions, tree_mask, keep):
            passes[model.name].append((len(ids), keep))
            return append(ids, positions, tree_mask, keep=keep)

        return around_passes(model, around)

    tiny_target, tiny_draft = counted(tiny_target), counted(tiny_draft)
    text = np.random.default_rng(1).integers(0, 64, 200).tolist()
    measure_acceptance([text], pair_of(tiny_target, tiny_draft), width=2, max_new_tokens=None)
    assert passes == {name: [(CHUNK, CHUNK), (199 - CHUNK, 199 - CHUNK)] for name in ("tiny-1", "tiny-2")}
    for made in passes.values():
        made.clear()
    measure_acceptance([text[:50]], pair_of(tiny_target, tiny_draft), width=2, max_new_tokens=30)
    assert passes["tiny-2"] == [(49, 1), (30, 30)]  # the prompt, then all positions


def test_vocabularies_of_a_pair_must_agree(tiny_target):
    short = HuggingFaceModel(tiny_llama(2).model, "short", vocab_size=60)
    with pytest.raises(ValueError, match="draft: found a vocabulary of 60, expected 64"):
        measure_acceptance(PROMPTS, pair_of(tiny_target, short), width=4, max_new_tokens=4)


def test_bad_arguments_are_named(tiny_target, tiny_draft):
    with pytest.raises(ValueError, match="prompts"):
        measure_acceptance([], pair_of(tiny_target, tiny_draft))
    with pytest.raises(ValueError, match="width: found 65"):
        measure_acceptance(PROMPTS, pair_of(tiny_target, tiny_draft), width=65)
    with pytest.raises(ValueError, match="verifier: found 'magic'"):
        measure_acceptance(PROMPTS, pair_of(tiny_target, tiny_draft), verifier="magic")
    with pytest.raises(ValueError, match="seed: found -1"):
        measure_acceptance(PROMPTS, pair_of(tiny_target, tiny_draft), seed=-1)
    with pytest.raises(ValueError, match="text 2: found 1 tokens"):
        measure_acceptance(PROMPTS, pair_of(tiny_target, tiny_draft), max_new_tokens=None)
    with pytest.raises(ValueError, match="text 1: found token 64"):
        measure_acceptance([[1, 64]], pair_of(tiny_target, tiny_draft), max_new_tokens=None)


def test_repeated_share():
    assert repeated_share([1, 2, 3, 4, 5, 6, 7]) == 0.0
    assert repeated_share([1] * 13) == pytest.approx(0.9)
    assert repeated_share([1]) == 0.0


def test_text_ends_where_a_draft_with_less_context_has_no_more_room(tiny_target):
    draft = tiny_llama(2, context=24)
    with pytest.warns(UserWarning, match="found 79 of 120 positions, after 2 of 2 prompts, beyond 24, .* of tiny-2"):
        vector = measure_acceptance(
            [PROMPTS[2], [9]], pair_of(tiny_target.ignore_eos(), draft), width=4, max_new_tokens=60
        )
    assert vector.prompt_trials.tolist() == [24 - len(PROMPTS[2]), 23]
    with pytest.raises(ValueError, match="found 30 tokens, expected at most 23: 24, the context of tiny-2, less one"):
        measure_acceptance([list(range(30))], pair_of(tiny_target, draft), width=4, max_new_tokens=10)


def test_every_prompt_has_streams_of_its_own(tiny_target, tiny_draft):
    seeds = [stream.initial_seed() for number in range(3) for stream in prompt_generators(5, number)]
    assert len(set(seeds)) == 12  # text, draws, outcomes and calibration of three prompts
    vector = measure_acceptance(
        [[9], [9]], pair_of(tiny_target, tiny_draft), sampling=SamplingConfig(2.0), max_new_tokens=12
    )
    assert not np.array_equal(*vector.prompt_sums)


def test_positions_weigh_the_same_whatever_prompt_they_are_of():
    vector = vector_from_prompts([np.array([8.0, 1.0]), np.array([0.0, 0.0])], [10, 30], meta={})
    assert vector.probs.tolist() == [0.2, 0.025] and vector.trials == 40


def test_both_rows_are_those_that_decoding_would_compare(tiny_target):
    """The target's warped, the draft's at the same temperature: a draft that is the target's twin shows both."""
    twin, text = tiny_llama(1), np.random.default_rng(0).integers(0, 64, 60).tolist()
    for sampling in (SamplingConfig(0.5), SamplingConfig(3.0)):
        vector = measure_acceptance([text], pair_of(tiny_target, twin), sampling=sampling, width=2, max_new_tokens=None)
        assert vector.probs[0] == pytest.approx(1.0, abs=1e-4)
    # top-p cuts the draft's first choices as it cuts the target
    cut = measure_acceptance(
        [text], pair_of(tiny_target, twin), sampling=SamplingConfig(3.0, top_p=0.5), width=2, max_new_tokens=None
    )
    assert cut.probs[0] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("tree", [chain_tree(3), branching_tree([3, 2, 1])])
def test_at_temperature_zero_a_replay_takes_the_very_steps_of_decoding(tree, tiny_target, tiny_draft):
    vector = measure_acceptance(PROMPTS, pair_of(tiny_target, tiny_draft), width=8, max_new_tokens=20)
    steps = [
        len(list(decode(prompt, pair_of(tiny_target, tiny_draft), tree=tree, max_new_tokens=20))) for prompt in PROMPTS
    ]
    assert replay(tree, vector).steps.tolist() == steps
    ranks = np.concatenate(vector.prompt_ranks)
    np.testing.assert_allclose([np.mean(ranks == k) for k in range(1, 9)], vector.probs)


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("verifier", ["sequoia", "specinfer", "topk"])
def test_a_replay_takes_as_many_steps_as_decoding_at_a_temperature(verifier, tiny_target, tiny_draft):
    """Means of two samples of 30 prompts each, 5 standard errors apart at most: a false alarm in 10^6."""
    prompts, tree, sampling = [[1 + i] for i in range(30)], branching_tree([3, 2, 1]), SamplingConfig(0.8)
    models = {"pair": pair_of(tiny_target.ignore_eos(), tiny_draft), "sampling": sampling, "verifier": verifier}
    vector = measure_acceptance(prompts, width=4, max_new_tokens=24, **models)
    real = [
        len(list(decode(p, tree=tree, max_new_tokens=24, generator=torch.Generator().manual_seed(i), **models)))
        for i, p in enumerate(prompts)
    ]
    replayed = replay(tree, vector).steps
    error = np.hypot(np.std(real, ddof=1), np.std(replayed, ddof=1)) / np.sqrt(len(prompts))
    assert abs(np.mean(real) - replayed.mean()) < 5 * error and error < 0.1 * np.mean(real)


def passes_of(model, counts: list[int]) -> HuggingFaceModel:
    """Return the model, and count the tokens of each of its passes."""

    def around(append, session, ids, positions, tree_mask, keep):
        counts.append(len(ids))
        return append(ids, positions, tree_mask, keep=keep)

    return around_passes(model, around)


def as_streamed(model: HuggingFaceModel) -> HuggingFaceModel:
    """Return a model in memory that says its layers stream."""
    twin = copy.copy(model)
    twin.offload = "disk"
    return twin


def test_a_streamed_target_writes_the_same_text_in_fewer_passes(tmp_path):
    folder = save(build("Llama"), tmp_path)  # its own draft: most of what is drafted is right
    resident, streamed = (load_pair(folder, folder, device="cpu", offload=offload) for offload in (None, "disk"))
    counts: dict[str, list[int]] = {"resident": [], "streamed": []}
    found = [
        measure_acceptance(PROMPTS, pair_of(passes_of(pair.target, counts[name]), pair.draft), max_new_tokens=24)
        for name, pair in (("resident", resident), ("streamed", streamed))
    ]
    for part in ("prompt_sums", "prompt_ranks", "probs"):
        np.testing.assert_array_equal(*(getattr(vector, part) for vector in found))
    assert found[1].meta == found[0].meta | {"offload": "disk"}
    assert counts["streamed"].count(writing_tree(64).size) > 5
    assert len(counts["streamed"]) < 0.5 * len(counts["resident"])
    streamed.target.close()


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_streamed_measurement_can_be_cut_and_resumed(temperature, tiny_target, tiny_draft):
    options = {"pair": pair_of(as_streamed(tiny_target), tiny_draft), "sampling": SamplingConfig(temperature)}
    options |= {"width": 5, "max_new_tokens": 20}
    told, stop, kept = [], threading.Event(), []

    def checkpoint(vector):
        kept.append(vector)
        stop.set()

    whole = measure_acceptance(PROMPTS, **options, progress=lambda fraction, message: told.append(fraction))
    assert told == sorted(told) and told[-1] == pytest.approx(1.0)
    measure_acceptance(PROMPTS, **options, checkpoints=Checkpoints(save=checkpoint), cancel=stop)
    assert len(kept) == 1 and measure_acceptance(PROMPTS, **options, checkpoints=Checkpoints(kept[0])) == whole
    # texts are equally likely wherever the weights are, so either may go on from the other
    options["pair"] = pair_of(tiny_target, tiny_draft)
    mixed = measure_acceptance(PROMPTS, **options, checkpoints=Checkpoints(kept[0]))
    assert mixed.trials == whole.trials


@pytest.mark.slow
def test_a_streamed_target_writes_text_of_the_same_distribution(tiny_target, tiny_draft):
    """Pooled p_1 of two samples of 40 prompts, 5 standard errors apart at most: a false alarm in 10^6."""
    prompts, sampling = [[1 + i] for i in range(40)], SamplingConfig(0.8)
    first = []
    for target, seed in ((tiny_target, 0), (as_streamed(tiny_target), 1)):
        vector = measure_acceptance(
            prompts, pair_of(target, tiny_draft), sampling=sampling, width=4, max_new_tokens=16, seed=seed
        )
        first.append(vector.prompt_sums[:, 0] / vector.prompt_trials)
    error = np.hypot(*(np.std(shares, ddof=1) for shares in first)) / np.sqrt(len(prompts))
    assert abs(first[0].mean() - first[1].mean()) < 5 * error


def test_a_streamed_target_with_no_room_for_its_tree_writes_with_smaller_ones(tiny_draft):
    target, counts = tiny_llama(1, context=32), []
    options = {"width": 4, "max_new_tokens": 20}
    prompt = np.random.default_rng(3).integers(0, 64, 28).tolist()
    found = measure_acceptance([prompt], pair_of(passes_of(as_streamed(target), counts), tiny_draft), **options)
    assert found.probs.tolist() == measure_acceptance([prompt], pair_of(target, tiny_draft), **options).probs.tolist()
    assert writing_tree(64).size not in counts


def test_each_stream_of_a_prompt_has_its_own_use(tiny_target, tiny_draft):
    """A seed tells text and draws, so that a run that was cut goes on with the same of both."""
    sampling, pair, states = SamplingConfig(0.8), pair_of(tiny_target, tiny_draft), []

    def ask(rows):
        states.append(rows.draws.get_state().tolist())
        return rows.tokens

    options = {"sampling": sampling, "questions": {"tokens": ask}, "seed": 5, "number": 2, "cancel": threading.Event()}
    (part,) = ranks_on_text(PROMPTS[0], pair, max_new_tokens=12, **options)
    text, draws, *_ = prompt_generators(5, 2)
    steps = autoregressive(PROMPTS[0], pair, sampling=sampling, max_new_tokens=12, generator=text)
    assert part["tokens"].tolist() == tokens_of(steps) and states == [draws.get_state().tolist()]
