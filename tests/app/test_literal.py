"""Names and causes from outside: shown as they are, never as markdown."""

from __future__ import annotations

import pytest

from tests.app.conftest import open_page, settled
from ui.literal import plain, safe_name

IMAGE = "![](http://example.org/x.png)"


def test_markup_is_escaped_and_names_lose_it() -> None:
    assert plain(IMAGE) == r"\!\[\](http://example.org/x.png)" and plain("$x$ `y` *z*") == r"\$x\$ \`y\` \*z\*"
    assert plain("my file-1.csv: found 3, expected 2") == "my file-1.csv: found 3, expected 2"
    assert safe_name("a [b](c) `d`.csv") == "a _b_(c) _d_.csv"


@pytest.mark.usefixtures("assets")
@pytest.mark.parametrize("content", [b"0.7\n", IMAGE.encode(), f'{{"probs": "{IMAGE}"}}'.encode()])
def test_an_upload_cannot_put_markdown_on_the_page(content: bytes) -> None:
    page = open_page("acceptance")
    settled(page.segmented_control(key="acceptance_way").set_value("Upload").run())
    page.file_uploader(key="acceptance_file").upload(f"{IMAGE.replace('/', '_')}.csv", content)
    settled(page.run())
    for element in [*page.markdown, *page.error, *page.success, *page.caption, *page.warning]:
        assert "![" not in element.value
