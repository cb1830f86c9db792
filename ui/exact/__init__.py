"""Evidence of losslessness: the live check, recorded verifier comparisons, and their wording and charts.

Requires the optional package `evaluation`.
"""
