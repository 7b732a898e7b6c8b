"""What a measurement leaves behind; also the shape of the JSON file."""

import msgspec


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One workload at one level (streams at once). ``values`` by metric name: see ``report.METRICS`` for units.

    ``texts`` are digests of the answers, in the order of the prompts, to compare servers with.
    """

    workload: str
    level: int
    values: dict[str, float]
    errors: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """One start of one server. ``round`` counts from 1; ``failure`` says why there are no or not all outcomes."""

    server: str
    round: int
    outcomes: tuple[Outcome, ...] = ()
    failure: str = ""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run: how it was made and what came out."""

    command: str
    machine: dict[str, str]
    reference: str
    visits: tuple[Visit, ...]
