"""Options of ``bramley serve`` alone."""

from bramley.config.kinds import Integer
from bramley.config.row import BRAMLEY, Option

# fmt: off
ROWS = (
    Option("prefill-chunk", Integer(0), "Prompt tokens computed per step, all prompts together; 0: as suits "
           "the device.",
           0, group="Scheduling", to="engine.prefill_chunk", dialects=(BRAMLEY,)),
)
# fmt: on
