"""What the verifiers are called, how each draws children and what it does after a rejection, for people."""

from sequoia_core.decoding.tree_kinds import TREE_KINDS

NAMES = {
    "sequoia": "Sequoia",
    "specinfer": "SpecInfer",
    "topk": "Top-k",
    "traversal": "Traversal",
    "greedy": "Any verifier",
}
RIVALS = ("specinfer", "topk")  # that Sequoia is compared with
BESIDE = {  # kinds of tree that are compared with the one in use
    "specinfer_tree": "SpecInfer 5 × 8 trees",
} | {name: f"{kind.title} trees" for name, kind in TREE_KINDS.items() if kind.looks_up}
OPTIMA = {"optimum": "Best possible", "optimum_with_replacement": "Best possible with replacement"}
COMPARED = NAMES | BESIDE | OPTIMA
DRAWS = {
    "sequoia": "Draws children without replacement; after a rejection both rows give up what was tried.",
    "specinfer": "Draws children with replacement: a wrong token can be offered twice.",
    "topk": "Takes the draft's most likely tokens, whatever odds the draft gives them.",
}
DRAWN = {  # children, as a run with this verifier draws them
    "sequoia": "drawn without replacement",
    "specinfer": "drawn with replacement",
    "topk": "that are the draft's most likely tokens",
    "traversal": "drawn without replacement",
    "greedy": "",
}
AFTER_REJECTION = {  # R and D as in the table of a decision
    "sequoia": "Then R ← normalise(max(R − D, 0)), and D loses this token.",
    "specinfer": "Then R ← normalise(max(R − D, 0)); D stays as it is, so the token can be offered again.",
    "topk": "Then R loses this token, and what is left of it is scaled to sum to 1.",
    "traversal": "R is the share in which this token and the path to it are kept, worked out from the leaves upwards.",
    "greedy": "",
}
