"""What all settings have in common: immutable, strict about keys and types."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Frozen(BaseModel):
    """Immutable settings that refuse unknown keys, infinities, and true or false for a number."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=()
    )

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        items = value if isinstance(value, list | tuple) else [value]
        wants_bool = cls.model_fields[info.field_name].annotation is bool
        if not wants_bool and any(isinstance(item, bool) for item in items):
            raise ValueError("true and false (in YAML also yes, no, on, off) do not fit this key")
        return value
