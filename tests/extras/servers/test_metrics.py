"""Counters in real servers' metrics: differences, engines, resets, mixtures; malformed text."""

import pytest

from tests.extras.servers.samples import (
    AFTER,
    BEFORE,
    LLAMA_AFTER,
    LLAMA_BEFORE,
    LLAMA_PMIN,
    NGRAM,
    SGLANG_TEXT,
    llama_text,
    read,
    vllm_text,
)


def test_llama_cpp_uses_the_same_counter_names():
    counts = read(llama_text(*LLAMA_AFTER), llama_text(*LLAMA_BEFORE))
    assert (counts.engine, counts.drafts, counts.positions) == ("llama.cpp", 2728, (1832, 1396, 1152, 996))
    assert counts.coverage == pytest.approx(0.969, abs=1e-3)  # of 64 requests the first tokens are unknown
    pmin = read(llama_text(*LLAMA_PMIN))
    assert pmin.censored and pmin.fill_ratio == pytest.approx(0.56, abs=0.01)


def test_a_falling_counter_was_reset():
    restarted = vllm_text(*NGRAM).replace(" 1.79539", " 1.79540")
    counts = read(restarted, vllm_text(*AFTER))
    assert counts.drafts == 352 and counts.positions == NGRAM[3] and counts.tokens == 2048
    assert "were reset" in counts.notes[0]
    # of two engines only the one that was restarted begins again
    two = read(restarted + vllm_text(*AFTER, engine="1"), vllm_text(*AFTER) + vllm_text(*BEFORE, engine="1"))
    assert two.drafts == 352 + 689 and "engine 0 were reset" in two.notes[0] and two.notes[1] == "Sum over 2 engines."


@pytest.mark.parametrize(
    ("after", "before", "said"),
    [
        (vllm_text(*BEFORE), vllm_text(*AFTER), "engine 0: found lower counts .* without a restart, .*--before"),
        (vllm_text(*AFTER), vllm_text(*BEFORE, model="other"), r"found counters of other \(engine 0\) .* of demo \("),
        (vllm_text(*AFTER), llama_text(*LLAMA_BEFORE), r"found counters of llama.cpp .* of demo \(engine 0\)"),
    ],
    ids=["swapped", "another model", "another engine"],
)
def test_readings_that_do_not_belong_together_are_refused(after, before, said):
    with pytest.raises(ValueError, match=said):
        read(after, before)


def test_a_later_creation_time_means_a_restart():
    before = vllm_text(*BEFORE) + vllm_text(*AFTER, engine="1")
    restarted = vllm_text(*AFTER).replace(" 1.79539", " 1.79540")
    found = read(restarted + vllm_text(*AFTER, engine="1"), before)
    assert found.drafts == 693 and "engine 0 were reset" in found.notes[0]
    assert read(vllm_text(*AFTER) + vllm_text(*AFTER, engine="1"), before).drafts == 689


def test_missing_creation_times_are_noted():
    def two(first, second):
        lines = vllm_text(*first) + vllm_text(*second, engine="1")
        return "".join(f"{line}\n" for line in lines.splitlines() if "_created" not in line)

    assert any("would go unnoticed" in note for note in read(two(AFTER, AFTER), two(BEFORE, BEFORE)).notes)
    assert any("would go unnoticed" in note for note in read(llama_text(*LLAMA_AFTER), llama_text(*BEFORE[:5])).notes)
    assert not any("would go unnoticed" in note for note in read(two(AFTER, AFTER)).notes)


def test_a_counter_missing_in_one_reading_is_not_a_restart():
    def without(text, name):
        return "".join(f"{line}\n" for line in text.splitlines() if name not in line)

    whole, earlier = vllm_text(*AFTER), vllm_text(*BEFORE)
    for name in ("generation_tokens", "request_success"):
        for after, before in ((without(whole, name), earlier), (whole, without(earlier, name))):
            found = read(after, before)
            assert found.drafts == 689 and found.notes == ()
            assert None in (found.tokens, found.requests_done)


def test_engines_with_several_k_are_separated():
    found = read(vllm_text(*AFTER) + vllm_text(100, 200, 120, (80, 40), 300, 5, engine="1"))
    assert (found.drafts, found.positions) == (693, AFTER[3]) and "counts of K = 4 are" in found.notes[0]
    assert [each.drafts for each in found.periods] == [693, 100]
    idle = read(vllm_text(*AFTER) + vllm_text(0, 0, 0, (0, 0), 944, 5, engine="1"))
    assert (idle.drafts, idle.positions, idle.tokens) == (693, AFTER[3], 3000)


def test_inconsistent_token_counts_are_ignored():
    found = read(vllm_text(100, 400, 90, (60, 20, 10, 0), 95, 1))
    assert (found.drafts, found.tokens, found.coverage) == (100, None, None)
    assert "95 tokens is ignored, because these drafts generate at least 186" in found.notes[1]
    assert read(llama_text(100, 400, 90, (60, 20, 10, 0), 120)).coverage is None


def test_exemplars_and_comments_after_a_value_are_accepted():
    text = "".join(
        f'{line} # {{trace_id="a}}b"}} 1.0 1.7e9\n' if line[0] != "#" else f"{line}\n" for line in GOOD.splitlines()
    )
    assert read(text) == read(GOOD)


def test_only_metrics_can_be_an_earlier_reading():
    for text in ("hello\n", '{"num_spec_steps": 1}', ""):
        with pytest.raises(ValueError, match="the earlier reading: found no metrics"):
            read(GOOD, text)


def test_a_server_that_never_drafted_is_read():
    nothing = read(vllm_text(0, 0, 0, (0, 0), 500, 2))
    assert (nothing.drafts, nothing.tokens, nothing.positions) == (0, 500, (0, 0))
    between = read(vllm_text(*AFTER), vllm_text(*AFTER))
    assert (between.drafts, between.tokens) == (0, 0)
    assert read(vllm_text(*AFTER), "# HELP vllm:x y\nvllm:x 1\n").drafts == 693  # an earlier reading before any draft


def test_several_models_or_engines_require_a_choice():
    models = vllm_text(*AFTER) + vllm_text(*NGRAM, model="other")
    with pytest.raises(ValueError, match="found models demo, other, expected one: select the model .--model"):
        read(models)
    assert read(models, model="other").drafts == 352
    with pytest.raises(ValueError, match="found counters of vllm demo, vllm other, .* engine auto, model third"):
        read(models, model="third")
    engines = vllm_text(*AFTER) + llama_text(*LLAMA_AFTER)
    with pytest.raises(ValueError, match="found engines llama.cpp, vllm, expected one: select the engine .--engine"):
        read(engines)
    assert read(engines, engine="llama.cpp").drafts == 2732
    with pytest.raises(ValueError, match="found counters of llama.cpp, vllm demo, expected counters of engine sglang"):
        read(engines, engine="sglang")


def test_sglang_reports_averages_only():
    counts = read(SGLANG_TEXT)
    assert (counts.engine, counts.source, counts.mean_length, counts.drafts) == ("sglang", "averages", 2.65, None)
    assert counts.positions == () and "averages" in counts.notes[0]
    ranks = read(SGLANG_TEXT + SGLANG_TEXT.replace('rank="0"', 'rank="1"').replace(" 2.65", " 0.0"))
    assert ranks.mean_length == 2.65 and "1 of 2 ranks" in ranks.notes[1]  # the other has not drafted yet


def test_labels_and_prefixes_are_parsed():
    hostile = 'a\\"}{,=\\\\ 7'
    assert read(vllm_text(*AFTER, model=hostile)).model == hostile
    assert read(vllm_text(*AFTER).replace("vllm:", "ray_vllm_")).engine == "vllm"
    assert read(vllm_text(*AFTER).replace("vllm:", "own:")).engine == "own"


GOOD = vllm_text(*AFTER)
DRAFTS = 'vllm:spec_decode_num_drafts_total{engine="0",model_name="demo"} 693.0'


@pytest.mark.sample(20)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("} 693.0", "} NaN"), "line 3: found vllm:spec_decode_num_drafts_total = NaN, expected a count"),
        (GOOD.replace("} 693.0", "} 692.5"), "= 692.5, expected a count"),
        ("# HELP x y\n", "found metrics without speculative decoding counters, expected metrics"),
        (GOOD.replace("} 693.0", "}"), "line 3: found 'vllm:spec_decode_num_drafts_total"),
        (GOOD.replace('position="1"} 358', 'position="7"} 358'), r"found positions \[0, 2, 3, 7\]"),
        (GOOD.replace('position="1"} 358', 'position="99999"} 358'), "found position '99999', expected 0 to 1023"),
        (GOOD.replace('engine="0",model', "engine=0,model"), "found labels 'engine=0"),
        (GOOD + DRAFTS + "\n", "found vllm:spec_decode_num_drafts_total twice"),
        ('vllm:spec_decode_num_drafts_total{engine="0",engine="1"} 1\n', "line 1: found labels .* with unique names"),
        (f"vllm:spec_decode_num_drafts_total{' ' * 20_000}x y\n", "found 20,036 characters, expected at most 16,384"),
        (GOOD[:170], "found a truncated line"),
        (GOOD.replace("num_drafts_total{", "num_draft_total{"), "found no counter of drafts"),
    ],
)
def test_malformed_metrics_are_refused_in_one_line(text, said):
    with pytest.raises(ValueError, match=said) as error:
        read(text)
    assert str(error.value).startswith("after: ") and "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_a_malformed_line_of_metrics_is_skipped():
    assert read(GOOD + GOOD.splitlines()[-3]).notes[-1].startswith("Skipped: line 17: found a truncated line")
    lost = read(GOOD.replace("} 2056.0", "} many"))
    assert (lost.drafts, lost.tokens) == (693, None) and "= many, expected a count" in lost.notes[-1]


def test_truncated_metrics_are_refused_or_still_correct():
    whole = read(GOOD)
    for end in range(0, len(GOOD), 7):
        try:
            counts = read(GOOD[:end])
        except ValueError:
            continue
        assert (counts.drafts, counts.accepted_tokens) == (whole.drafts, whole.accepted_tokens)
        assert counts.positions in ((), whole.positions)
        assert counts.positions or any("only totals" in note for note in counts.notes)
