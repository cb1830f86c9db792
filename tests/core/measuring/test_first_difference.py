"""The first difference of two greedy texts and its gap in the target's logits."""

import pytest
import torch

from sequoia_core.decoding.loop import autoregressive
from sequoia_core.measuring.first_difference import first_difference
from tests.conftest import pair_of, tiny_llama, tokens_of

PROMPT = [3, 1, 4, 1, 5]


def decode(ids):
    return f"<{ids[0]}>"


def test_the_first_difference_has_the_logit_gap():
    model = tiny_llama(1)
    wanted = tokens_of(autoregressive(PROMPT, pair_of(model), max_new_tokens=8))
    with torch.inference_mode():
        row = model.model(torch.tensor([[*PROMPT, *wanted[:5]]])).logits[0, -1]
    second = int(row.topk(2).indices[1])
    found = first_difference(PROMPT, wanted, [*wanted[:5], second, 0, 0], model)
    assert (found.index, found.tokens, found.near_tie) == (5, (wanted[5], second), False)
    assert found.gap == pytest.approx(float(row.max() - row[second]), rel=1e-3) and found.gap > 0.01
    assert found.words(decode).startswith(f"token 6 is '<{second}>', not '<{wanted[5]}>'; their logits")
    assert first_difference(PROMPT, wanted, list(wanted), model) is None
    with torch.no_grad():  # two tokens with equal weights
        model.model.lm_head.weight[7] = model.model.lm_head.weight[wanted[0]]
    tied = first_difference(PROMPT, wanted[:1], [7], model)
    assert tied.gap == 0.0 and tied.near_tie and "a near tie, which rounding decides" in tied.words(decode)


def test_an_ended_text_has_no_gap():
    found = first_difference(PROMPT, [1, 2, 3], [1, 2], tiny_llama(1))
    assert (found.index, found.tokens, found.gap) == (2, (3, None), None)
    assert found.words(decode) == "token 3 is the end, not '<3>'"
