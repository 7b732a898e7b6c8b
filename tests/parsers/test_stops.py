"""The stop matcher against the plain definition: the first string to be complete, the longest of several."""

from hypothesis import given, settings
from hypothesis import strategies as st

from bramley.domain.events import Piece, TokenLogprob
from bramley.parsers.stops import StopMatcher

LETTERS = st.text(alphabet="ab", max_size=12)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=4)


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut_up(text: str, cuts: list[int]) -> list[str]:
    bounds = sorted(cut % (len(text) + 1) for cut in cuts)
    return [text[start:end] for start, end in zip([0, *bounds], [*bounds, len(text)], strict=True)]


@settings(max_examples=200, deadline=None)
@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 20), max_size=5))
def test_the_first_complete_stop_string_wins_at_every_split(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for part in cut_up(text, cuts):
        shown += "".join(piece.text for piece in matcher.feed([Piece(part)]))
    shown += "".join(piece.text for piece in matcher.finish())
    assert (shown, matcher.matched) == expected(text, stops)


@settings(max_examples=150, deadline=None)
@given(text=LETTERS, stops=STOPS)
def test_no_more_is_held_back_than_could_begin_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for end, character in enumerate(text, 1):
        shown += "".join(piece.text for piece in matcher.feed([Piece(character)]))
        if matcher.matched is not None:
            return
        held = text[len(shown) : end]
        longest = max(n for n in range(end + 1) if any(stop.startswith(text[end - n : end]) for stop in stops))
        assert len(held) == longest


@settings(max_examples=150, deadline=None)
@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 20), max_size=5))
def test_tokens_travel_with_the_text_they_begin(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    parts = [Piece(part, (number,)) for number, part in enumerate(cut_up(text, cuts))]
    passed: list[Piece] = []
    for part in parts:
        passed += matcher.feed([part])
    passed += matcher.finish()
    shown, start, wanted = expected(text, stops)[0], 0, []
    for part in parts:
        # With a match, a token counts when some of its text stands before it, or all, if it has none.
        if start < len(shown) or (matcher.matched is None) or (not part.text and start <= len(shown)):
            wanted.append(part.token_ids[0])
        start += len(part.text)
    kept = [token_id for piece in passed for token_id in piece.token_ids]
    assert [token_id for token_id in kept if parts[token_id].text] == [
        token_id for token_id in wanted if parts[token_id].text
    ]
    assert kept == sorted(kept)


def test_logprobs_of_tokens_in_and_after_the_match_are_dropped() -> None:
    pieces = [
        Piece(text, (number,), False, (TokenLogprob(number, -1.0),))
        for number, text in enumerate(("ab", "c<", "e", "nd>", "x"))
    ]
    matcher = StopMatcher(["<end>"])
    passed = matcher.feed(pieces)
    assert "".join(piece.text for piece in passed) == "abc"
    assert [entry.token_id for piece in passed for entry in piece.logprobs] == [0, 1]


def test_a_very_long_stop_string_costs_no_more_for_each_character() -> None:
    matcher = StopMatcher(["a" * 50_000 + "b"])
    held = sum(len(matcher.feed([Piece("a" * 100)])) for _ in range(400))
    assert held == 0
    assert "".join(piece.text for piece in matcher.finish()) == "a" * 40_000
