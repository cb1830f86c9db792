"""Draft heads that read the target's hidden states: EAGLE-3 and MTP.

Within this package, each module imports only those listed before it:

    eagle3, head_config, head_files, mtp, features, compiled_head, session, head_wiring, loading, source
"""

NEEDS = ("cpu_kernels",)
PROVIDES = {
    "head_remarks": ["head_wiring:find_better_wiring"],
    "model_sources": ["source:claim_draft_head"],
}
