"""What the model must answer for each ticket. The category comes first, while the ticket is fresh."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Entity = Annotated[str, Field(min_length=1, max_length=40)]


class Output(BaseModel):
    """One ticket, classified and condensed."""

    model_config = ConfigDict(extra="forbid")

    category: Literal["billing", "technical", "account", "shipping", "feedback"]
    summary: str = Field(min_length=1, max_length=160, description="one sentence")
    entities: list[Entity] = Field(max_length=5, description="order numbers, products, amounts named in the ticket")
