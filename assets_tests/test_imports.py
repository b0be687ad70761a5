"""The rooms of the project import in one direction only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "batch_assets"

# Each room, and the rooms that it may import besides itself.
MAY_IMPORT = {
    "core": {"errors"},
    "errors": set(),
    "settings": set(),
    "failpoints": {"errors"},
    "storage": {"core", "errors", "failpoints"},
    "engine": {"core", "errors"},
    "validation": {"core", "errors"},
    "worker": {"storage", "engine", "core", "errors", "failpoints"},
    "operations": {"worker", "storage", "engine", "validation", "core", "errors", "settings", "failpoints"},
    "assets": {"operations", "worker", "storage", "engine", "validation", "core", "errors", "settings"},
    "cli": {
        "assets",
        "operations",
        "worker",
        "storage",
        "engine",
        "validation",
        "core",
        "errors",
        "settings",
        "failpoints",
    },
    "definitions": {"assets", "operations", "settings", "errors"},
    "defs": set(),
    "__init__": {"operations", "assets"},  # when it is asked for, not before
}
# Heavy libraries have one place each.
ONLY_IN = {
    "vllm": {"engine/vllm_engine.py"},
    "transformers": {"engine/encoder.py"},
    "dagster": {"assets", "definitions.py"},
    "obstore": {"storage/objects.py", "storage/local_objects.py", "storage/s3_objects.py", "storage/range_files.py"},
    "sqlalchemy": {"storage"},
    "deltalake": {"storage/delta_tables.py"},
    "pyiceberg": {"storage/iceberg_tables.py"},
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def room_of(relative: Path) -> str:
    return relative.parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_rooms_import_downwards(path: Path) -> None:
    """A module imports its own room and the rooms below it, nothing else of the project."""
    room = room_of(path.relative_to(PACKAGE))
    for name in imports(path):
        if name.startswith("batch_assets."):
            other = name.split(".")[1]
            assert other == room or other in MAY_IMPORT[room], f"{room} must not import {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_libraries_have_one_place(path: Path) -> None:
    """vllm, Dagster and the like are imported only where the design puts them."""
    relative = path.relative_to(PACKAGE)
    for name in imports(path):
        places = ONLY_IN.get(name.split(".")[0])
        assert places is None or relative.as_posix() in places or relative.parts[0] in places, (
            f"{relative} imports {name}"
        )


def test_core_is_pure() -> None:
    """core imports only the standard library and pydantic, and nothing that does I/O or reads a clock."""
    forbidden = {"os", "time", "random", "pathlib", "subprocess", "socket", "threading", "datetime", "uuid"}
    for path in (PACKAGE / "core").glob("*.py"):
        for name in imports(path):
            top = name.split(".")[0]
            assert top not in forbidden, f"{path.name} imports {name}"
            assert top in {"pydantic", "batch_assets"} or top in __import__("sys").stdlib_module_names
