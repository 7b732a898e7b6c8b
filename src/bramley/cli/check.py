"""``serve --check``: what the server would be started with, and whether it fits."""

from bramley.config.memory import MemoryPlan, plan_of, shown_bytes
from bramley.config.options import Resolved
from bramley.config.row import Works
from bramley.config.settings import Settings
from bramley.config.table import options_of
from bramley.domain.memory import kv_bytes, reuse_bytes, usable_bytes


def report(resolved: Resolved, *, physical: int | None = None) -> str:
    """Settings with their origins, what has no effect and why, and the memory plan; no API key is in it.

    ``physical`` is the machine's memory in bytes, None: this machine's. Raises ``ModelLoadError`` when the model
    directory is missing or broken.
    """
    memory = plan_of(resolved.settings, physical=physical)
    sections = [_settings(resolved)]
    if resolved.notes:
        sections.append(["Notes", *(f"  {note}" for note in resolved.notes)])
    sections.append(_memory(memory))
    warnings = _warnings(resolved.settings, memory)
    if warnings:
        sections.append([f"warning: {warning}" for warning in warnings])
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _settings(resolved: Resolved) -> list[str]:
    settings = resolved.settings
    rows = []
    for option in options_of(settings.dialect):
        if not isinstance(option.status, Works) or option.name == "check":
            continue
        shown = option.shown(resolved.values[option.name])
        if option.name == "model" and not settings.model:
            shown = "the embedded model"
        if option.name == "cache-dir":
            shown = settings.cache_dir
        rows.append((option.name, shown, settings.origins[option.name]))
    wide = max(len(shown) for _, shown, _ in rows if len(shown) <= 40)
    lines = [f"  {name:<26}{shown:<{wide}}  {origin}" for name, shown, origin in rows]
    return [f"{settings.dialect} serve", *lines]


def _memory(memory: MemoryPlan) -> list[str]:
    per_token = f"{memory.kv_bytes_per_token:,} bytes" if memory.kv_bytes_per_token else "not known"
    context = f"{memory.context:,} tokens" if memory.context else "not known"
    rows = [
        ("computed on", memory.device.upper()),
        ("parameters", f"{memory.parameters / 1e6:,.1f} million"),
        ("weights as stored", shown_bytes(memory.weights_stored)),
        ("weights as held", shown_bytes(memory.weights_held)),
        ("keys and values", f"{per_token} per token, at most"),
        ("context", context),
        ("sequences at once", str(memory.sequences)),
        ("physical memory", shown_bytes(memory.physical) if memory.physical else "not known"),
    ]
    if memory.physical:
        usable = usable_bytes(memory.physical)
        rows += [
            ("for running requests", f"{shown_bytes(kv_bytes(usable, memory.weights_held))} of caches"),
            ("freed buffers kept", f"{shown_bytes(reuse_bytes(usable, memory.device))}; given back when nothing runs"),
        ]
    if memory.kv_bytes_per_context:
        rows.insert(6, ("one whole context", shown_bytes(memory.kv_bytes_per_context)))
        rows.append(("whole contexts that fit", str(memory.contexts_that_fit) if memory.physical else "not known"))
        rows.append(("all at whole context", f"{shown_bytes(memory.most_bytes)}, weights included"))
    return [f"Memory plan ({memory.model_type})", *(f"  {name:<26}{value}" for name, value in rows)]


def _warnings(settings: Settings, memory: MemoryPlan) -> list[str]:
    found = []
    if not memory.fits:
        found.append(
            f"the weights ({shown_bytes(memory.weights_held)}) do not fit in memory ({shown_bytes(memory.physical)}); "
            "the server would not start"
        )
    elif memory.physical and memory.kv_bytes_per_context and not memory.contexts_that_fit:
        found.append("not one whole context fits beside the weights: give --context-length")
    if not settings.api.api_keys and settings.host not in ("127.0.0.1", "localhost", "::1"):
        found.append(f"{settings.host} may be reached from elsewhere, and no --api-key is given")
    return found
