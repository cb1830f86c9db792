"""Times of a target's passes: taken once, kept, asked for only where nobody sized the trees."""

from dataclasses import replace

import numpy as np
import pytest

from sequoia_core import LookupTree, decode
from sequoia_core.decoding import pass_times as module
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.pass_times import SIZES, pass_times
from tests.conftest import pair_of

PROMPT = [5, 6, 7, 8] * 6


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module._timed, "__defaults__", (SIZES, 0.01))
    monkeypatch.setattr(module, "CHECK_SEC", 0.0)
    return tmp_path / "sequoia-studio" / "pass-times"


def test_times_are_kept_for_the_next_run_and_a_broken_file_is_timed_again(tiny_target, cache):
    found = pass_times(tiny_target)
    assert found.sizes.tolist() == list(SIZES) and (found.verify_sec > 0).all()
    again = pass_times(tiny_target)
    assert np.array_equal(again.verify_sec, found.verify_sec)  # no clock shows the same times twice
    (kept,) = cache.iterdir()
    kept.write_text("{")
    assert not np.array_equal(pass_times(tiny_target).verify_sec, found.verify_sec)
    assert kept.read_text() != "{"


@pytest.mark.parametrize(("now", "anew"), [(0.4, True), (0.6, False), (30.0, False)])
def test_times_of_a_busy_machine_are_taken_anew(tiny_target, cache, monkeypatch, now, anew):
    """A pass that takes longer than it did says that the machine is busy now: the kept times stay."""
    times = {"kept": 1.0}
    monkeypatch.setattr(module, "_timed", lambda target, sizes=SIZES, *budget: (128, times["kept"] * np.array(sizes)))
    found = pass_times(tiny_target)
    (kept,) = cache.iterdir()
    assert found.verify_sec[-1] == 16 and found.meta["kept_in"] == str(kept)
    times["kept"] = now
    again = pass_times(tiny_target)
    assert again.verify_sec[-1] == pytest.approx(16 * now if anew else 16)
    assert (again.meta["timed"] >= found.meta["timed"]) and pass_times(tiny_target).verify_sec[-1] == again.verify_sec[
        -1
    ]


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_next_timing(tiny_target, cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("in the way")
    assert pass_times(tiny_target).max_size == SIZES[-1]
    assert cache.read_text() == "in the way"


def test_only_trees_that_nobody_sized_ask_for_times(tiny_target, cache):
    options = {"pair": pair_of(tiny_target), "max_new_tokens": 8}
    plain = [step.new_tokens for step in decode(PROMPT, tree=LookupTree(TextIndex(), max_size=4), **options)]
    assert not cache.exists()
    tree = replace(LookupTree(TextIndex()), index=TextIndex())  # as a session's earlier answers are looked through
    found = [step.new_tokens for step in decode(PROMPT, tree=tree, **options)]
    assert len(list(cache.iterdir())) == 1
    assert sum(map(list, found), []) == sum(map(list, plain), [])


def test_a_target_whose_wider_passes_cost_as_much_as_more_tokens_is_not_given_trees(tiny_target, cache, monkeypatch):
    monkeypatch.setattr(module, "_timed", lambda target, *few: (128, np.array([1.0, 2.0, 4.0, 8.0, 16.0])))
    tree = LookupTree(TextIndex()).timed(tiny_target)
    steps = list(decode(PROMPT, pair_of(tiny_target), tree=tree, max_new_tokens=16))
    assert all(step.tree.size == 1 for step in steps)
