"""Finds parser families by looking into their folders: a new format is a new file and nothing else."""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from typing import cast

from bramley.domain.errors import StartupError
from bramley.parsers.base import Family

TOOLS = "bramley.parsers.tools"
REASONING = "bramley.parsers.reasoning"


class Registry:
    """The families of one folder, by name and alias."""

    def __init__(self, families: Iterable[Family]) -> None:
        """Raises ValueError when two families claim a name."""
        self.families = tuple(families)
        self._by_name: dict[str, Family] = {}
        for family in self.families:
            for name in (family.NAME, *family.ALIASES):
                if name in self._by_name:
                    raise ValueError(f"Two parsers are called {name!r}: {self._by_name[name].NAME} and {family.NAME}.")
                self._by_name[name] = family

    @classmethod
    def scan(cls, package: str) -> "Registry":
        """Import every module of ``package`` that has a NAME; helpers without one are left alone."""
        folder = importlib.import_module(package)
        names = sorted(found.name for found in pkgutil.iter_modules(folder.__path__))
        modules = [importlib.import_module(f"{package}.{name}") for name in names]
        return cls(cast(Family, module) for module in modules if hasattr(module, "NAME"))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._by_name))

    def find(self, name: str) -> Family:
        """Raises StartupError with the names there are."""
        if (family := self._by_name.get(name)) is None:
            known = ", ".join(self.names) or "none yet"
            raise StartupError(f"There is no parser called {name!r}. Known: {known}.")
        return family

    def detect(self, template: str, vocabulary: Mapping[str, int]) -> Family | None:
        """The family a model's chat template and tokens speak of."""
        return next((family for family in self.families if family.matches(template, vocabulary)), None)
