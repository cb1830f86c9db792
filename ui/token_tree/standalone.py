"""Export of a run as one HTML file that shows the live tree without a server or network connection."""

import html
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ui.token_tree import HTML, SCRIPT, run_about, run_timeline, to_wire, whole_shapes

THEME_FILE = Path(__file__).resolve().parents[2] / ".streamlit" / "config.toml"
TINTED_COLOURS = ("green", "red", "violet")
SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{colours}
body {{ margin: 0; padding: 8px 24px 16px; background: var(--st-background-color); }}
h1 {{ font: 600 20px var(--st-font); margin: 8px 0; }}
h1, .facts {{ color: var(--st-text-color); overflow-wrap: anywhere; }}
.facts {{ font: 13px var(--st-font); margin: 8px 0; }}
.facts dl {{ display: flex; flex-wrap: wrap; gap: 4px 32px; margin: 0 0 8px; }}
.facts dd {{ margin: 0; font-size: 24px; font-weight: 600; font-variant-numeric: tabular-nums; }}
.facts p {{ margin: 0; }}
{css}
.tt:not(.timeline) {{ --high: max(420px, 100vh - 270px); }}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
{head}
{parts}
</main>
<script type="application/json" id="data">{data}</script>
{scripts}
</body>
</html>
"""
PART = """<script type="module">
{script}
const data = JSON.parse(document.getElementById("data").textContent)
{component}({{ data: {given}, parentElement: document.getElementById("{component}"), setTriggerValue: () => {{}} }})
</script>"""


@dataclass(frozen=True, slots=True)
class Part:
    """A component of a saved page: its JavaScript function, HTML, script, and the expression for its data."""

    component: str
    body: str
    script: str
    given: str = "data"


def run_to_html(run: Mapping[str, Any], *, title: str, figures: Mapping[str, str], settings: str) -> bytes:
    """Return a run's tree and timeline as a self-contained HTML page, which plays it from its first step.

    In the JSON, `<` is escaped so that the run's text cannot close the script element.

    Args:
        figures: formatted values by label.
        settings: a description of the run, shown below its figures.
    """
    values = "".join(
        f"<div><dt>{html.escape(label)}</dt><dd>{html.escape(value)}</dd></div>" for label, value in figures.items()
    )
    head = f'<div class="facts"><dl>{values}</dl><p>{html.escape(settings)}</p></div>'
    data = {
        "epoch": run["id"],
        "about": run_about(run) | {"at": 0, "plays": True},
        "shapes": whole_shapes(run["shapes"]),
        "from": 0,
        "steps": run["steps"],
        "total": len(run["steps"]),
        "running": False,
        "waiting": "",
        "baseline": run["baseline"],
    }
    tree = Part("liveTree", HTML, SCRIPT)
    timeline = Part(
        "runTimeline", run_timeline.HTML, run_timeline.SCRIPT, "{ runs: [data], running: false, plays: true }"
    )
    return as_page(data, tree, timeline, title=title, css=run_timeline.STYLE, head=head)


def as_page(data: Mapping[str, Any], *parts: Part, title: str, css: str, head: str = "") -> bytes:
    """Return components and their data as a self-contained HTML page; `head` is HTML above the components."""
    page = PAGE.format(
        policy=SECURITY_POLICY,
        title=html.escape(title),
        head=head,
        colours=_colours(),
        css=css,
        parts="\n".join(f'<div id="{part.component}">{part.body}</div>' for part in parts),
        data=json.dumps(to_wire(data), allow_nan=False).replace("<", "\\u003c"),
        scripts="\n".join(PART.format(**asdict(part)) for part in parts),
    )
    return page.encode()


def _colours() -> str:
    """Return the app's light and dark colours as Streamlit's CSS variables."""
    theme = tomllib.loads(THEME_FILE.read_text(encoding="utf-8"))["theme"]
    light, dark = (_variables(theme[scheme]) for scheme in ("light", "dark"))
    fixed = (
        f"--st-font: {theme['font']}; --st-code-font: {theme['codeFont']}; "
        f"--st-base-radius: {theme['baseRadius']}; --st-button-radius: {theme['baseRadius']};"
    )
    always = f":root {{ color-scheme: light dark; {fixed} {light} }}"
    return f"{always}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _variables(theme: Mapping[str, str]) -> str:
    colours = {
        re.sub("([A-Z])", r"-\1", name).lower(): value for name, value in theme.items() if name.endswith("Color")
    }
    for name in TINTED_COLOURS:
        tint = theme[f"{name}Color"]
        colours[f"{name}-background-color"] = f"color-mix(in srgb, {tint} 14%, transparent)"
        colours[f"{name}-text-color"] = f"color-mix(in srgb, {tint} 70%, {theme['textColor']})"
    return " ".join(f"--st-{name}: {value};" for name, value in colours.items())
