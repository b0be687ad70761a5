"""From snapshot rows to prompts, and from answers to outcomes. No engine, no ledger, no threads."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ValidationError

from batch_assets.core.outcomes import Failure, Reason, Result
from batch_assets.core.prompt import PromptTemplate, RenderError, is_empty_input
from batch_assets.core.shards import shard_range
from batch_assets.core.version import JobVersion
from batch_assets.core.waste import Wasted
from batch_assets.engine.protocol import Completion, PromptEncoder
from batch_assets.storage.exact import has_decimals, refuse_rounded
from batch_assets.storage.snapshots import SnapshotReader
from batch_assets.storage.typed import arrow_fields, to_arrow_value

_ERROR_CHARS_MAX = 500  # enough to understand a failure; an answer can be pages long


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A record that is ready for the engine."""

    shard: int
    record_id: str
    attempt: int
    prompt_token_ids: tuple[int, ...]

    @property
    def key(self) -> str:
        """Unique among the records of a version; used as the engine's request id."""
        return f"{self.shard}/{self.record_id}"

    def next_attempt(self) -> Prepared:
        return replace(self, attempt=self.attempt + 1)


class RecordPreparer:
    """Renders and tokenizes the records of one version."""

    def __init__(
        self, version: JobVersion, template: PromptTemplate, encoder: PromptEncoder, reader: SnapshotReader
    ) -> None:
        self._version = version
        self.template = template
        self.encoder = encoder
        self._reader = reader

    def shard(
        self, shard: int, *, skip: Collection[str], failed: Mapping[str, int], only: Collection[str] | None = None
    ) -> Iterator[Prepared | Failure]:
        """The shard's records that have no outcome yet, in row order.

        `skip` holds the ids to leave out, `only` the ones to take if not all, `failed` the attempts used
        up so far. A record that can never be answered comes as a Failure of a permanent reason.
        """
        pin = self._version.snapshot
        rows = shard_range(shard, shard_size=self._version.shard_size, records=self._version.records)
        for record in self._reader.read(rows, [pin.record_id, *pin.text, *self.template.columns]):
            record_id = str(record[pin.record_id])
            if record_id not in skip and (only is None or record_id in only):
                yield self.prepare(shard, record_id, record, attempt=failed.get(record_id, 0) + 1)

    def prepare(self, shard: int, record_id: str, record: Mapping[str, Any], *, attempt: int) -> Prepared | Failure:
        """Render and tokenize one record."""
        cap = self._version.decoding.input_tokens_max
        reason, error, tokens = Reason.RENDER_ERROR, "", 0
        try:
            if is_empty_input(record, self._version.snapshot.text, self.encoder.control_tokens):
                reason, error = Reason.EMPTY_INPUT, f"no text in {', '.join(self._version.snapshot.text)}"
            else:
                token_ids = self.encoder.encode(self.template.render_record(record))
                tokens = len(token_ids)
                if tokens <= cap:
                    return Prepared(shard=shard, record_id=record_id, attempt=attempt, prompt_token_ids=token_ids)
                reason, error = Reason.INPUT_TOO_LONG, f"{tokens:,} input tokens, {cap:,} allowed"
        except RenderError as problem:
            error = str(problem)
        except Exception as problem:  # a template or tokenizer that fails on one text must not fail the shard
            error = f"{type(problem).__name__}: {problem}"[:_ERROR_CHARS_MAX]
        return Failure(record_id=record_id, attempt=attempt, reason=reason, error=error, prompt_tokens=tokens)


def tokens_of(prepared: Collection[Prepared]) -> Wasted:
    """What went into the engine for these records in vain."""
    return Wasted(records=len(prepared), prompt_tokens=sum(len(one.prompt_token_ids) for one in prepared))


def judge(completion: Completion, prepared: Prepared, model: type[BaseModel]) -> Result | Failure:
    """What an answer amounts to. A cut-off answer is never a success, even when it parses."""
    reason, error = Reason.ENGINE_ERROR, completion.error or "the engine gave no reason"
    if completion.finish_reason == "rejected":
        reason = Reason.REJECTED
    elif completion.finish_reason == "length":
        reason = Reason.TRUNCATED
        error = f"cut off after {completion.output_tokens} output tokens: …{completion.text[-80:]}"
    elif completion.finish_reason == "stop":
        try:
            check_storable(completion.text, model)
            return Result(
                record_id=prepared.record_id,
                payload=completion.text,
                attempt=prepared.attempt,
                finish_reason="stop",
                prompt_tokens=completion.prompt_tokens,
                cached_tokens=completion.cached_tokens,
                output_tokens=completion.output_tokens,
            )
        except ValidationError as problem:
            reason, error = Reason.INVALID_OUTPUT, _first_errors(problem)
        except Exception as problem:  # validators are the author's code; a number may not fit its column
            reason, error = Reason.INVALID_OUTPUT, f"{type(problem).__name__}: {problem}"
    return Failure(
        record_id=prepared.record_id,
        attempt=prepared.attempt,
        reason=reason,
        error=error[:_ERROR_CHARS_MAX],
        prompt_tokens=completion.prompt_tokens,
        output_tokens=completion.output_tokens,
    )


def check_storable(text: str, model: type[BaseModel]) -> None:
    """Prove that an answer will go into a sealed file, by doing once what sealing will do.

    The text itself is what is stored: sealing validates it again, so the author's validators see it as
    the engine wrote it, and only once on its way to the table. Raises whatever is wrong with it.
    """
    answer = model.model_validate_json(text)
    for column in arrow_fields(model):
        try:
            value = to_arrow_value(getattr(answer, column.name))
            pa.array([value], type=column.type)
            if has_decimals(model):
                refuse_rounded(text, [value])
        except (ValueError, OverflowError, pa.ArrowException) as error:
            raise ValueError(f"{column.name}: {error}") from None
        if not _is_finite(value):
            raise ValueError(f"{column.name}: not a finite number, which JSON cannot hold")
    text.encode()  # half a surrogate pair cannot be stored


def _is_finite(value: Any) -> bool:
    """Whether all numbers in it are: 1e999 is read as infinite, NaN is taken for null by tables, and JSON has neither."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    return all(map(_is_finite, value)) if isinstance(value, list | tuple) else True


def _first_errors(problem: ValidationError) -> str:
    lines = [f"{'.'.join(map(str, e['loc'])) or 'answer'}: {e['msg']}" for e in problem.errors(include_url=False)]
    return "; ".join(lines[:3])
