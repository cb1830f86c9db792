"""Function signatures and structure layouts, parsed from the C files so that Python does not repeat them."""

import ctypes
import re
from pathlib import Path
from typing import Any

_TYPES = {
    "void": None,
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_FUNCTION = re.compile(r"^(?!static)(\w[\w ]*[ *])(\w+)\(([^()]*)\) \{", re.MULTILINE)
_STRUCTURE = re.compile(r"typedef struct \{(.*?)\} (\w+);", re.DOTALL)


def declare_functions(library: ctypes.CDLL, source: Path) -> None:
    """Set the result and argument types of every function that a C file exports; all pointers are `c_void_p`."""
    for result, name, parameters in _FUNCTION.findall(source.read_text()):
        function = getattr(library, name)
        function.restype = _c_type(result)
        function.argtypes = [_c_type(parameter) for parameter in parameters.split(",") if parameter != "void"]


def structure_fields(file: Path, name: str) -> list[tuple[str, Any]]:
    """Return the `_fields_` of a C structure for `ctypes.Structure`."""
    structures = {name: body for body, name in _STRUCTURE.findall(re.sub("//.*", "", file.read_text()))}
    fields = []
    for declaration in structures[name].split(";")[:-1]:
        element, declarators = declaration.replace("const ", "").split(maxsplit=1)
        for declarator in declarators.split(","):
            field, length = re.fullmatch(r"[ *]*(\w+)(?:\[(\d+)\])?", declarator).groups()  # type: ignore[union-attr]
            field_type = _c_type(f"{element} {declarator}")
            fields.append((field, field_type * int(length) if length else field_type))
    return fields


def _c_type(declaration: str) -> Any:
    return ctypes.c_void_p if "*" in declaration else _TYPES[declaration.split()[0]]
