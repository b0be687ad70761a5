"""Opening Dagster's UI on the state that the other commands work on."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from batch_assets.assets.instance import dagster_environment
from batch_assets.assets.reload import note_ui
from batch_assets.cli import render
from batch_assets.cli.common import deployment

WORKSPACE = Path(__file__).parents[2] / "workspace.yaml"


def ui_command(
    port: Annotated[int, typer.Option(help="where the UI listens, on this machine only")] = 3000,
    host: Annotated[str, typer.Option(help="the address to listen on")] = "127.0.0.1",
) -> None:
    """Open Dagster's UI with its daemon; Ctrl-C ends both."""
    settings = deployment().settings
    environment = dagster_environment(settings)
    note_ui(settings, f"http://{host}:{port}")
    render.say(f"Opening http://{host}:{port} (state: {environment['BATCH_ASSETS_HOME']}); Ctrl-C ends it.")
    location = ["-w", str(WORKSPACE)] if WORKSPACE.is_file() else ["-m", "batch_assets.definitions"]
    for number in (signal.SIGINT, signal.SIGTERM):
        # A shell script's `&` leaves the first ignored, Dagster then ignores both, and nobody could end it.
        signal.signal(number, signal.SIG_DFL)
    # The UI takes over this process: its exit status and signals are ours.
    dagster = [sys.executable, "-W", "ignore", "-m", "dagster", "dev", *location, "--host", host, "--port", str(port)]
    os.execve(sys.executable, dagster, environment)
