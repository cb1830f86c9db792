"""The loop that all studies share: order, progress, cancel, going on."""

import threading

import pytest

from sequoia_core.files.faults import Cancelled
from sequoia_core.studies.prompt_loop import one_by_one, require_a_prompt


def test_each_is_measured_in_order_and_progress_is_of_all():
    heard = []

    def measure(number, report):
        report(0.5)
        return number * 10

    found = list(one_by_one(4, measure, done=2, noun="sample", progress=lambda *said: heard.append(said)))
    assert found == [20, 30]
    assert heard == [(2.5 / 4, "sample 3 of 4"), (3.5 / 4, "sample 4 of 4")]


def test_what_is_complete_at_a_cancel_is_kept():
    cancel, measured = threading.Event(), []

    def measure(number, report):
        measured.append(number)
        report(1.0)
        return number

    stop = lambda fraction, message: fraction == 0.5 and cancel.set()  # noqa: E731
    assert list(one_by_one(4, measure, progress=stop, cancel=cancel)) == [0, 1] == measured


def test_a_prompt_that_was_cut_ends_the_loop():
    assert list(one_by_one(4, lambda number, report: None if number == 2 else number)) == [0, 1]


def test_nothing_complete_is_a_cancel():
    with pytest.raises(Cancelled, match="acceptance: cancelled before the first prompt was complete"):
        require_a_prompt([], "acceptance")
    require_a_prompt([1], "acceptance")
