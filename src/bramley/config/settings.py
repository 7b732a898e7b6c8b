"""Everything the server is told, resolved and frozen. Built by ``config.options``, read by ``app``."""

from typing import Literal

import msgspec

from bramley.api.options import ApiOptions
from bramley.domain.wire import ComputeOptions, EngineOptions
from bramley.service.options import ServiceOptions
from bramley.workers.options import SupervisorOptions

Dialect = Literal["bramley", "vllm-mlx", "mlx-openai-server"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """``model`` empty: the embedded model. ``origins`` says for each option name where its value came from."""

    dialect: Dialect = "bramley"
    model: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    shutdown_timeout_s: float = 3.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    cache_dir: str = ""
    api: ApiOptions = ApiOptions()
    service: ServiceOptions = ServiceOptions()
    supervisor: SupervisorOptions = SupervisorOptions()
    compute: ComputeOptions = ComputeOptions()
    engine: EngineOptions = EngineOptions()
    origins: dict[str, str] = {}
