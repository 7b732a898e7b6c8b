"""The table of all options. An option is added by one row here: in the file of its command, or in ``common``."""

from bramley.config.row import GROUPS, Option
from bramley.config.settings import Dialect
from bramley.config.tables import bramley, common, vllm_mlx

OPTIONS: tuple[Option, ...] = (*common.ROWS, *bramley.ROWS, *vllm_mlx.ROWS)


def options_of(dialect: Dialect) -> tuple[Option, ...]:
    """The options of one command, by group."""
    mine = [option for option in OPTIONS if dialect in option.dialects]
    return tuple(sorted(mine, key=lambda option: GROUPS.index(option.group)))
