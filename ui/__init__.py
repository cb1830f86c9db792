"""The pages' widgets, figures and session state; computations are in the core.

Layers: a folder or file imports only from layers above its own in this list. A test enforces this.

    words      glossary, markdown, phrases, token_text, tree_layout, verifier_names
    pictures   cards, charts, token_tree, uploads
    files      kept
    session    session
    choices    controls, prompts, vector_input, weight_location
    runs       menu, runs
    jobs       jobs
    measuring  measuring, sidebar
    plan       plan
    frame      page_setup
    pages      decode, draft, exact, machine, overview, race, server, tree
"""

import sequoia_core.models.short_spins  # noqa: F401  before torch reads its thread settings
