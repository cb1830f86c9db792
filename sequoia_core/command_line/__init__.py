"""`python -m sequoia_core COMMAND`.

Each module imports, of this room, only the modules named:

    options             -
    output              -
    shape_profiles      -
    design_commands     options, output
    inputs              options, output
    decode_commands     options, output, inputs
    measure_commands    options, output, inputs, shape_profiles
    main                options, design_commands, decode_commands, measure_commands
"""
