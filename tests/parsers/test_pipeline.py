"""The order of the stages, and what becomes of tokens that have no text to show."""

from collections.abc import Sequence

from bramley.domain.events import (
    Event,
    Piece,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from bramley.parsers.base import Item, Parser, cut
from bramley.parsers.pipeline import Pipeline
from tests.support.think_parser import ThinkParser


class CallParser:
    """Claims a control token ``[CALL]`` and everything after it as one tool call."""

    def __init__(self) -> None:
        self._open = False

    def feed(self, pieces: Sequence[Piece]) -> list[Item]:
        items: list[Item] = []
        for piece in pieces:
            if self._open:
                items.append(ToolCallDelta(0, piece.text))
            elif piece.is_special and piece.text == "[CALL]":
                self._open = True
                items.append(ToolCallStart(0, "call_0", "f"))
            else:
                items.append(piece)
        return items

    def finish(self) -> list[Item]:
        return [ToolCallEnd(0)] if self._open else []


def word(text: str, number: int = 0, special: bool = False) -> Piece:
    return Piece(text, (number,), special, (TokenLogprob(number, -1.0, text.encode()),))


def run(pipeline: Pipeline, *pieces: Piece) -> list[Event]:
    events: list[Event] = []
    for piece in pieces:
        events += pipeline.feed([piece])
    return events + pipeline.finish()


def test_text_of_one_call_is_one_event() -> None:
    (event,) = Pipeline().feed([word("a", 1), word("b", 2)])
    assert isinstance(event, TextDelta)
    assert (event.text, event.tokens, [entry.token_id for entry in event.logprobs]) == ("ab", 2, [1, 2])


def test_a_stop_string_ends_an_open_tool_call_and_text_before_it_is_part_of_it() -> None:
    pipeline = Pipeline(("STOP",), tools=CallParser())
    events = run(pipeline, word("a "), word("[CALL]", special=True), word("{} ST"), word("OP x"), word("y"))
    assert pipeline.stopped == "STOP"
    assert pipeline.keep_tokens == 4
    assert [type(event) for event in events] == [TextDelta, ToolCallStart, ToolCallDelta, ToolCallEnd]
    assert events[2] == ToolCallDelta(0, "{} ")


def test_the_same_letters_typed_as_text_are_no_control_token() -> None:
    events = run(Pipeline(tools=CallParser()), word("[CALL]"), word("x"))
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["[CALL]", "x"]


def test_events_of_the_call_that_stops_come_with_it_and_nothing_comes_after() -> None:
    pipeline = Pipeline((".",), tools=CallParser())
    events = pipeline.feed([word("[CALL]", special=True), word("a"), word("."), word("b")])
    assert events[-1] == ToolCallEnd(0)
    assert pipeline.feed([word("c")]) == []
    assert pipeline.finish() == []


def test_a_control_token_nobody_claims_keeps_its_place_in_the_logprobs_without_bytes() -> None:
    pipeline = Pipeline()
    events = run(pipeline, word("a", 1), word("<|x|>", 2, special=True), word("b", 3))
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["a", "b"]
    last = events[-1]
    assert isinstance(last, TextDelta)
    assert [(entry.token_id, entry.data) for entry in last.logprobs] == [(2, b""), (3, b"b")]
    assert last.tokens == 2


def test_tokens_without_text_at_the_end_come_with_a_last_event() -> None:
    events = run(Pipeline(), word("<|x|>", 2, special=True))
    assert events == [TextDelta("", (TokenLogprob(2, -1.0),), 1)]


def test_nothing_comes_of_nothing() -> None:
    assert run(Pipeline()) == []
    assert run(Pipeline(("x",), ThinkParser(), CallParser())) == []


def test_a_stop_string_can_be_completed_by_text_released_at_the_end() -> None:
    pipeline = Pipeline(("<th",), reasoning=ThinkParser())
    events = run(pipeline, word("<"), word("thi"))
    assert events == []
    assert pipeline.stopped == "<th"
    assert pipeline.keep_tokens == 2


def test_reasoning_comes_before_the_text_it_precedes() -> None:
    events = run(Pipeline(("END",), ThinkParser()), word("<think>why END"), word("</think>so EN"), word("d"))
    assert [type(event) for event in events] == [ReasoningDelta, TextDelta, TextDelta]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "so ENd"


def test_the_test_parsers_keep_to_the_seam() -> None:
    parsers: list[Parser] = [ThinkParser(), CallParser()]
    assert all(parser.finish() == [] for parser in parsers)


def test_a_cut_piece_leaves_its_tokens_where_their_text_begins() -> None:
    piece = word("abc", 7)
    head, tail = cut(piece, 1)
    assert (head.text, head.token_ids, head.logprobs) == ("a", (7,), piece.logprobs)
    assert (tail.text, tail.token_ids, tail.logprobs) == ("bc", (), ())
