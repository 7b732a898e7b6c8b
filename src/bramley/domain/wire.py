"""Messages between the front and a worker.

Transport: a socketpair; each message is a 4-byte big-endian length and that many bytes of msgpack, an array
``[tag, field, ...]`` (msgspec ``array_like`` structs, so that a field may be added at the end without breaking an
older reader). ``VERSION`` changes when that is not enough; both sides compare it in ``Load`` and ``Ready``.

``sequence`` numbers are the front's, unique per worker connection; ``job`` numbers likewise.
"""

from typing import Any, Literal

import msgspec

from bramley.domain.requests import Grammar, Priority
from bramley.domain.sampling import Sampling
from bramley.domain.usage import CacheHit, Timings

VERSION = 1
MAX_MESSAGE_BYTES = 1 << 30

Phase = Literal["starting", "converting", "loading", "idle", "prefill", "decode", "job", "stopping"]
FailureKind = Literal["load", "request", "step", "memory", "overloaded", "internal"]


class ForceTokens(msgspec.Struct, frozen=True, array_like=True):
    """After ``after`` generated tokens, append ``ids`` unless token ``unless_seen`` has been generated before."""

    after: int
    unless_seen: int
    ids: tuple[int, ...]


class MediaSpan(msgspec.Struct, frozen=True, array_like=True):
    """Where prepared media stands in a prompt: ``length`` token positions from ``start``; ``digest`` names it."""

    start: int
    length: int
    digest: bytes


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and policies of the engine. Bytes, tokens and milliseconds; 0 means "decide by measurement"."""

    max_num_seqs: int = 64
    max_queue: int = 1024
    context_length: int = 0
    prefill_chunk: int = 0
    target_gap_ms: float = 200.0
    kv_bits: int = 0
    kv_group_size: int = 64
    kv_quantize_from: int = 256
    cache_bytes: int = 0
    cache_block: int = 64
    cache_dir: str = ""
    cache_disk_bytes: int = 0
    speculative: dict[str, Any] = {}


class ComputeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the worker computes. ``dtype`` auto: the model's own on a GPU, float32 on CPU. ``threads`` 0: by cores."""

    dtype: str = "auto"
    threads: int = 0
    blas: Literal["auto", "off"] = "auto"
    memory_limit_bytes: int = 0


class ToWorker(msgspec.Struct, frozen=True, array_like=True, tag_field="t"):
    """Base of what the front sends."""


class Load(ToWorker, frozen=True, tag="load", kw_only=True):
    """First message. ``kind`` names the runner; ``path`` is a local directory, or empty for the embedded model.

    ``cache_dir`` is where a worker may keep what it builds (converted models, compiled shims).
    """

    version: int = VERSION
    kind: str = "text"
    path: str = ""
    cache_dir: str = ""
    adapters: dict[str, str] = {}
    compute: ComputeOptions = ComputeOptions()
    engine: EngineOptions = EngineOptions()
    options: dict[str, Any] = {}


class Submit(ToWorker, frozen=True, tag="submit", kw_only=True):
    """Generate from ``token_ids``. ``stop_token_ids`` are all that end it, the model's own included."""

    sequence: int
    token_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop_token_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None
    priority: Priority = "normal"
    cache_salt: str = ""
    use_cache: bool = True
    force: ForceTokens | None = None
    adapter: str = ""
    media: tuple[MediaSpan, ...] = ()


class Cancel(ToWorker, frozen=True, tag="cancel"):
    """End a sequence. With ``keep_tokens`` N its answer counts, for usage and cache, as if it ended at token N."""

    sequence: int
    keep_tokens: int | None = None


class Prepare(ToWorker, frozen=True, tag="prepare"):
    """Vision: let the model's processor turn messages (JSON) and media bytes into token ids and spans."""

    job: int
    messages: bytes
    media: tuple[bytes, ...] = ()
    options: dict[str, Any] = {}


class Embed(ToWorker, frozen=True, tag="embed"):
    """Embed token id lists, between two steps of the engine."""

    job: int
    inputs: tuple[tuple[int, ...], ...]
    options: dict[str, Any] = {}


class Run(ToWorker, frozen=True, tag="run"):
    """One-shot job of a runner: an image, speech, a transcription, cache administration."""

    job: int
    task: str
    params: dict[str, Any] = {}
    blobs: tuple[bytes, ...] = ()


class CancelJob(ToWorker, frozen=True, tag="cancel_job"):
    job: int


class StatsPlease(ToWorker, frozen=True, tag="stats_please"):
    """Ask for a ``Stats`` now, beside those pushed."""


class Ping(ToWorker, frozen=True, tag="ping"):
    """Answered by the IO thread at once, also while the main thread computes."""

    nonce: int


class Shutdown(ToWorker, frozen=True, tag="shutdown"):
    """Stop accepting, save what must be saved, exit."""


class ToFront(msgspec.Struct, frozen=True, array_like=True, tag_field="t"):
    """Base of what a worker sends."""


class Memory(msgspec.Struct, frozen=True, array_like=True):
    """Bytes. ``weights`` as measured after loading; the others as MLX counts them."""

    weights: int = 0
    active: int = 0
    peak: int = 0
    cache: int = 0


class Ready(ToFront, frozen=True, tag="ready", kw_only=True):
    """The model is loaded.

    ``path`` is the model directory the front takes the tokenizer from. ``kv_bytes_per_token`` is for planning.
    ``notes`` are sentences for the log and /health: BLAS in use, fall-backs taken, tensor types converted.
    """

    version: int = VERSION
    path: str = ""
    kind: str = "text"
    model_type: str = ""
    capabilities: tuple[str, ...] = ()
    context_length: int = 0
    vocab_size: int = 0
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    dtype: str = ""
    device: str = ""
    threads: int = 1
    kv_bytes_per_token: int = 0
    memory: Memory = Memory()
    load_s: float = 0.0
    notes: tuple[str, ...] = ()


class Progress(ToFront, frozen=True, tag="progress"):
    """``done`` of ``total`` units; ``job`` 0 is the load itself."""

    phase: Phase
    done: float
    total: float
    note: str = ""
    job: int = 0


class Logprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural log-probabilities of one token and of the best ``top`` tokens of its position, best first."""

    chosen: float
    top_ids: tuple[int, ...] = ()
    top: tuple[float, ...] = ()


class Row(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one sequence. ``logprobs`` is empty or as long as ``token_ids``."""

    sequence: int
    token_ids: tuple[int, ...]
    logprobs: tuple[Logprobs, ...] = ()


class Step(ToFront, frozen=True, tag="step"):
    """What one engine step produced, for all its sequences. End-of-turn tokens are not in it."""

    rows: tuple[Row, ...]


class Finished(ToFront, frozen=True, tag="finished", kw_only=True):
    """A sequence ended. ``completion_tokens`` counts the stop token, whose id is ``stop_token_id``."""

    sequence: int
    reason: Literal["stop", "length", "cancelled"]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cache_hit: CacheHit = "miss"
    stop_token_id: int | None = None
    timings: Timings = Timings()


class PromptLogprobs(ToFront, frozen=True, tag="prompt_logprobs"):
    sequence: int
    rows: tuple[Logprobs, ...]


class Failed(ToFront, frozen=True, tag="failed", kw_only=True):
    """A sequence, a job or (with neither) the worker itself failed. ``message`` is one sentence for a user."""

    kind: FailureKind
    message: str
    sequence: int | None = None
    job: int | None = None


class Result(ToFront, frozen=True, tag="result"):
    """Answer of a job."""

    job: int
    value: Any = None
    blobs: tuple[bytes, ...] = ()


class SequenceStats(msgspec.Struct, frozen=True, array_like=True):
    sequence: int
    phase: Literal["queued", "prefill", "generation"]
    prompt_tokens: int
    prefilled_tokens: int
    generated_tokens: int
    max_tokens: int
    cached_tokens: int = 0
    cache_hit: CacheHit = "miss"
    ttft_s: float | None = None
    age_s: float = 0.0


class Stats(ToFront, frozen=True, tag="stats", kw_only=True):
    """Pushed at every change of load and at most some times a second, so that status never waits for a worker."""

    running: int = 0
    waiting: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finished: int = 0
    memory: Memory = Memory()
    cache: dict[str, Any] = {}
    sequences: tuple[SequenceStats, ...] = ()


class Pong(ToFront, frozen=True, tag="pong"):
    """``beat`` grows whenever the main thread makes progress; ``busy_s`` is how long it has not."""

    nonce: int
    phase: Phase
    beat: int
    busy_s: float


FrontMessage = Load | Submit | Cancel | Prepare | Embed | Run | CancelJob | StatsPlease | Ping | Shutdown
WorkerMessage = Ready | Progress | Step | Finished | PromptLogprobs | Failed | Result | Stats | Pong

_encoder = msgspec.msgpack.Encoder()
front_decoder: msgspec.msgpack.Decoder[WorkerMessage] = msgspec.msgpack.Decoder(WorkerMessage)
worker_decoder: msgspec.msgpack.Decoder[FrontMessage] = msgspec.msgpack.Decoder(FrontMessage)


def frame(message: ToWorker | ToFront) -> bytes:
    """The bytes of one message, length first."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body
