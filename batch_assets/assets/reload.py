"""Telling a running UI that there is a new version, so that nobody has to press Reload definitions.

`batch-assets ui` notes where it listens; elsewhere BATCH_ASSETS_UI names the webserver. A UI that
cannot be reached costs a line in the log and nothing else.
"""

from __future__ import annotations

import json
import threading
from urllib.parse import urlsplit

from batch_assets.assets.runs import LOCATION
from batch_assets.settings import Settings

DEADLINE_S = 60.0  # a code location of many jobs takes some seconds to load
_NOTE = "ui.json"


def note_ui(settings: Settings, url: str) -> None:
    """Remember where this home's UI listens."""
    (settings.root / _NOTE).write_text(json.dumps({"url": url}))


def reload_ui(settings: Settings) -> str:
    """Have the UI load the definitions anew; returns a sentence on how that went."""
    url = _address(settings)
    if url is None:
        return "No UI is known here; one that is open shows new versions after Reload definitions."
    problem: list[str] = []
    thread = threading.Thread(target=_reload, args=(url, problem), name="reload", daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    if thread.is_alive():
        return f"The UI at {url} is still reloading."
    return f"The UI at {url} was not reloaded: {problem[0]}" if problem else f"The UI at {url} shows the new version."


def _reload(url: str, problem: list[str]) -> None:
    try:
        # Only here: loading the client takes a second.
        from dagster_graphql import DagsterGraphQLClient, ReloadRepositoryLocationStatus

        parts = urlsplit(url)
        client = DagsterGraphQLClient(
            parts.hostname or "localhost",
            port_number=parts.port,
            use_https=parts.scheme == "https",
            timeout=int(DEADLINE_S),
        )
        found = client.reload_repository_location(LOCATION)
        if found.status is not ReloadRepositoryLocationStatus.SUCCESS:
            problem.append(str(found.message))
    except Exception as error:  # whatever a webserver that is not there makes its client raise
        problem.append(f"{type(error).__name__}: {error}".splitlines()[0])


def _address(settings: Settings) -> str | None:
    if settings.ui is not None:
        return settings.ui
    try:
        return str(json.loads((settings.root / _NOTE).read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
