"""Each case of tests/data/text_cases.jsonl through detokenizer and pipeline, however its bytes fall into tokens."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bramley.domain.events import Event, ReasoningDelta, TextDelta
from bramley.domain.wire import Logprobs
from bramley.parsers.pipeline import Pipeline
from bramley.service.tokenizer import Tokenizer
from tests.support.script_model import Piece, Script, ScriptTokenizer, parse_pieces
from tests.support.think_parser import ThinkParser

FILE = Path(__file__).parent.parent / "data" / "text_cases.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def join(pieces: tuple[Piece, ...]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        if joined and isinstance(piece, bytes) and isinstance(joined[-1], bytes):
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined


def splits(pieces: tuple[Piece, ...]) -> Iterator[tuple[Piece, ...]]:
    """As given, whole, per character, per byte, and at every two-way split of the bytes."""
    whole = join(pieces)
    yield pieces
    yield tuple(whole)
    for size in ("character", "byte"):
        parts: list[Piece] = []
        for piece in whole:
            if not isinstance(piece, bytes):
                parts.append(piece)
            elif size == "byte":
                parts += [bytes([byte]) for byte in piece]
            else:
                parts += [c.encode(errors="surrogateescape") for c in piece.decode(errors="surrogateescape")]
        yield tuple(parts)
    for index, piece in enumerate(whole):
        for at in range(1, len(piece) if isinstance(piece, bytes) else 0):
            assert isinstance(piece, bytes)
            yield (*whole[:index], piece[:at], piece[at:], *whole[index + 1 :])


SCRIPTS = [
    [Script(f"{number}.{split}", pieces) for split, pieces in enumerate(splits(parse_pieces(case["pieces"])))]
    for number, case in enumerate(CASES)
]
every_case = pytest.mark.parametrize("number", range(len(CASES)), ids=[case["id"] for case in CASES])
whole_answers = [n for n, case in enumerate(CASES) if "stopped" not in case and "reasoning" not in case]


class Player:
    """Runs scripts through a real tokenizer's detokenizer and a pipeline, ``interval`` tokens at a time."""

    def __init__(self, path: Path) -> None:
        made = ScriptTokenizer(script for scripts in SCRIPTS for script in scripts)
        made.save(path)
        self.ids = made.ids
        self.tokenizer = Tokenizer.load(path)

    def run(self, script: Script, case: dict[str, Any], interval: int) -> tuple[Pipeline, list[Event]]:
        pipeline = Pipeline(tuple(case.get("stop", ())), ThinkParser() if "reasoning" in case else None)
        detokenizer = self.tokenizer.detokenizer()
        token_ids = self.ids[script.name]
        events: list[Event] = []
        for start in range(0, len(token_ids), interval):
            ids = token_ids[start : start + interval]
            events += pipeline.feed(detokenizer.feed(ids, tuple(Logprobs(-float(token)) for token in ids)))
        events += pipeline.feed(detokenizer.finish())
        return pipeline, events + pipeline.finish()


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Player:
    return Player(tmp_path_factory.mktemp("cases"))


@every_case
def test_a_case_comes_out_right_at_every_split(player: Player, number: int) -> None:
    case = CASES[number]
    for script in SCRIPTS[number]:
        for interval in (1, 3, 1000):
            pipeline, events = player.run(script, case, interval)
            text = "".join(event.text for event in events if isinstance(event, TextDelta))
            reasoning = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
            assert text == case["content"], script
            assert reasoning == case.get("reasoning", ""), script
            assert pipeline.stopped == case.get("stopped"), script


@every_case
def test_the_tokens_of_an_answer_are_counted_up_to_the_one_that_completes_a_stop_string(
    player: Player, number: int
) -> None:
    case = CASES[number]
    for interval in (1, 2, 1000):
        pipeline, _ = player.run(SCRIPTS[number][0], case, interval)
        assert pipeline.keep_tokens == case["keep_tokens"]


@pytest.mark.parametrize("number", whole_answers, ids=[CASES[number]["id"] for number in whole_answers])
def test_logprobs_are_one_a_token_and_their_bytes_are_the_text(player: Player, number: int) -> None:
    case, script = CASES[number], SCRIPTS[number][0]
    ids = player.ids[script.name]
    for interval in (1, 4, 1000):
        _, events = player.run(script, case, interval)
        texts = [event for event in events if isinstance(event, TextDelta)]
        logprobs = [entry for event in texts for entry in event.logprobs]
        assert [entry.token_id for entry in logprobs] == list(ids)
        assert [entry.logprob for entry in logprobs] == [-float(token) for token in ids]
        assert sum(event.tokens for event in texts) == len(ids)
        assert b"".join(entry.data for entry in logprobs).decode(errors="replace") == case["content"]
