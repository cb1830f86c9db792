"""Draft heads that read the target's hidden states: EAGLE-3, MTP, DFlash and P-EAGLE.

Within this package, each module imports only those listed before it:

    eagle3, blocks, head_config, head_files, mtp, features, block_session, compiled_head, session, head_wiring, loading,
    source
"""

NEEDS = ("cpu_kernels",)
PROVIDES = {
    "head_remarks": ["head_wiring:find_better_wiring"],
    "model_sources": ["source:claim_draft_head"],
}
