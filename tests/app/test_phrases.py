"""How figures are written: by hand."""

from ui.phrases import beside, between, count, interval, shape


def test_they_read_as_people_write_them() -> None:
    assert between(1.944, 2.96, unit="×") == "1.94 to 2.96×"
    assert between(13, 13, "{}") == "13"
    assert interval(0.5, 0.525, "{:.1%}") == "95%: 50.0% to 52.5%"
    assert interval(None, None) == "no interval" and beside(None, None) == ""
    assert beside(1, 2, "{}") == " (1 to 2)"
    assert [count(n, "step") for n in (0, 1, 1024)] == ["0 steps", "1 step", "1,024 steps"]
    assert [count(n, "child", "children") for n in (1, 2)] == ["1 child", "2 children"]
    assert shape(1024, 22) == "n = 1,024, d = 22"
