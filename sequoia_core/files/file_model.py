"""What the models of files have in common."""

from pydantic import BaseModel, ConfigDict


class FileModel(BaseModel):
    """The content of a file: no number is made of a text, nor a whole one of a fraction."""

    model_config = ConfigDict(strict=True)
