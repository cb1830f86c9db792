"""`python -m sequoia_core COMMAND`.

Each module imports, of this room, only modules named before it:

    options, output, progress, figures, design_words, measured_words, inputs, design_commands, server_commands,
    decode_commands, measure_commands, server_check, sweep_command, main
"""
