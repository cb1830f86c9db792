"""`python -m sequoia_core COMMAND`.

Each module imports, of this room, only the modules named:

    commands    -
"""
