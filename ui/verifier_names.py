"""What the verifiers are called and how each draws the children it verifies, for people."""

NAMES = {"sequoia": "Sequoia", "specinfer": "SpecInfer", "topk": "Top-k", "greedy": "Any verifier"}
RIVALS = ("specinfer", "topk")  # that Sequoia is compared with
DRAWS = {
    "sequoia": "Draws children without replacement; after a rejection both rows give up what was tried.",
    "specinfer": "Draws children with replacement: a wrong token can be offered twice.",
    "topk": "Takes the draft's most likely tokens, whatever odds the draft gives them.",
}
