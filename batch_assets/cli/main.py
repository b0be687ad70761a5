"""`batch-assets`: the entry point. Errors are one paragraph on standard error, never a traceback.

Exit status: 0 done, 1 refused or failed (a check, a conflict, missing shards), 2 bad input, 69 the engine
does not start or dies too often, 74 the ledger or the object store is away, 75 a worker was told to
stop and handed its work back.
"""

from __future__ import annotations

import io
import sys
from typing import NoReturn

import stamina
import typer

from batch_assets.cli import inspect, job, operate, published, release
from batch_assets.cli.demo import demo
from batch_assets.cli.ui import ui_command
from batch_assets.core.quoting import printable
from batch_assets.errors import BatchAssetsError

_COMPLAINT_CHARS_MAX = 2000  # a message may name an id, a column or a file, and those can be of any length

app = typer.Typer(
    name="batch-assets",
    help="Offline LLM inference over millions of records: exactly one result per record, published whole.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("pin")(job.pin_command)
app.command("plan")(job.plan_command)
app.command("run")(job.run_command)
app.command("work")(job.work_command)
app.command("status")(inspect.status_command)
app.command("versions")(inspect.versions_command)
app.command("dead-letters")(operate.dead_letters_command)
app.command("shards")(operate.shards_command)
app.command("requeue")(operate.requeue_command)
app.command("cancel")(operate.cancel_command)
app.command("retire")(operate.retire_command)
app.command("check")(release.check_command)
app.command("publish")(release.publish_command)
app.command("rollback")(release.rollback_command)
app.command("history")(published.history_command)
app.command("rebuild-catalog")(published.rebuild_catalog_command)
app.command("sweep")(published.sweep_command)
app.command("report")(release.report_command)
app.command("export")(release.export_command)
app.command("demo")(demo)
app.command("ui")(ui_command)


def main() -> NoReturn:
    """Run the command line and turn our errors into a sentence and an exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no dash must not end a command
    try:
        stamina.instrumentation.set_on_retry_hooks([])  # the worker says in plain words what it waits for
        app()  # answers misuse of the command line itself, with status 2
    except BatchAssetsError as error:
        _complain(str(error), error.exit_status)
    except KeyboardInterrupt:
        _complain("Stopped.", 130)
    sys.exit(0)


def _complain(text: str, status: int) -> NoReturn:
    sys.stderr.write(f"batch-assets: {printable(text, chars_max=_COMPLAINT_CHARS_MAX)}\n")
    sys.exit(status)
