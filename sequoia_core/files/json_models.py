"""Validate JSON values with pydantic, and report the first error in one line.

pydantic is imported lazily because rented GPU machines may lack it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter

Model = TypeVar("Model", bound="BaseModel")


@overload
def validate_model(schema: type[Model], value: Any) -> Model: ...
@overload
def validate_model(schema: TypeAdapter, value: Any) -> Any: ...
def validate_model(schema: Any, value: Any) -> Any:
    """Validate JSON values with a model class or a type adapter; raise ValueError for the first error."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return schema.validate_python(value) if isinstance(schema, TypeAdapter) else schema.model_validate(value)
    except ValidationError as error:
        raise ValueError(validation_message(error.errors(include_url=False, include_context=False)[0])) from error


def validation_message(fault: Mapping[str, Any]) -> str:
    """Format a pydantic error in one line: location, found value, expected value."""
    where = ".".join(str(part) for part in fault["loc"]) or "JSON"
    if fault["type"] == "missing":
        return f"{where}: found nothing, expected a value"
    found = fault["input"] if isinstance(fault["input"], str | int | float | None) else type(fault["input"]).__name__
    wanted = "an object" if fault["type"] in ("model_type", "dict_type") else fault["msg"]
    return f"{where}: found {str(found)[:40]!r}, expected: {wanted}"


@contextmanager
def prefix_errors(name: str, keep: type[ValueError] = ValueError) -> Iterator[None]:
    """Prefix the message of any ValueError raised inside the block with a file name or a location.

    Errors of the class `keep` retain their class; all others become a plain ValueError.
    """
    try:
        yield
    except ValueError as error:
        kind = keep if isinstance(error, keep) else ValueError
        raise kind(f"{name}: {error}") from error
