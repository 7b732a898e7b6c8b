"""Options of ``bramley serve`` alone."""

from bramley.config.kinds import Flag, Integer
from bramley.config.row import BRAMLEY, Option

# fmt: off
ROWS = (
    Option("prefill-chunk", Integer(0), "Prompt tokens computed per step, all prompts together; 0: as suits "
           "the device.",
           0, group="Scheduling", to="engine.prefill_chunk", dialects=(BRAMLEY,)),
    Option("strict-fields", Flag(), "Refuse requests with fields that nobody knows; else each is logged once.",
           False, group="Server", to="api.strict_fields", dialects=(BRAMLEY,)),
)
# fmt: on
