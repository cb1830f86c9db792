"""JSON values as pydantic models: to a checked model, or to one line that says what is wrong.

Imports no pydantic, which a rented GPU lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter

Model = TypeVar("Model", bound="BaseModel")


@overload
def checked(schema: type[Model], value: Any) -> Model: ...
@overload
def checked(schema: TypeAdapter, value: Any) -> Any: ...
def checked(schema: Any, value: Any) -> Any:
    """Return JSON values that were read as a model, or as what a type adapter describes."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return schema.validate_python(value) if isinstance(schema, TypeAdapter) else schema.model_validate(value)
    except ValidationError as error:
        raise ValueError(fault_words(error.errors(include_url=False, include_context=False)[0])) from error


def fault_words(fault: Mapping[str, Any]) -> str:
    """Return one of pydantic's faults as a line: where, what was found, what was expected."""
    where = ".".join(str(part) for part in fault["loc"]) or "JSON"
    if fault["type"] == "missing":
        return f"{where}: found nothing, expected this key"
    found = fault["input"] if isinstance(fault["input"], str | int | float | None) else type(fault["input"]).__name__
    wanted = "an object" if fault["type"] in ("model_type", "dict_type") else fault["msg"]
    return f"{where}: found {str(found)[:40]!r}, expected: {wanted}"


@contextmanager
def naming(file: str) -> Iterator[None]:
    """Put a file's name before what is said against its content."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
