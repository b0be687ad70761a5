"""A job folder as a Dagster component: `defs.yaml` names this class and gives the job spec."""

from __future__ import annotations

from typing import Any

import dagster as dg
from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from batch_assets.assets.job import job_definitions
from batch_assets.core.spec import JobSpec
from batch_assets.operations.jobs import job_from_attributes
from batch_assets.settings import Settings


class JobAttributes(BaseModel):
    """The attributes as the author wrote them, unchecked: our own check explains mistakes better.

    Tools that ask for the JSON schema get the real one, of `JobSpec`.
    """

    model_config = ConfigDict(extra="allow")

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return handler(JobSpec.__pydantic_core_schema__)


class BatchInferenceJob(dg.Component):
    """A prompt over a snapshot with a model: one partitioned asset per job version, gated and published.

    The attributes are the job spec of `batch_assets/core/spec.py`; `job_from_attributes` checks them
    together with the files that they name.
    """

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        return dg.ComponentTypeSpec(
            description="Offline LLM inference over a snapshot: exactly one result per record, published all at once.",
            tags=["llm", "batch", "inference"],
            produces=["asset", "asset_check", "job"],
        )

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        return JobAttributes

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> BatchInferenceJob:
        return cls({} if attributes is None else attributes.model_dump())

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        return job_definitions(Settings(), job_from_attributes(context.path, self.attributes))
