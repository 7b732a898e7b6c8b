"""Limits of the operating system that a server must raise for itself."""

import logging
import resource

log = logging.getLogger("bramley.app")

WANTED_DESCRIPTORS = 8192


def raise_descriptor_limit() -> None:
    """macOS starts programs with 256 descriptors, which some hundred streams would use up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(WANTED_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError) as error:
            log.warning("the limit of %d open files could not be raised: %s", soft, error)
