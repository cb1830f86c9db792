"""The plan bar: models, acceptance, machine and sampling, chosen independently, and what they predict."""
