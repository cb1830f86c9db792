"""Gemma 3 270M, a third-party model: vocabulary of 262,144 tokens, tied embeddings, windows of 512 tokens.

Tested as the 4-bit file in its package and as the folder converted from it.
"""

import os

import pytest
import torch

from sequoia_core import SamplingConfig, decode, load_pair, measure_acceptance
from sequoia_core.decoding.loop import autoregressive
from sequoia_core.models import gemma
from sequoia_core.trees.plain import k_ary_tree
from tests.conftest import calibration_of, tokens_of
from tests.extras.gguf.test_tokenizer import TEXTS

pytestmark = [pytest.mark.real, pytest.mark.slow]  # the folder takes a minute to make
PROMPTS = [
    "The capital of France is",
    "def read_lines(path):\n",
    "日本の首都は",
    "عاصمة مصر هي",
    "👩‍👩‍👧 🫠 means",
    "Once upon a time",
    "Q: What is 17 + 25?\nA:",
    "import numpy as np\n\nx =",
    "Der schnellste Zug der Welt",
    "1, 2, 3, 4,",
    "<div class=",
    "Roses are red,",
    "Đà Nẵng là",
    "SELECT name FROM",
    "In 1969,",
    "The three laws of thermodynamics",
    "Ingredients:\n-",
    "Dear Sir or Madam,",
    "E = mc",
    "   four spaces",
]


@pytest.fixture(scope="module")
def places() -> tuple[str, str]:
    if not gemma.is_installed():
        reason = f"needs {gemma.TITLE} ({gemma.INSTALL})"
        (pytest.fail if os.environ.get("SEQUOIA_REAL") == "required" else pytest.skip)(reason)
    folder, file = gemma.make()
    return str(folder), str(file)


@pytest.fixture(scope="module")
def exact(places):
    """The folder in float32, drafted by its file."""
    return load_pair(*places, dtype="float32")


@pytest.fixture(scope="module")
def rounded(places):
    """The folder in bfloat16, drafted by its file."""
    return load_pair(*places, dtype="bfloat16")


def test_file_and_folder_have_the_same_tokenizer(rounded, places):
    alone = load_pair(places[1], "none")
    assert rounded.remarks == () and len(repr(rounded)) < 300
    assert rounded.target.vocab_size == alone.target.vocab_size == 262_144
    for text in [*TEXTS, *PROMPTS, "<start_of_turn>user\nhi<end_of_turn>\n"]:
        ids = alone.tokenizer.encode(text)
        assert ids == rounded.tokenizer.encode(text), text
        assert alone.tokenizer.decode(ids, skip_special_tokens=True) == rounded.tokenizer.decode(
            ids, skip_special_tokens=True
        )
    assert ids[:2] == [2, 105]  # BOS and a parsed special token


def assert_as_generate(pair, text: str, new_tokens: int, *, ids: list[int] | None = None) -> None:
    ids = pair.tokenizer.encode(text) if ids is None else ids
    given = torch.tensor([ids])
    wanted = pair.target.model.generate(
        given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=new_tokens, pad_token_id=0
    )[0, len(ids) :].tolist()
    assert tokens_of(autoregressive(ids, pair, max_new_tokens=new_tokens)) == wanted
    steps = list(decode(ids, pair, tree=k_ary_tree(2, 3), max_new_tokens=new_tokens))
    for place, (found, other) in enumerate(zip(tokens_of(steps), wanted, strict=True)):
        if found != other:  # a near-tie within float32 rounding, after which the texts diverge
            row = pair.target.plain_logits(torch.tensor([*ids, *wanted[:place]]))[-1]
            assert abs(float(row[found] - row[other])) < 1e-4, (text, place)
            break
    assert len(steps) < len(wanted)


@pytest.mark.timeout(900)
def test_greedy_text_matches_generate_past_the_window(exact):
    for text in PROMPTS[:3]:
        assert_as_generate(exact, text, 16)
    long = exact.tokenizer.encode(" ".join(PROMPTS) * 8)[:600]
    assert len(long) == 600 > exact.target.model.config.sliding_window
    assert_as_generate(exact, "a prompt of 600 tokens", 12, ids=long)


@pytest.mark.timeout(900)
def test_sampled_token_follows_the_target(exact):
    """A G-test that a correct verifier fails with a probability below 1e-6."""
    report = pytest.importorskip("sequoia_extras.evaluation.losslessness").check_losslessness(
        exact.tokenizer.encode("The weather today is"),
        exact,
        tree=k_ary_tree(3, 1),
        new_tokens=1,
        sampling=SamplingConfig(0.7),
        samples=150,
        generator=torch.Generator().manual_seed(7),
    )
    assert report.passed and report.impossible == 0, report
    assert report.degrees_of_freedom >= 4


def test_acceptance_is_measured_and_adaptive_trees_decode(rounded):
    ids = [rounded.tokenizer.encode(text) for text in PROMPTS[:2]]
    vector = measure_acceptance(ids, rounded, sampling=SamplingConfig(0.7), width=48, max_new_tokens=12)
    assert len(vector.probs) == 48 and 0.5 < vector.probs[0] <= vector.probs.sum() <= 1 + 1e-9
    growing = pytest.importorskip("sequoia_extras.dynamic_trees")
    tree = growing.AdaptiveTree(profile=None, max_size=12, calibration=calibration_of(0.8))
    steps = list(decode(ids[0], rounded, tree=tree, max_new_tokens=16))
    assert len(tokens_of(steps)) == 16 and len(steps) < 12
