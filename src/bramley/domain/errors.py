"""Every error a caller can meet. The message is one sentence for a user: what is wrong and what to do.

BramleyError
|-- StartupError            the server cannot start with these settings
|   `-- ModelLoadError      the model directory is missing, broken or too large
|-- RequestError            the request is at fault
|   |-- InvalidRequest      a field is missing, malformed or not supported; ``param`` names it
|   |-- ContextExceeded     prompt and answer do not fit the model's context
|   |-- ModelNotFound
|   |-- Unauthorized
|   |-- NotFound
|   |-- MethodNotAllowed
|   `-- BodyTooLarge
`-- ServiceError            the server is at fault, or has too much to do
    |-- Overloaded          the queue is full; ``retry_after_s`` says when to come back
    |-- Timeout
    |-- ModelUnavailable    the worker is loading, restarting or failed
    |-- WorkerDied          the worker ended while it worked on this request
    |-- GenerationFailed    the model raised an error on this request
    |-- SlowReader          the client fell too far behind its own stream
    |-- ShuttingDown
    `-- InternalError       a bug in Bramley; the log says more
"""


class BramleyError(Exception):
    """Root of the tree. ``code`` is a stable word for programs."""

    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class StartupError(BramleyError):
    pass


class ModelLoadError(StartupError):
    code = "model_load_failed"


class RequestError(BramleyError):
    pass


class InvalidRequest(RequestError):
    code = "invalid_value"


class ContextExceeded(RequestError):
    code = "context_length_exceeded"


class ModelNotFound(RequestError):
    code = "model_not_found"


class Unauthorized(RequestError):
    code = "invalid_api_key"


class NotFound(RequestError):
    code = "not_found"


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"


class BodyTooLarge(RequestError):
    code = "body_too_large"


class ServiceError(BramleyError):
    pass


class Overloaded(ServiceError):
    code = "queue_full"
    retry_after_s = 1.0


class Timeout(ServiceError):
    code = "timeout"


class ModelUnavailable(ServiceError):
    code = "model_unavailable"
    retry_after_s = 2.0


class WorkerDied(ServiceError):
    code = "worker_died"
    retry_after_s = 2.0


class GenerationFailed(ServiceError):
    code = "generation_failed"


class SlowReader(ServiceError):
    code = "slow_reader"


class ShuttingDown(ServiceError):
    code = "shutting_down"


class InternalError(ServiceError):
    code = "internal_error"
