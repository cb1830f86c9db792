"""How figures are written: by hand, and that no page writes them in a way of its own."""

import re

import pytest

from tests.app.conftest import ROOT
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


@pytest.mark.parametrize(
    ("way", "pattern"),
    {
        "a space before the percent sign": r"\d %(?!\{)[ ,.:;]",
        "an interval of its own": r"low[^{}]*\} ?(?:to|–|,) ?\{[^{}]*high|\[\{[^{}]*low",
        "a plural of its own": r"['\"]s['\"] (?:\*|if)",
        "an arrow in ASCII": r"[\"' ]<- ",
    }.items(),
)
def test_no_page_has_a_way_of_its_own(way: str, pattern: str) -> None:
    files = [path for folder in ("pages", "ui") for path in (ROOT / folder).rglob("*.py") if path.name != "phrases.py"]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert not found, f"{way}:\n" + "\n".join(found)
