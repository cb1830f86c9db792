"""Untrusted text is shown literally, never as markdown."""

import pytest

from ui.markdown import WORD_JOINER, escaped, for_chart, safe_name

IMAGE = "![](http://example.org/x.png)"


def test_markup_is_escaped() -> None:
    assert escaped(IMAGE).replace(WORD_JOINER, "") == r"\!\[\](http://example.org/x.png)"
    assert escaped("$x$ `y` *z* _w_ a<b>") == r"\$x\$ \`y\` \*z\* \_w\_ a\<b\>"
    assert escaped("my file-1.csv: found 3, expected 2") == "my file-1.csv: found 3, expected 2"
    assert escaped("&lt;img&gt;") == r"\&lt;img\&gt;"


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://example.org", ("http:", "//example.org")),
        ("www.example.org", ("www", ".example.org")),
        ("mail a@b.org", ("mail a@", "b.org")),
        (":material/home: :red :+1:", (":", "material/home: :", "red :", "+1:")),
        (":streamlit:", (":", "streamlit:")),
        ("a -- b", ("a -", "- b")),
    ],
)
def test_patterns_that_the_client_replaces_are_broken_up(text: str, parts: tuple[str, ...]) -> None:
    assert escaped(text) == WORD_JOINER.join(parts)
    assert escaped(text).replace(WORD_JOINER, "").replace("\\", "") == text


def test_block_markup_line_breaks_and_length() -> None:
    assert escaped("1. one") == r"1\. one" and escaped("12) one") == r"12\) one" and escaped("2 ones") == "2 ones"
    assert escaped("- one") == r"\- one" and escaped("+ one") == r"\+ one" and escaped("# one") == r"\# one"
    assert escaped("a\n\n    b\r\n# c\u2028d\te") == r"a      b  \# c d e"
    assert escaped("x" * 5000, 10) == "xxxxxxxxx…" and len(escaped("*" * 5000)) <= 2000
    assert escaped("a\0b\u202ec\ud800d") == "a\ufffdb\ufffdc\ufffdd"
    escaped("\ud800\udfff").encode()
    assert escaped("שלום 👍 ü") == "שלום 👍 ü" and escaped("") == ""


def test_names_keep_harmless_characters() -> None:
    assert safe_name("a [b](c) `d`.csv") == "a -b-(c) -d-.csv"
    assert safe_name("my_vector-2.json") == "my_vector-2.json" and safe_name("__init__.py") == "init--.py"
    assert safe_name("www.example.org.csv") == "www-example.org.csv" and safe_name("a@b.csv") == "a-b.csv"
    assert safe_name("=1+1.csv") == "1+1.csv" and safe_name("&lt;.csv") == "lt;.csv"
    assert safe_name("grüße 模型 👍.csv") == "grüße 模型 👍.csv" and safe_name("\u202e\0\n") == "unnamed"
    assert len(safe_name("x" * 9999)) == 120
    for name in (IMAGE, "<b>x</b>", "$x$", ":red[x]", "%{x}", "a\nb", "[x]: y", "|x|", "~x~"):
        assert escaped(safe_name(name)).replace("\\_", "_").replace(WORD_JOINER, "") == safe_name(name), name


def test_charts_show_tags_and_fields_literally() -> None:
    assert for_chart("<b>x</b> & <a href='y'>") == "&lt;b&gt;x&lt;/b&gt; &amp; &lt;a href='y'&gt;"
    assert "%{" not in for_chart("%{x}") and "$x$" not in for_chart("$x$")
    assert for_chart("y" * 999, 10) == "yyyyyyyyy…"
