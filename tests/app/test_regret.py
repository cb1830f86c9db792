"""The regret of using one vector's tree under another."""

import numpy as np
import pytest
from plotly.colors import unlabel_rgb
from streamlit.testing.v1 import AppTest

from sequoia_core import AcceptanceVector
from sequoia_core.trees.comparison import regret_matrix
from tests.app.conftest import TIMEOUT_SEC, metrics, settled, vector
from ui.tree.regret import shade

pytestmark = pytest.mark.usefixtures("assets")


def opened(**query: str) -> AppTest:
    """Draw only this section."""

    def part() -> None:
        from ui.tree import regret

        regret.regret_section()

    page = AppTest.from_function(part, default_timeout=TIMEOUT_SEC)
    page.query_params |= query
    return settled(page.run())


def test_the_matrix_equals_the_cores(assets) -> None:
    AcceptanceVector(np.array([0.35, 0.3, 0.2, 0.1])).save(assets / "acceptance" / "wide.json")
    page = opened(regret_n="20", regret_d="5")
    assert page.pills(key="regret_vectors").value == ["demo-t0", "other"]  # "wide" names no models
    settled(page.pills(key="regret_vectors").set_value(["demo-t0", "other", "wide"]).run())
    vectors = [vector(), vector(0.4, 5), AcceptanceVector(np.array([0.35, 0.3, 0.2, 0.1]))]
    regret = regret_matrix(vectors, size=20, depth=5)
    assert regret.lost.max() > 0.01
    shown = metrics(page)
    assert shown["Largest regret"] == (
        f"{regret.lost.max():.3f} tokens/step",
        f"{regret.share[regret.worst]:.1%} of that vector's optimum",
    )
    assert page.dataframe[0].value.to_numpy() == pytest.approx(regret.lost)
    settled(page.pills(key="regret_vectors").set_value(["other"]).run())
    assert "at least two" in page.info[0].value and not page.dataframe


def test_the_text_of_a_loss_is_readable_on_its_colour() -> None:
    def luminance(colour: tuple[float, ...]) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))

    for lost in np.geomspace(0.0005, 5.0, 200):
        colour, text = (rule.split(": ")[1] for rule in shade(lost).split("; "))
        background = tuple(value / 255 for value in unlabel_rgb(colour))
        assert text == "white" and 1.05 / (luminance(background) + 0.05) >= 4.5
    assert shade(0.0) == ""  # the theme's own colours
