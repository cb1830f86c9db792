"""Counters of real servers' metrics: differences, engines, resets, mixtures; broken and foreign text in one line."""

import pytest

from tests.core.servers.samples import (
    AFTER,
    BEFORE,
    LLAMA,
    NGRAM,
    SGLANG_TEXT,
    llama_text,
    read,
    vllm_text,
)


def test_two_readings_of_vllm_are_subtracted():
    counts = read(vllm_text(*AFTER), vllm_text(*BEFORE))
    assert (counts.engine, counts.model, counts.source, counts.notes) == ("vllm", "demo", "counters", ())
    assert (counts.drafts, counts.draft_tokens, counts.accepted_tokens) == (689, 2756, 1372)
    assert counts.positions == (466, 356, 294, 256)
    assert (counts.tokens, counts.requests_done) == (2048, 16)
    assert counts.filled == 1 and counts.coverage == 1 and not counts.censored


def test_a_counter_that_fell_began_again_at_0():
    counts = read(vllm_text(*NGRAM), vllm_text(*AFTER))
    assert counts.drafts == 352 and counts.positions == NGRAM[3] and counts.tokens == 2048
    assert "began again" in counts.notes[0]
    # of two engines only the one that was restarted begins again
    two = read(vllm_text(*NGRAM) + vllm_text(*AFTER, engine="1"), vllm_text(*AFTER) + vllm_text(*BEFORE, engine="1"))
    assert two.drafts == 352 + 689 and "(engine 0) began again" in two.notes[0] and two.notes[1] == "2 engines, summed."


def test_an_engine_that_was_created_later_began_again_though_it_counted_further():
    before = vllm_text(*BEFORE) + vllm_text(*AFTER, engine="1")
    restarted = vllm_text(*AFTER).replace(" 1.79539", " 1.79540")
    found = read(restarted + vllm_text(*AFTER, engine="1"), before)
    assert found.drafts == 693 and "(engine 0) began again" in found.notes[0]
    assert read(vllm_text(*AFTER) + vllm_text(*AFTER, engine="1"), before).drafts == 689


def test_several_models_or_engines_are_a_choice():
    models = vllm_text(*AFTER) + vllm_text(*NGRAM, model="other")
    with pytest.raises(ValueError, match="found models demo, other, expected one: say which model"):
        read(models)
    assert read(models, model="other").drafts == 352
    engines = vllm_text(*AFTER) + llama_text(*LLAMA)
    with pytest.raises(ValueError, match="found engines llama.cpp, vllm, expected one: say which engine"):
        read(engines)
    assert read(engines, engine="llama.cpp").drafts == 2732


def test_labels_may_hold_anything_and_prefixes_are_names():
    hostile = 'a\\"}{,=\\\\ 7'
    assert read(vllm_text(*AFTER, model=hostile)).model == hostile
    assert read(vllm_text(*AFTER).replace("vllm:", "ray_vllm_")).engine == "vllm"
    assert read(vllm_text(*AFTER).replace("vllm:", "own:")).engine == "own"


GOOD = vllm_text(*AFTER)


@pytest.mark.sample(20)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("} 693.0", "} NaN"), "line 3: found vllm:spec_decode_num_drafts_total = NaN, expected a count"),
        (GOOD.replace("} 693.0", "} 692.5"), "= 692.5, expected a count"),
        (GOOD.replace("} 358.0", "} 470.0"), "470 accepted at position 2 of 469 accepted at position 1"),
        (GOOD.replace("} 1378.0", "} 1379.0"), "found 1,379 accepted tokens, expected 1,378"),
        (GOOD.replace("} 2772.0", "} 1000.0"), "found 1,378 accepted of 1,000 draft tokens"),
        (GOOD.replace('position="1"} 358', 'position="7"} 358'), r"found positions \[0, 2, 3, 7\]"),
        (GOOD.replace('engine="0",model', "engine=0,model"), "found labels 'engine=0"),
        (
            SGLANG_TEXT.replace("0.55", "1.2"),
            "line 2: found sglang:spec_accept_rate = 1.2, expected a rate",
        ),
    ],
)
def test_broken_text_is_refused_in_one_line(text, said):
    with pytest.raises(ValueError, match=said) as error:
        read(text)
    assert str(error.value).startswith("after: ") and "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_a_text_that_is_cut_off_is_refused_or_still_true():
    whole = read(GOOD)
    for end in range(0, len(GOOD), 7):
        try:
            counts = read(GOOD[:end])
        except ValueError:
            continue
        assert (counts.drafts, counts.accepted_tokens) == (whole.drafts, whole.accepted_tokens)
        assert counts.positions in ((), whole.positions)
        assert counts.positions or "totals alone" in counts.notes[-1]
