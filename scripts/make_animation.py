"""Make the moving picture of the README: the first screen, one answer decoded without a draft and with a token tree.

python scripts/make_animation.py            # writes docs/screenshots/run.webp; needs Chromium
"""

import argparse
import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from ui.runs.run_files import load_run
from ui.session import shipped
from ui.token_tree import standalone, two_ways

ROOT = Path(__file__).resolve().parent.parent
SIZE = {"width": 1000, "height": 640}
TICK_MS = 200  # of the component's clock, between two pictures
LAST_MS = 3000  # that the last picture stays
MAX_BYTES = 3_000_000
STILL = "* { transition: none !important; animation: none !important; }"


def frames(run: dict) -> list[Image.Image]:
    """Return pictures of the whole playback, as the browser draws them."""
    data = two_ways.about(run, [], label="")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "run.html"
        file.write_bytes(
            standalone.as_page(
                data, title="The same text in fewer passes", component="twoWays", body=two_ways.HTML,
                css=two_ways.STYLE, script=two_ways.SCRIPT,
            )
        )  # fmt: skip
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), headless=True)
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
        page.clock.install()  # the component plays by this clock
        page.goto(file.as_uri())
        page.evaluate("css => document.styleSheets[0].insertRule(css)", STILL)
        taken = []
        while not taken or page.locator(".scrub").input_value() != "1000":
            page.clock.run_for(TICK_MS)
            taken.append(Image.open(io.BytesIO(page.locator("main").screenshot())).convert("RGB"))
        browser.close()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=next(iter(shipped.runs().values())))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "screenshots" / "run.webp")
    options = parser.parse_args()
    pictures = frames(load_run(options.run))
    durations = [TICK_MS] * (len(pictures) - 1) + [LAST_MS]
    pictures[0].save(
        options.out, save_all=True, append_images=pictures[1:], duration=durations, loop=0, quality=60, method=6
    )
    size = options.out.stat().st_size
    print(f"{options.out}: {len(pictures)} pictures, {size / 1e6:.2f} MB")
    if size > MAX_BYTES:
        raise SystemExit(f"found {size:,} bytes, expected at most {MAX_BYTES:,}")


if __name__ == "__main__":
    main()
