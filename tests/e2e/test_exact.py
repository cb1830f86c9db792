"""Recorded evidence in Chromium, shown at once."""

import pytest

from tests.e2e.browser import both_themes, go, open_section, settle


@pytest.mark.timeout(600)
def test_recorded_evidence_is_shown_before_anything_runs(page, server, shot):
    page.goto(server)
    settle(page)
    go(page, "Is it exact?", "Verifiers")
    page.get_by_text("recorded on").first.wait_for()
    page.get_by_test_id("stDataFrame").first.wait_for()
    both_themes(page, shot, "robustness", height=1_400)
    for name in ("Losslessness", "Guarantees"):
        open_section(page, name)
        page.wait_for_timeout(1_000)
    assert "robustness_section=Guarantees" in page.url
