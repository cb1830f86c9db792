"""Create the animation in the README: an answer decoded without a draft and with a token tree.

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
TICK_MS = 200  # frame duration, on the component's clock
LAST_MS = 3000  # duration of the last frame
MAX_BYTES = 3_000_000
STILL = "* { transition: none !important; animation: none !important; }"


def frames(run: dict) -> list[Image.Image]:
    """Return the frames of the whole playback."""
    data = two_ways.comparison_data(run, [], label="")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        file = Path(folder) / "run.html"
        file.write_bytes(
            standalone.as_page(
                data,
                standalone.Part("twoWays", two_ways.HTML, two_ways.SCRIPT),
                title="The same text in fewer passes",
                css=two_ways.STYLE,
            )
        )
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), headless=True)
        page = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
        page.clock.install()  # Controls the clock that the component uses.
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
    print(f"{options.out}: {len(pictures)} frames, {size / 1e6:.2f} MB")
    if size > MAX_BYTES:
        raise SystemExit(f"{options.out}: found {size:,} bytes, expected at most {MAX_BYTES:,}")


if __name__ == "__main__":
    main()
