"""The command line: `python -m sequoia_core COMMAND`.

Within this package, each module imports only those listed before it:

    options, output, progress, formatting, design_reports, measure_reports, inputs, default_trees, design_commands,
    decode_commands, measure_commands, main
"""
