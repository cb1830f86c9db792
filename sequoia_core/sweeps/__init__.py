"""Many pairs, ways of sampling and kinds of text measured prompt by prompt, on one machine or many, and compared.

Each module imports, of this room, only modules named before it:

    content, plan, results, jobs, worker, executors, run, compare, which_pays
"""
