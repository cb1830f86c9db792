"""axe-core finds nothing serious on any page in either theme."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.conftest import PAGES

from .browser import settle

SEVERE = ("serious", "critical")


def serious_faults(page) -> list[str]:
    """Return what axe-core calls serious or critical: the rule, the element, what is wrong with it."""
    from axe_playwright_python.sync_playwright import Axe

    return [
        f"{fault['id']}: {' '.join(map(str, node['target']))[-160:]}: {' '.join(node['failureSummary'].split())}"
        for fault in Axe().run(page).response["violations"]
        if fault["impact"] in SEVERE
        for node in fault["nodes"]
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_nothing_serious_in_either_theme(path: Path, page, server) -> None:
    faults = []
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{server}/{'' if path.stem == 'overview' else path.stem}")
    settle(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.wait_for_timeout(1_500)  # charts are drawn after the script is done
        faults += [f"{scheme}: {fault}" for fault in serious_faults(page)]
    assert not faults, "\n".join(faults)
