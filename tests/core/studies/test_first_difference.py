"""Where greedy texts part, and by what gap of the target's own logits."""

import pytest
import torch

from sequoia_core.decoding.loop import autoregressive
from sequoia_core.design.near_ties import is_near_tie
from sequoia_core.studies.first_difference import first_difference
from tests.conftest import pair_of, tiny_llama, tokens_of

PROMPT = [3, 1, 4, 1, 5]


def written(model):
    return tokens_of(autoregressive(PROMPT, pair_of(model), max_new_tokens=8))


def decode(ids):
    return f"<{ids[0]}>"


@pytest.mark.parametrize("place", [0, 5])
def test_the_first_other_token_and_the_gap_of_the_two_logits(place):
    model = tiny_llama(1)
    wanted = written(model)
    with torch.inference_mode():
        row = model.model(torch.tensor([[*PROMPT, *wanted[:place]]])).logits[0, -1]
    second = int(row.topk(2).indices[1])
    found = first_difference(PROMPT, wanted, [*wanted[:place], second, 0, 0], model)
    assert (found.index, found.tokens, found.near_tie) == (place, (wanted[place], second), False)
    assert found.gap == pytest.approx(float(row.max() - row[second]), rel=1e-3) and found.gap > 0.01
    assert found.words(decode).startswith(f"token {place + 1} is '<{second}>', not '<{wanted[place]}>'; their logits")
    assert first_difference(PROMPT, wanted, list(wanted), model) is None


def test_two_tokens_with_one_row_of_weights_are_a_near_tie():
    model = tiny_llama(1)
    first = written(model)[0]
    with torch.no_grad():
        model.model.lm_head.weight[7] = model.model.lm_head.weight[first]
    found = first_difference(PROMPT, [first], [7], model)
    assert found.gap == 0.0 and found.near_tie and "a near tie, which rounding decides" in found.words(decode)


def test_a_text_that_ends_before_the_other_has_no_gap():
    found = first_difference(PROMPT, [1, 2, 3], [1, 2], tiny_llama(1))
    assert (found.index, found.tokens, found.gap) == (2, (3, None), None)
    assert found.words(decode) == "token 3 is the end, not '<3>'"


def test_what_rounding_may_do_depends_on_the_digits():
    assert is_near_tie(-0.1, exact=False) and not is_near_tie(0.1, exact=True) and not is_near_tie(0.3, exact=False)
