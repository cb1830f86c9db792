"""Token trees: their structure, the search for the best tree, baseline shapes, replay, and file formats.

Within this package, each module imports only those listed before it:

    tree, growmap, optimal, plain, comparison, replay, grown, tree_files
"""
