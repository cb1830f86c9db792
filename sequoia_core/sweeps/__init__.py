"""Many pairs, ways of sampling and kinds of text measured prompt by prompt, on one machine or many, and compared.

Each module imports, of this room, only the modules named:

    content     -
    plan        content
    results     -
    jobs        content, plan, results
    worker      content, jobs, plan
    executors   jobs, worker
    run         executors, jobs, plan, results, worker
    compare     plan, results
    which_pays  plan, compare
"""
