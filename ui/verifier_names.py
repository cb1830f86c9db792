"""What the verifiers are called for people."""

NAMES = {"sequoia": "Sequoia", "specinfer": "SpecInfer", "topk": "Top-k", "greedy": "Any verifier"}
RIVALS = ("specinfer", "topk")  # of Sequoia
