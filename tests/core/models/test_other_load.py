"""The warning about other processes' load, from records that may come from files."""

import pytest

from sequoia_core.models.other_load import DISTURBING_SHARE, busiest, load_sentence

QUIET = {"share": DISTURBING_SHARE - 0.001, "processes": 1}


@pytest.mark.parametrize(
    ("processes", "subject"),
    [
        (0, "Other processes or virtual machines"),
        (1, "Another process"),
        (2, "Two other processes"),
        (4, "4 other processes"),
    ],
)
def test_the_sentence_names_share_and_number(processes, subject):
    said = load_sentence({"share": 0.604, "processes": processes})
    assert said == f"{subject} used 60% of the machine while this was timed: repeat the measurement when it is idle."


def test_the_largest_load_counts_and_a_small_one_is_not_mentioned():
    large = {"share": DISTURBING_SHARE, "processes": 3}
    assert load_sentence(QUIET) is None and load_sentence() is None and load_sentence(large) is not None
    assert busiest(QUIET, large, QUIET) == large
    assert load_sentence(QUIET, large) == load_sentence(large, None) != load_sentence(large | {"share": 0.5})


@pytest.mark.parametrize("record", [None, 1.5, [0.5, 2], {}, {"share": 0.5}, {"share": "all", "processes": 1}])
def test_other_records_are_ignored(record):
    assert load_sentence(record) is None and busiest(record, QUIET) == QUIET
