"""Values that depend on the machine."""

import pytest

from bramley.config.rules import cache_dir


@pytest.mark.parametrize(
    ("environ", "platform", "expected"),
    [
        ({"HOME": "/h"}, "linux", "/h/.cache/bramley"),
        ({"HOME": "/h"}, "darwin", "/h/Library/Caches/bramley"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "linux", "/x/bramley"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "darwin", "/x/bramley"),
        ({"HOME": "/h", "XDG_CACHE_HOME": ""}, "linux", "/h/.cache/bramley"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "relative"}, "linux", "/h/.cache/bramley"),
    ],
)
def test_the_cache_lies_where_the_system_keeps_caches(environ: dict[str, str], platform: str, expected: str) -> None:
    assert cache_dir(environ, platform) == expected
