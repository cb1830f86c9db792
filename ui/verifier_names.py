"""Names and descriptions of verifiers and of the methods they are compared with."""

from sequoia_core.decoding.tree_kinds import TREE_KINDS

VERIFIER_NAMES = {
    "sequoia": "Sequoia",
    "specinfer": "SpecInfer",
    "topk": "Top-k",
    "traversal": "Traversal",
    "greedy": "Any verifier",
}
RIVALS = ("specinfer", "topk")  # verifiers compared with Sequoia
COMPARED_TREES = {  # trees compared with the current tree
    "specinfer_tree": "SpecInfer 5 × 8 trees",
} | {name: f"{kind.title} trees" for name, kind in TREE_KINDS.items() if kind.looks_up}
COMPARED_NAMES = VERIFIER_NAMES | COMPARED_TREES
DRAWING_RULES = {
    "sequoia": "Draws children without replacement; after a rejection the token is removed from both rows.",
    "specinfer": "Draws children with replacement, so a wrong token can be proposed twice.",
    "topk": "Always tries the draft's most likely tokens and ignores how likely each one is.",
}
DRAWING_PHRASES = {  # each completes "children …"
    "sequoia": "drawn without replacement",
    "specinfer": "drawn with replacement",
    "topk": "that are the draft's most likely tokens",
    "traversal": "drawn without replacement",
    "greedy": "",
}
AFTER_REJECTION = {  # R and D are those of the decision table
    "sequoia": "Then R ← normalise(max(R − D, 0)), and D loses this token.",
    "specinfer": "Then R ← normalise(max(R − D, 0)); D is unchanged, so the token can be proposed again.",
    "topk": "Then R loses this token and is scaled to sum to 1.",
    "traversal": "R is the probability of accepting this token and its path, computed from the leaves upwards.",
    "greedy": "",
}
