"""Formatting of figures."""

import pytest

from ui.phrases import between, change, count, in_parentheses, interval, shape, times, times_between


def test_figures_are_formatted() -> None:
    assert between(1.944, 2.96, unit="×") == "1.94 to 2.96×"
    assert between(13, 13, "{}") == "13"
    assert interval(0.5, 0.525, "{:.1%}") == "95%: 50.0% to 52.5%"
    assert interval(None, None) == "no interval" and in_parentheses(None, None) == ""
    assert in_parentheses(1, 2, "{}") == " (1 to 2)"
    assert [count(n, "step") for n in (0, 1, 1024)] == ["0 steps", "1 step", "1,024 steps"]
    assert [count(n, "child", "children") for n in (1, 2)] == ["1 child", "2 children"]
    assert shape(1024, 22) == "n = 1,024, d = 22"


@pytest.mark.parametrize(
    ("value", "three", "two"),
    [
        (2.5449, "2.54×", "2.5×"),
        (12.345, "12.3×", "12×"),
        (9.996, "10.0×", "10×"),
        (0.7449, "0.74×", "0.74×"),
        (0.0949, "0.09×", "0.09×"),
        (0.0, "0.00×", "0.0×"),
        (104.2, "104×", "104×"),
        (1234.5, "1,234×", "1,234×"),
    ],
)
def test_multiples_have_at_most_three_digits_and_two_decimals(value: float, three: str, two: str) -> None:
    assert times(value) == three and times(value, 2) == two


def test_ranges_of_multiples() -> None:
    assert times_between(1.94, 2.41, 2) == "1.9 to 2.4×" and times_between(9.9, 104) == "9.90 to 104×"
    assert times_between(2.49, 2.51, 2) == "2.5×"


def test_changes_beyond_a_doubling_are_multiples() -> None:
    ratios = {1.12: "+12%", 0.2: "-80%", 1.996: "+100%", 2.0: "2.00×", 16.15: "16.1×"}
    assert {ratio: change(ratio) for ratio in ratios} == ratios
