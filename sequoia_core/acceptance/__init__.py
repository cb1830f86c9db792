"""Acceptance vectors and matrices (how often the draft token of each rank is accepted), their files, and calibration.

Within this package, each module imports only those listed before it:

    bootstrap, conditions, calibration, vector_schema, vector_files, matrix, vector, matrix_files, what_if
"""
