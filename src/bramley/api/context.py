"""What every route is given."""

import msgspec

from bramley.api.options import ApiOptions
from bramley.service.generate import Generator
from bramley.service.pool import Pool


class ApiContext(msgspec.Struct, frozen=True):
    pool: Pool
    generator: Generator
    options: ApiOptions
    started: int
    """Unix time of the server's start, in seconds."""
