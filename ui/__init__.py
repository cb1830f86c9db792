"""What the pages show and keep; no maths of its own.

Floors; a folder or file imports only those of the floors below its own. A test enforces it.

    words      glossary, markdown, phrases, token_text, tree_layout, verifier_names
    pictures   cards, charts, token_tree, uploads
    session    session
    choices    controls, prompts, record_files, scenarios, weights_place
    runs       menu, runs
    jobs       jobs
    measuring  measuring, sidebar
    frame      page_setup
    pages      decode, draft, exact, machine, overview, race, server, tree
"""

import sequoia_core.native.short_spins  # noqa: F401  before torch, whose threads read their settings once
