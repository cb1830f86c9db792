"""Make the moving picture of the README: the recorded run, played decision by decision.

python scripts/make_animation.py            # writes docs/screenshots/run.webp; needs Chromium
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from ui.runs.run_files import load_run
from ui.session import shipped
from ui.token_tree.standalone import run_to_html

ROOT = Path(__file__).resolve().parent.parent

SIZE = {"width": 1000, "height": 720}
TICK_MS = 750  # of the component, from decision to decision
SHOWN_MS = 700
MAX_BYTES = 3_000_000
STILL = "* { transition: none !important; animation: none !important; }"


def frames(run: dict, steps: int) -> list[Image.Image]:
    """Return a picture of every decision of the first steps of a run, as the browser draws them."""
    count = sum(len(step["trials"]) + 3 for step in run["steps"][:steps])  # drafted, verified, each decision, committed
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "run.html"
        file.write_bytes(run_to_html(run, title="Draft, verify, commit: a recorded run", tour=True))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), headless=True)
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
        page.clock.install()  # the component plays by this clock, one tick for each picture
        page.goto(file.as_uri())
        page.evaluate("css => document.styleSheets[0].insertRule(css)", STILL)
        taken = []
        for _ in range(count):
            taken.append(Image.open(io.BytesIO(page.locator("main").screenshot())).convert("RGB"))
            page.clock.run_for(TICK_MS)
        browser.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=next(iter(shipped.runs().values())))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "screenshots" / "run.webp")
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    pictures = frames(load_run(options.run), options.steps)
    pictures[0].save(
        options.out, save_all=True, append_images=pictures[1:], duration=SHOWN_MS, loop=0, quality=60, method=6
    )
    size = options.out.stat().st_size
    print(f"{options.out}: {len(pictures)} pictures, {size / 1e6:.2f} MB")
    if size > MAX_BYTES:
        raise SystemExit(f"found {size:,} bytes, expected at most {MAX_BYTES:,}: take fewer steps")


if __name__ == "__main__":
    main()
