"""The base of all configuration classes.

What is wrong with a configuration is a `ConfigError`, whether it came from a file or from Python.
This module knows no particular block.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator
from pydantic_core.core_schema import ValidationInfo

from autodraft.config.knob import Knob, did_you_mean, knob_of
from autodraft.errors import ConfigError


class Strict(BaseModel):
    """Base of all configuration classes: immutable, and a `ConfigError` for whatever is wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    def __init__(self, /, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise ConfigError(self._explain(error)) from None

    @classmethod
    def _explain(cls, error: ValidationError) -> str:
        """Return one line for each thing that pydantic found wrong."""
        lines = []
        for problem in error.errors():
            name = ".".join(map(str, problem["loc"]))
            if problem["type"] == "value_error":
                text = str(problem["ctx"]["error"])
            elif problem["type"] == "missing":
                text = f"{name} is required."
            elif problem["type"] == "extra_forbidden" and name in cls.model_fields:
                text = f"{name} is given twice, by its name and by its tag."
            elif problem["type"] == "extra_forbidden":
                text = f"{name} is not a field. {did_you_mean(name, cls.model_fields)}".rstrip()
                text = f"{text} Fields: {', '.join(cls.model_fields)}."
            elif problem["type"] == "default_factory_not_called":
                continue  # the field that it is taken from is in the list itself
            else:
                text = f"{name}: {problem['msg']}."
            lines.append(f"{cls.__name__}: {text}")
        return "\n".join(lines)


class Block(Strict):
    """Base of the blocks: every field is read by its knob."""

    @field_validator("*", mode="before")
    @classmethod
    def _read(cls, value: object, info: ValidationInfo) -> Any:
        assert info.field_name is not None, "pydantic names the field"
        return knob_of(cls.model_fields[info.field_name]).read(value)

    @model_validator(mode="after")
    def _agree(self) -> "Block":
        if found := self.conflicts(self.__dict__):
            raise ValueError(" ".join(text for _, text in found))
        return self

    @classmethod
    def conflicts(cls, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return what is wrong between fields that are right one by one.

        Args:
            values: The value of every field, by name.

        Returns:
            For each fault the field to blame and a whole message; empty where all is well.
        """
        return []

    @classmethod
    def knobs(cls) -> dict[str, Knob]:
        """Return the knobs of this block by field name, in their order."""
        return {name: knob_of(field) for name, field in cls.model_fields.items()}
