"""A run as one HTML file that plays in the live tree, opened from disk, without a server or a network."""

import html
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ui.token_tree import CSS, HTML, SCRIPT, run_about, to_wire, whole_shapes

THEME_FILE = Path(__file__).resolve().parents[2] / ".streamlit" / "config.toml"
TINTED = ("green", "red", "violet")
PLAIN = ("blue", "orange", "yellow", "gray")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{colours}
body {{ margin: 0 auto; max-width: 1200px; padding: 16px; background: var(--st-background-color); }}
h1 {{ font: 600 20px var(--st-font); color: var(--st-text-color); }}
{css}
</style>
</head>
<body>
<main>
<h1>{title}</h1>
<div id="run">{body}</div>
</main>
<script type="application/json" id="data">{data}</script>
<script type="module">
{script}
{component}({{
  data: JSON.parse(document.getElementById("data").textContent),
  parentElement: document.getElementById("run"),
  setTriggerValue: () => {{}},
}})
</script>
</body>
</html>
"""


def run_to_html(run: Mapping[str, Any], *, title: str) -> bytes:
    """Return a run as a page that holds everything it needs, under that title.

    Texts of the run stand only in the JSON, where `<` is escaped so that none can end the script element.
    """
    data = {
        "epoch": run["id"],
        "about": run_about(run),
        "shapes": whole_shapes(run["shapes"]),
        "from": 0,
        "steps": run["steps"],
        "total": len(run["steps"]),
        "running": False,
        "waiting": "",
    }
    return as_page(data, title=title, component="liveTree", body=HTML, css=CSS, script=SCRIPT)


def as_page(data: Mapping[str, Any], *, title: str, component: str, body: str, css: str, script: str) -> bytes:
    """Return a component as a page of its own, with what it is told."""
    page = PAGE.format(
        policy=POLICY,
        title=html.escape(title),
        colours=_colours(),
        css=css,
        body=body,
        data=json.dumps(to_wire(data), allow_nan=False).replace("<", "\\u003c"),
        script=script,
        component=component,
    )
    return page.encode()


def _colours() -> str:
    """Return the app's colours, light and dark, under the names that Streamlit gives them."""
    theme = tomllib.loads(THEME_FILE.read_text(encoding="utf-8"))["theme"]
    light, dark = (_variables(theme[scheme]) for scheme in ("light", "dark"))
    fixed = (
        f"--st-font: {theme['font']}; --st-code-font: {theme['codeFont']}; "
        f"--st-base-radius: {theme['baseRadius']}; --st-button-radius: {theme['baseRadius']};"
    )
    always = f":root {{ color-scheme: light dark; {fixed} {light} }}"
    return f"{always}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _variables(theme: Mapping[str, str]) -> str:
    named = {
        "primary": theme["primaryColor"],
        "background": theme["backgroundColor"],
        "secondary-background": theme["secondaryBackgroundColor"],
        "text": theme["textColor"],
        "border": theme["borderColor"],
        "code-background": theme["codeBackgroundColor"],
        **{name: theme[f"{name}Color"] for name in (*TINTED, *PLAIN)},
        **{f"{name}-background": f"color-mix(in srgb, {theme[f'{name}Color']} 14%, transparent)" for name in TINTED},
        **{f"{name}-text": f"color-mix(in srgb, {theme[f'{name}Color']} 70%, {theme['textColor']})" for name in TINTED},
    }
    return " ".join(f"--st-{name}-color: {value};" for name, value in named.items())
