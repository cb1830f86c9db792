"""`python -m sequoia_core COMMAND`.

Each module imports, of this room, only the modules named:

    options           -
    output            -
    progress          -
    figures           output
    design_words      output, figures
    measured_words    output, progress, figures
    inputs            output, progress
    design_commands   options, output, progress, design_words, inputs
    server_commands   options, output, design_words, inputs
    decode_commands   options, output, progress, measured_words, inputs
    measure_commands  options, output, progress, measured_words, inputs
    server_check      options, output, progress, measured_words, inputs
    sweep_command     options, output, progress, measured_words
    main              options, design_commands, server_commands, decode_commands, measure_commands, server_check, sweep_command
"""  # noqa: E501
