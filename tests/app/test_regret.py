"""One tree for all: trees designed for one vector, used under another."""

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from sequoia_core import AcceptanceVector
from sequoia_core.design.tree_comparison import regret_matrix
from tests.app.conftest import TIMEOUT_SEC, metrics, settled, vector

pytestmark = pytest.mark.usefixtures("assets")


def opened(**query: str) -> AppTest:
    """Draw the part of the tree page by itself."""

    def part() -> None:
        from ui.tree import regret

        regret.section()

    page = AppTest.from_function(part, default_timeout=TIMEOUT_SEC)
    page.query_params |= query
    return settled(page.run())


def test_the_matrix_is_that_of_the_core(assets) -> None:
    AcceptanceVector(np.array([0.35, 0.3, 0.2, 0.1])).save(assets / "acceptance" / "wide.json")
    page = opened(regret_n="20", regret_d="5")
    assert page.pills(key="regret_vectors").value == ["demo-t0", "other", "wide"]
    vectors = [vector(), vector(0.4, 5), AcceptanceVector(np.array([0.35, 0.3, 0.2, 0.1]))]
    regret = regret_matrix(vectors, size=20, depth=5)
    assert regret.lost.max() > 0.01
    shown = metrics(page)
    assert shown["Largest regret"] == (
        f"{regret.lost.max():.3f} tokens/step",
        f"{regret.share[regret.worst]:.1%} of that vector's best",
    )
    assert shown["Safest tree"][0] == ["demo-t0", "other", "wide"][regret.safest]
    assert f"{regret.lost[0, 2]:.3f}" in page.get("plotly_chart")[0].proto.spec
    assert page.get("download_button")
    settled(page.pills(key="regret_vectors").set_value(["other"]).run())
    assert "at least two" in page.info[0].value and not page.get("plotly_chart")
