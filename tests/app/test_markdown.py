"""Names and causes from outside: shown as they are, never as markdown."""

import pytest

from ui.markdown import UNSEEN, escaped, for_chart, safe_name

IMAGE = "![](http://example.org/x.png)"


def test_markup_is_escaped() -> None:
    assert escaped(IMAGE).replace(UNSEEN, "") == r"\!\[\](http://example.org/x.png)"
    assert escaped("$x$ `y` *z* _w_ a<b>") == r"\$x\$ \`y\` \*z\* \_w\_ a\<b\>"
    assert escaped("my file-1.csv: found 3, expected 2") == "my file-1.csv: found 3, expected 2"
    assert escaped("&lt;img&gt;") == r"\&lt;img\&gt;"


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://example.org", ("http:", "//example.org")),
        ("www.example.org", ("www", ".example.org")),
        ("WwW.example.org", ("WwW", ".example.org")),
        ("mail a@b.org", ("mail a@", "b.org")),
        (":material/home: :red :+1:", (":", "material/home: :", "red :", "+1:")),
        (":streamlit:", (":", "streamlit:")),
        ("a -- b", ("a -", "- b")),
    ],
)
def test_what_the_client_looks_for_after_escapes_are_gone_is_kept_apart(text: str, parts: tuple[str, ...]) -> None:
    assert escaped(text) == UNSEEN.join(parts)
    assert escaped(text).replace(UNSEEN, "").replace("\\", "") == text


def test_blocks_lines_and_length() -> None:
    assert escaped("1. one") == r"1\. one" and escaped("12) one") == r"12\) one" and escaped("2 ones") == "2 ones"
    assert escaped("- one") == r"\- one" and escaped("+ one") == r"\+ one" and escaped("# one") == r"\# one"
    assert escaped("a\n\n    b\r\n# c\u2028d\te") == r"a      b  \# c d e"
    assert escaped("x" * 5000, 10) == "xxxxxxxxx…" and len(escaped("*" * 5000)) <= 2000
    assert escaped("a\0b\u202ec\ud800d") == "a\ufffdb\ufffdc\ufffdd"
    escaped("\ud800\udfff").encode()
    assert escaped("שלום 👍 ü") == "שלום 👍 ü" and escaped("") == ""


def test_names_keep_what_is_harmless() -> None:
    assert safe_name("a [b](c) `d`.csv") == "a -b-(c) -d-.csv"
    assert safe_name("my_vector-2.json") == "my_vector-2.json" and safe_name("__init__.py") == "init--.py"
    assert safe_name("www.example.org.csv") == "www-example.org.csv" and safe_name("a@b.csv") == "a-b.csv"
    assert safe_name("=1+1.csv") == "1+1.csv" and safe_name("&lt;.csv") == "lt;.csv"
    assert safe_name("grüße 模型 👍.csv") == "grüße 模型 👍.csv" and safe_name("\u202e\0\n") == "unnamed"
    assert len(safe_name("x" * 9999)) == 120
    for name in (IMAGE, "<b>x</b>", "$x$", ":red[x]", "%{x}", "a\nb", "[x]: y", "|x|", "~x~"):
        assert escaped(safe_name(name)).replace("\\_", "_").replace(UNSEEN, "") == safe_name(name), name


def test_charts_show_tags_and_fields() -> None:
    assert for_chart("<b>x</b> & <a href='y'>") == "&lt;b&gt;x&lt;/b&gt; &amp; &lt;a href='y'&gt;"
    assert "%{" not in for_chart("%{x}") and "$x$" not in for_chart("$x$")
    assert for_chart("y" * 999, 10) == "yyyyyyyyy…"
