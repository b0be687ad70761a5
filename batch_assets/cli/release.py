"""Commands around the gate: check, publish, rollback, export."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, get_args

import typer

from batch_assets.cli import render
from batch_assets.cli.common import JsonFlag, VersionArgument, deployment
from batch_assets.core.quoting import printable
from batch_assets.operations.check import check
from batch_assets.operations.deployment import Deployment
from batch_assets.operations.export import Format, export
from batch_assets.operations.publish import Published, publish, rollback
from batch_assets.operations.report import write_report

PublishId = Annotated[
    str | None,
    typer.Option(
        "--publish-id",
        metavar="ID",
        help="of this move; sent again with the same id, it is not repeated (default: a fresh one)",
    ),
]


def check_command(version: VersionArgument, as_json: JsonFlag = False) -> None:
    """Judge a version. Exit status 0 when nothing that blocks has failed, else 1."""
    here = deployment()
    registered = here.resolve(version)
    verdicts = check(here, registered)
    blocked = [verdict for verdict in verdicts if verdict.blocking and not verdict.passed]
    if as_json:
        body = {"version": registered.job_version, "passed": not blocked, "checks": [asdict(one) for one in verdicts]}
        render.print_json(body)
    else:
        render.say(registered.job_version)
        render.verdict_table(verdicts)
    if blocked:
        raise typer.Exit(1)


def publish_command(
    version: VersionArgument,
    override: Annotated[
        str | None,
        typer.Option(
            "--override",
            metavar="REASON",
            help="publish although checks have failed (never coverage, access_labels or one_recipe, nor without a verdict)",
        ),
    ] = None,
    publish_id: PublishId = None,
    as_json: JsonFlag = False,
) -> None:
    """Point readers at a version; refused unless its checks have passed."""
    here = deployment()
    done = publish(here, here.resolve(version), override=override, publish_id=publish_id)
    _tell(here, done, "publish", as_json)
    if override is not None and done.changed and not done.overrode:
        render.warn("no check had failed that an override could set aside, so none is recorded")


def rollback_command(
    job: Annotated[str, typer.Argument(metavar="JOB", help="the job whose readers go back")],
    to: Annotated[str | None, typer.Option("--to", metavar="VERSION", help="an earlier published version")] = None,
    publish_id: PublishId = None,
    as_json: JsonFlag = False,
) -> None:
    """Point readers back at the version before, at once."""
    here = deployment()
    done = rollback(here, here.known_job(job), to, publish_id=publish_id)
    _tell(here, done, "rollback", as_json)


def _tell(here: Deployment, done: Published, kind: str, as_json: bool) -> None:
    _tell_dagster(here, done, kind)
    if as_json:
        render.print_json(asdict(done))
    else:
        render.say(done.sentence)


def _tell_dagster(here: Deployment, done: Published, kind: str) -> None:
    """The pointer has moved; that its UI did not hear of it is worth a line, not a failure."""
    from batch_assets.assets.publication import report_move  # Dagster takes seconds to import

    try:
        report_move(here, done, kind)
    except Exception as error:
        reason = printable(f"{type(error).__name__}: {error}", chars_max=500)
        sys.stderr.write(f"batch-assets: Dagster's UI was not told of it ({reason}).\n")


def export_command(
    job_or_version: Annotated[
        str, typer.Argument(metavar="JOB_OR_VERSION", help="a job exports what is published, a version its own results")
    ],
    output: Annotated[Path, typer.Option("--output", help="the file to write")],
    file_format: Annotated[
        str, typer.Option("--format", help="parquet, csv, jsonl, or spreadsheet: CSV without formulas")
    ] = "parquet",
    as_json: JsonFlag = False,
) -> None:
    """Write results to one file."""
    formats: dict[str, Format] = {one: one for one in get_args(Format)}
    if file_format not in formats:
        raise typer.BadParameter(f"{file_format!r} is not one of {', '.join(formats)}", param_hint="--format")
    done = export(deployment(), job_or_version, formats[file_format], output)
    if as_json:
        render.print_json(asdict(done))
    else:
        render.say(f"{done.rows:,} rows of {done.job_version} written to {done.output}")


def report_command(
    version: VersionArgument,
    output: Annotated[
        Path | None, typer.Option("--output", help="the file to write; reports/JOB/VERSION.html of the home by default")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write what a person reviews before publishing, as one HTML page that needs no network."""
    here = deployment()
    registered = here.resolve(version)
    written = write_report(here, registered, output)
    if as_json:
        render.print_json({"version": registered.job_version, "output": str(written)})
    else:
        render.say(f"The report of {registered.job_version} is in {written}")
