"""Progress lines with an injected clock, also without progress calls."""

import sys

import pytest

from sequoia_core.command_line.progress import ProgressLines, _print_due_lines, show_progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def said():
    return []


@pytest.fixture
def lines(clock, said):
    return ProgressLines(clock=clock, say=said.append)


def test_a_line_with_the_remaining_time_is_printed_every_ten_seconds(lines, clock, said):
    for second in range(21):
        clock.now = 100.0 + second
        lines(second / 80, f"prompt {1 + second // 10} of 8")
    assert said == ["12%, prompt 2 of 8, 10 s, about 70 s left", "25%, prompt 3 of 8, 20 s, about 60 s left"]


def test_the_estimate_restarts_with_each_part(lines, clock, said):
    lines(0.5, "prompt 5 of 8")
    clock.now += 20
    lines(0.75, "prompt 7 of 8")
    clock.now += 100
    lines(0.0, "replaying")  # another part begins
    clock.now += 30
    lines(0.2, "replaying")
    assert said == [
        "75%, prompt 7 of 8, 20 s, about 20 s left",
        "0%, replaying, 2 min",
        "20%, replaying, 2 min, about 2 min left",
    ]


def test_lines_are_printed_without_progress_calls(lines, clock, said):
    waits = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        clock.now += seconds
        return len(waits) == 4

    _print_due_lines(lines, wait)
    assert said == [f"starting, {second} s" for second in (10, 20, 30)]
    lines = ProgressLines(clock=clock, say=said.append, doing="loading the models")
    clock.now += 12
    lines.tick()
    assert said[3:] == ["loading the models, 12 s"]


@pytest.mark.parametrize(("terminal", "as_json", "bar"), [(True, False, True), (True, True, False)])
def test_terminals_show_a_bar_unless_json_is_requested(terminal, as_json, bar, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with pytest.raises(ValueError, match="bad"), show_progress(as_json) as progress:
        progress(0.5, "prompt 2 of 3")
        progress(1.0, "prompt 3 of 3")
        raise ValueError("bad")
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == (f"\r  50% {'prompt 2 of 3':<50}\r 100% {'prompt 3 of 3':<50}\n" if bar else "")
