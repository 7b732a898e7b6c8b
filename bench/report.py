"""Medians per server and ratios, as Markdown."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from bench.outcomes import Outcome, Run

Key = tuple[str, int]


class Metric(msgspec.Struct, frozen=True):
    """How a value is shown. ``total``: rounds are added up, without a ratio. ``overview``: in the short tables."""

    title: str
    digits: int = 0
    total: bool = False
    overview: bool = True


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "tokens_per_s": Metric("tokens/s", 1),
        "ttft_p50_ms": Metric("first token p50, ms"),
        "ttft_p95_ms": Metric("first token p95, ms"),
        "gap_p50_ms": Metric("gap between tokens p50, ms", 1),
        "gap_p95_ms": Metric("gap between tokens p95, ms", 1),
        "gap_max_ms": Metric("gap between tokens max, ms", 1),
        "cpu_ms_per_token": Metric("server CPU a token, ms", 2),
        "root_us_per_token": Metric("CPU a token of the process started, us"),
        "children_us_per_token": Metric("CPU a token of its children, us"),
        "silence_max_ms": Metric("longest silence of a running stream, ms"),
        "gap_before_p50_ms": Metric("their gap between tokens before p50, ms", 1),
        "silence_ratio": Metric("silence / gap before", 1),
        "intruder_ttft_ms": Metric("the long prompt's own first token, ms"),
        "tokens_during": Metric("tokens of the others meanwhile"),
        "running": Metric("streams running when it came"),
        "idle_after_s": Metric("work went on for, s (40: to the end of the watch)", 1),
        "idle_cpu_percent": Metric("CPU when idle, % of a core", 2),
        "processes": Metric("processes", overview=False),
        "threads": Metric("threads", overview=False),
        "first_token_s": Metric("start to first token, s", 2),
        "ready_s": Metric("start to ready, s", 2, overview=False),
        "peak_rss_mb": Metric("peak memory (RSS of the tree), MB"),
        "prompt_tokens": Metric("prompt tokens, mean", overview=False),
        "cached_tokens": Metric("of them from the cache, mean", overview=False),
        "tokens": Metric("tokens generated"),
        "tokens_per_piece": Metric("tokens a streamed event", 2, overview=False),
        "client_cpu_percent": Metric("CPU of the client, % of a core", 1, overview=False),
        "other_cpu_percent": Metric("CPU of everything else, % of a core", 1),
        "errors": Metric("errors, all rounds", total=True),
    }
)

# Metrics that only one workload is about; shown there and nowhere else.
_FRONT_ONLY = frozenset({"root_us_per_token", "children_us_per_token"})
_SUMMARY = (
    *("tokens_per_s", "ttft_p50_ms", "gap_p95_ms", "gap_max_ms", "silence_max_ms", "intruder_ttft_ms"),
    *("idle_after_s", "idle_cpu_percent", "other_cpu_percent", "errors"),
)


def summary(outcome: Outcome) -> str:
    """One line for the progress log."""
    figures = [
        f"{METRICS[name].title} {outcome.values[name]:.{METRICS[name].digits}f}"
        for name in _SUMMARY
        if name in outcome.values
    ]
    return f"{_label(outcome.workload, outcome.level)}: {', '.join(figures)}" + "".join(
        f"\n    {error}" for error in sorted(set(outcome.errors))[:3]
    )


def markdown(run: Run) -> str:
    """The whole report: how it was made, medians by workload, then every figure with its spread; failures last."""
    facts = "\n".join(f"- {name}: {value}" for name, value in run.machine.items())
    figures = _Figures(run)
    parts = [f"    {run.command}", facts, *figures.overviews(), "Every figure, with its spread:", *figures.details()]
    parts.append("\n".join(f"- round {v.round}, {v.server}: {v.failure}" for v in run.visits if v.failure))
    return "\n\n".join(part for part in parts if part) + "\n"


def _label(workload: str, level: int) -> str:
    return f"{workload}, {level} stream{'s' if level > 1 else ''}" if level else workload


def _table(rows: list[list[str]]) -> str:
    """The first row is the head; all columns but the first are figures."""
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|---|" + "---:|" * (len(rows[0]) - 1), *body])


class _Figures:
    """Values of a run by workload and level, metric, server and round."""

    def __init__(self, run: Run) -> None:
        self._reference = run.reference
        self._servers = list(dict.fromkeys(visit.server for visit in run.visits))
        self._others = [server for server in self._servers if server != run.reference]
        self._outcomes: dict[Key, dict[tuple[str, int], Outcome]] = {}
        for visit in run.visits:
            for outcome in visit.outcomes:
                self._outcomes.setdefault((outcome.workload, outcome.level), {})[visit.server, visit.round] = outcome

    def overviews(self) -> Iterator[str]:
        """A table per workload; the levels stand side by side in a cell."""
        for workload in dict.fromkeys(workload for workload, _ in self._outcomes):
            levels = sorted(level for name, level in self._outcomes if name == workload)
            keys = [(workload, level) for level in levels]
            streams = f" at {' / '.join(map(str, levels))}" if levels[0] else ""
            rows = [self._head(workload + streams)]
            for name, metric in METRICS.items():
                if metric.overview and any(self._shown(key, name) for key in keys):
                    cells = [" / ".join(self._middle(key, name, server) for key in keys) for server in self._servers]
                    ratios = [" / ".join(self._ratio(key, name, server) for key in keys) for server in self._others]
                    rows.append([metric.title, *cells, *(["" for _ in ratios] if metric.total else ratios)])
            yield _table(rows)

    def details(self) -> Iterator[str]:
        """A table per workload and level with all metrics, as median (lowest to highest)."""
        for key in self._outcomes:
            rows = [self._head(_label(*key))]
            for name, metric in METRICS.items():
                if self._shown(key, name):
                    cells = [
                        self._middle(key, name, server) + self._spread(key, name, server) for server in self._servers
                    ]
                    ratios = ["" if metric.total else self._ratio(key, name, server) for server in self._others]
                    rows.append([metric.title, *cells, *ratios])
            agreement = [self._agreement(key, server) for server in self._servers]
            if any(agreement):
                rows.append([f"answers equal to {self._reference}'s", *agreement, *["" for _ in self._others]])
            yield _table(rows)

    def _head(self, title: str) -> list[str]:
        return [title, *self._servers, *[f"{server} / {self._reference}" for server in self._others]]

    def _shown(self, key: Key, name: str) -> bool:
        present = any(name in outcome.values for outcome in self._outcomes[key].values())
        return present and (key[0] == "front" or name not in _FRONT_ONLY)

    def _values(self, key: Key, name: str, server: str) -> dict[int, float]:
        return {
            number: outcome.values[name]
            for (owner, number), outcome in self._outcomes[key].items()
            if owner == server and name in outcome.values
        }

    def _middle(self, key: Key, name: str, server: str) -> str:
        values = self._values(key, name, server).values()
        if not values:
            return "-"
        value = sum(values) if METRICS[name].total else statistics.median(values)
        return f"{value:.{METRICS[name].digits}f}"

    def _spread(self, key: Key, name: str, server: str) -> str:
        values = self._values(key, name, server).values()
        if METRICS[name].total or len(values) < 2:
            return ""
        low, high = (f"{value:.{METRICS[name].digits}f}" for value in (min(values), max(values)))
        return f" ({low} to {high})" if low != high else ""

    def _ratio(self, key: Key, name: str, server: str) -> str:
        """Median of the ratios within each round: what drifts between rounds falls out."""
        own, reference = self._values(key, name, server), self._values(key, name, self._reference)
        ratios = [own[number] / reference[number] for number in own if reference.get(number)]
        return f"{statistics.median(ratios):.2f}" if ratios else "-"

    def _agreement(self, key: Key, server: str) -> str:
        """How many answers are the reference's to the letter, over all rounds; empty where there are no texts."""
        same = total = 0
        for (owner, number), outcome in self._outcomes[key].items():
            reference = self._outcomes[key].get((self._reference, number))
            if owner == server and reference:
                pairs = list(zip(outcome.texts, reference.texts, strict=False))
                same, total = same + sum(a == b for a, b in pairs), total + len(pairs)
        return f"{same} of {total}" if total and server != self._reference else ""


def reference_of(names: Sequence[str], wanted: str = "") -> str:
    """The server ratios are taken against: the one asked for, else the first that is not Bramley's, else the first."""
    return wanted or next((name for name in names if not name.startswith("bramley")), names[0])
