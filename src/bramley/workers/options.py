"""What the supervisor of a worker is told at start. All times in seconds on a monotonic clock."""

import msgspec


class SupervisorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``hang_s`` is how long the IO thread may not answer; ``stall_s`` how long a busy main thread may not advance.

    A worker that died is started again after ``backoff_s``, doubled each time up to ``backoff_max_s``; after
    ``give_up`` deaths without a finished request between them requests fail at once while it is retried.
    """

    heartbeat_s: float = 2.0
    hang_s: float = 10.0
    stall_s: float = 120.0
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    give_up: int = 3
    stop_s: float = 3.0
