"""The decode loop: identical to greedy generation, exact lengths, limits, cancel, and what each record says."""

import threading

import numpy as np
import pytest
import torch

from sequoia_core import rows
from sequoia_core.construction import branching_tree, chain_tree, independent_chains, k_ary_tree
from sequoia_core.engine import autoregressive, decode
from sequoia_core.models import HuggingFaceModel
from sequoia_core.sampling import SamplingConfig
from sequoia_core.tree import TokenTree
from tests.conftest import tiny_llama

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
    return list(decode(prompt, target=model, draft=draft, tree=tree, max_new_tokens=count, **options))


def tokens_of(steps):
    return [token for step in steps for token in step.new_tokens]


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES.keys())
def test_greedy_output_is_identical_to_generate(tree, tiny_target, tiny_draft):
    for prompt in (PROMPT, [7]):
        wanted = greedy_reference(tiny_target, prompt, 40)
        assert tokens_of(run(tiny_target, tiny_draft, tree, prompt=prompt)) == wanted


@pytest.mark.parametrize("tree", [chain_tree(5), k_ary_tree(3, 3)], ids=["chain", "ternary"])
def test_a_draft_equal_to_the_target_is_always_accepted(tree, tiny_target):
    same = tiny_llama(1)
    steps = run(tiny_target, same, tree, count=36)
    assert all(len(step.new_tokens) == tree.depth + 1 for step in steps[:-1])
    steps = run(tiny_target, same, tree, 36, sampling=SamplingConfig(1.0), generator=torch.Generator().manual_seed(0))
    assert all(len(step.new_tokens) == tree.depth + 1 for step in steps[:-1])


@pytest.mark.parametrize("verifier", ["sequoia", "specinfer", "topk"])
def test_sampled_runs_repeat_with_the_seed_and_differ_without(verifier, tiny_target, tiny_draft):
    def sample(seed):
        options = {"sampling": SamplingConfig(0.8, 0.95), "verifier": verifier}
        return tokens_of(
            run(tiny_target, tiny_draft, TREES["ragged"], generator=torch.Generator().manual_seed(seed), **options)
        )

    assert sample(1) == sample(1) != sample(2)
    assert len(sample(3)) == 40


def test_autoregressive_is_generate(tiny_target):
    steps = list(autoregressive(PROMPT, target=tiny_target, max_new_tokens=30))
    assert tokens_of(steps) == greedy_reference(tiny_target, PROMPT, 30)
    assert all(len(step.tokens) == 1 and step.draft_sec < 0.01 for step in steps)


@pytest.mark.parametrize("count", [1, 2, 5, 13])
def test_stops_at_exactly_max_new_tokens(count, tiny_target):
    steps = run(tiny_target, tiny_llama(1), chain_tree(3), count=count)
    assert len(tokens_of(steps)) == count and steps[-1].finished == "length"
    assert all(step.finished is None for step in steps[:-1])


def test_stops_at_an_eos_inside_the_accepted_path(tiny_target):
    wanted = greedy_reference(tiny_target, PROMPT, 40)
    eos = wanted[9]
    first = wanted.index(eos)
    stopping = HuggingFaceModel(tiny_target.model, "stopping", eos_ids=frozenset({eos, 63}))
    steps = run(stopping, tiny_llama(1), chain_tree(6))
    assert tokens_of(steps) == wanted[: first + 1] and steps[-1].finished == "eos"


def test_stops_cleanly_at_the_context_limit():
    target, draft = tiny_llama(1, context=32), tiny_llama(2, context=32)
    whole = greedy_reference(tiny_llama(1, context=64), PROMPT, 26)
    for tree in (TREES["ragged"], TREES["root only"], chain_tree(20)):
        steps = run(target, draft, tree, count=100)
        assert tokens_of(steps) == whole and steps[-1].finished == "context"


def test_cancel_ends_the_run_between_phases(tiny_target, tiny_draft):
    cancel = threading.Event()
    steps = []
    for step in decode(
        PROMPT, target=tiny_target, draft=tiny_draft, tree=TREES["binary"], max_new_tokens=200, cancel=cancel
    ):
        steps.append(step)
        if len(steps) == 3:
            cancel.set()
    assert len(steps) == 3 and steps[-1].finished is None


def test_a_record_tells_the_whole_step(tiny_target, tiny_draft):
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
        committed = [step.tokens[node] for node in path[1:]] + [step.bonus_token]
        assert committed[: len(step.new_tokens)] == step.new_tokens
        assert all(0 <= p <= 1 for p in step.draft_probs + step.target_probs) and step.seconds > 0
        sequence += step.new_tokens


def test_recorded_probabilities_are_those_of_a_plain_forward():
    """Positions, tree mask and in-place commits: a wrong one of them would show here, several steps into the run."""
    target, draft = tiny_llama(1, scale=1.0), tiny_llama(2, layers=1, scale=1.0)  # mild logits keep rounding small
    tree, sampling = TREES["ragged"], SamplingConfig(0.7)
    sequence = list(PROMPT)
    for step in run(target, draft, tree, 30, sampling=sampling, generator=torch.Generator().manual_seed(9)):
        for node in range(1, tree.size):
            text = sequence[:-1] + [step.tokens[v] for v in tree.path_to(node)]
            for model, seen in ((target, step.target_probs), (draft, step.draft_probs)):
                with torch.inference_mode():
                    logits = model.model(torch.tensor([text[:-1]])).logits[0, -1]
                assert seen[node] == pytest.approx(float((logits / 0.7).softmax(-1)[text[-1]]), abs=2e-6)
        sequence += step.new_tokens


def test_caches_do_not_grow(tiny_target, tiny_draft):
    caches = []

    class Recording(HuggingFaceModel):
        def new_cache(self, capacity):
            caches.append(super().new_cache(capacity))
            return caches[-1]

    target = Recording(tiny_target.model, "recording", eos_ids=frozenset())
    sizes = set()
    for _ in decode(PROMPT, target=target, draft=tiny_draft, tree=TREES["binary"], max_new_tokens=60):
        sizes.add((caches[0]._buffer.data_ptr(), caches[0]._buffer.numel()))
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": []}, "prompt: found no tokens"),
        ({"prompt": [1, 99]}, "found token 99"),
        ({"prompt": [1] * 254}, "found 254 tokens, expected at most 253: the models' context of 256 less the tree's 3"),
        ({"count": 0}, "max_new_tokens"),
        ({"verifier": "nope"}, "verifier"),
        ({"tree": branching_tree([65])}, "65 children"),
        ({"draft": None}, "draft"),
    ],
)
def test_what_cannot_be_decoded_is_refused_at_once(options, message, tiny_target, tiny_draft):
    arguments = {
        "prompt": PROMPT,
        "count": 5,
        "tree": chain_tree(2),
        "draft": tiny_draft,
        "verifier": "sequoia",
    } | options
    with pytest.raises(ValueError, match=message):
        decode(
            arguments["prompt"], target=tiny_target, draft=arguments["draft"], tree=arguments["tree"],
            max_new_tokens=arguments["count"], verifier=arguments["verifier"],
        )  # fmt: skip


def test_vocabularies_of_two_sizes_are_refused_at_once(tiny_target):
    with pytest.raises(ValueError, match="draft: found a vocabulary of 72, expected 64"):
        decode(PROMPT, target=tiny_target, draft=tiny_llama(2, vocab=72), tree=chain_tree(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "sampling",
    [SamplingConfig(0.01), SamplingConfig(1e-6), SamplingConfig(1.0, top_p=1e-6), SamplingConfig(1.0, top_k=1)],
    ids=["T=0.01", "T=1e-6", "top-p 1e-6", "top-k 1"],
)
@pytest.mark.parametrize("verifier", ["sequoia", "specinfer", "topk"])
def test_half_precision_survives_almost_greedy_sampling(verifier, sampling, dtype):
    target, draft = (HuggingFaceModel(tiny_llama(seed, layers=1).model.to(dtype), "half") for seed in (1, 2))
    options = {"sampling": sampling, "verifier": verifier, "generator": torch.Generator().manual_seed(0)}
    steps = run(target, draft, TREES["wide"], count=20, **options)
    assert len(tokens_of(steps)) == 20
    for step in steps:
        assert np.isfinite(step.draft_probs + step.target_probs).all()
        if verifier != "specinfer":
            assert len(set(step.tokens[1:21])) == 20  # siblings never tie into the same token


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_compiled_rows_are_optional(temperature, tiny_target, tiny_draft, monkeypatch):
    """Without a compiler: the same greedy text, and sampled runs that still repeat with their seed."""

    def run():
        steps = decode(
            PROMPT, target=tiny_target, draft=tiny_draft, tree=TREES["ragged"], max_new_tokens=24,
            sampling=SamplingConfig(temperature), generator=torch.Generator().manual_seed(3),
        )  # fmt: skip
        return [token for step in steps for token in step.new_tokens]

    compiled = run()
    monkeypatch.setattr(rows, "compiled", lambda: None)
    assert run() == (compiled if temperature == 0 else run())


def test_an_unexplained_run_is_the_same_without_the_targets_probabilities(tiny_target, tiny_draft):
    options = {"target": tiny_target, "draft": tiny_draft, "tree": TREES["ragged"], "max_new_tokens": 24}
    explained, plain = (list(decode(PROMPT, **options, explain=explain)) for explain in (True, False))
    assert [s.new_tokens for s in plain] == [s.new_tokens for s in explained]
    assert all(s.target_probs == () == s.draft_probs for s in plain)
    assert all(len(s.target_probs) == len(s.draft_probs) == TREES["ragged"].size for s in explained)


def test_nan_logits_name_the_step(tiny_target, tiny_draft):
    class Broken(HuggingFaceModel):
        calls = 0

        def forward(self, *args, **kwargs):
            self.calls += 1
            logits = super().forward(*args, **kwargs)
            return logits * torch.nan if self.calls == 4 else logits  # prefill, then three steps

    steps = []
    with pytest.raises(FloatingPointError, match="step 2: the target"):
        for step in decode(
            PROMPT, target=Broken(tiny_target.model, "broken"), draft=tiny_draft, tree=chain_tree(1), max_new_tokens=90
        ):
            steps.append(step)
    assert len(steps) == 2


def test_long_prompts_are_prefilled_in_chunks(monkeypatch, tiny_target, tiny_draft):
    monkeypatch.setattr("sequoia_core.engine.PREFILL_CHUNK", 5)
    prompt = list(range(1, 33))
    assert tokens_of(run(tiny_target, tiny_draft, TREES["binary"], prompt=prompt)) == greedy_reference(
        tiny_target, prompt, 40
    )


@pytest.mark.parametrize("tree", [TREES["ragged"], k_ary_tree(2, 4)], ids=["ragged", "binary"])
def test_demo_pair_is_lossless_at_temperature_zero(tree, demo_pair):
    prompt = demo_pair.tokenizer.encode("import os\n\n\ndef read_lines(path):\n    with open(path)")
    wanted = greedy_reference(demo_pair.target, prompt, 64)
    assert tokens_of(run(demo_pair.target, demo_pair.draft, tree, count=64, prompt=prompt)) == wanted[:64]
