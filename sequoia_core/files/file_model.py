"""The base class of pydantic models that describe file contents."""

from pydantic import BaseModel, ConfigDict


class FileModel(BaseModel):
    """File content, validated strictly: strings are not converted to numbers, nor fractions to integers."""

    model_config = ConfigDict(strict=True)
