"""`python -m sequoia_core COMMAND`.

Each module imports, of this room, only the modules named:

    options           -
    output            -
    inputs            output
    design_commands   options, output, inputs
    server_commands   options, output, inputs
    decode_commands   options, output, inputs
    measure_commands  options, output, inputs
    server_check      options, output, inputs
    sweep_command     options, output
    main              options, design_commands, server_commands, decode_commands, measure_commands, server_check, sweep_command
"""  # noqa: E501
