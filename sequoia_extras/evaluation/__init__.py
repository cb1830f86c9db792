"""Evidence about the engine: losslessness, verifier comparison and tree growth.

Within this package, each module imports only those listed before it:

    growth, losslessness, node_enumeration, rejection_curves, verifier_comparison, measure_growth
"""
