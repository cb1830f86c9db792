"""Measure many pairs, sampling settings and kinds of text, prompt by prompt, on one machine or a Dask cluster.

Within this package, each module imports only those listed before it:

    content, plan, results, compare, jobs, recommendations, worker, executors, run, commands
"""

PROVIDES = {"commands": ["commands"]}
