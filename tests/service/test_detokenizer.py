"""Detokenizers on tokenizers of every kind: the pieces joined are the text, whatever the split."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers

from bramley.domain.events import Piece
from bramley.domain.wire import Logprobs
from bramley.service.detokenizer import Detokenizer, WindowDetokenizer
from bramley.service.tokenizer import Tokenizer
from bramley.service.vocabulary import Vocabulary, compile_rules
from tests.support import tiny_tokenizers

TEXTS = st.text(alphabet=st.characters(codec="utf-8"), max_size=40)
SAMPLE = "The quick brown fox isn't far. 決葉 你好世界 👩\u200d💻 naïve €5\n\t  x  y"


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path_factory.mktemp("byte_level")))


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizers.save(tiny_tokenizers.sentence_piece(), tmp_path_factory.mktemp("spm")))


def load(backend: Backend, path: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizers.save(backend, path))


def run(detokenizer: Detokenizer, token_ids: tuple[int, ...], cuts: tuple[int, ...] = ()) -> list[Piece]:
    pieces: list[Piece] = []
    for start, end in zip((0, *cuts), (*cuts, len(token_ids)), strict=True):
        pieces += detokenizer.feed(token_ids[start:end])
    return pieces + detokenizer.finish()


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def ids_of(pieces: list[Piece]) -> tuple[int, ...]:
    return tuple(token_id for piece in pieces for token_id in piece.token_ids)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS, data=st.data())
def test_any_text_comes_back_whole_at_every_split(byte_level: Tokenizer, text: str, data: st.DataObject) -> None:
    ids = byte_level.encode(text, False)
    cuts = tuple(sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4))))
    pieces = run(byte_level.detokenizer(), ids, cuts)
    assert text_of(pieces) == text
    assert ids_of(pieces) == ids
    for end in range(len(ids)):
        shown = text_of(byte_level.detokenizer().feed(ids[:end]))
        assert text.startswith(shown)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_bytes_come_back_as_decoding_them_all_at_once_would(byte_level: Tokenizer, data: st.DataObject) -> None:
    ids = tuple(data.draw(st.lists(st.integers(2, byte_level.vocab_size - 2), max_size=30)))
    cuts = tuple(sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4))))
    backend = byte_level._backend
    whole = "".join(str(backend.id_to_token(index)) for index in ids)
    expected = bytes(BYTES[character] for character in whole).decode(errors="replace")
    pieces = run(byte_level.detokenizer(), ids, cuts)
    assert text_of(pieces) == expected
    assert ids_of(pieces) == ids


def bytes_to_characters() -> dict[int, str]:
    """Found by asking the tokenizers library, not by the rule under test."""
    pre = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    table: dict[int, str] = {}
    for text in [*map(chr, range(0x80)), *map(chr, range(0x80, 0x800)), *map(chr, range(0x800, 0x10000, 0x200))]:
        if not 0xD800 <= ord(text) < 0xE000:
            table |= dict(zip(text.encode(), pre.pre_tokenize_str(text)[0][0], strict=True))
    for text in ("\U00010000", "\U00050000", "\U00090000", "\U000d0000", "\U00100000"):
        table |= dict(zip(text.encode(), pre.pre_tokenize_str(text)[0][0], strict=True))
    # Bytes no text has: the alphabet's rest, in order.
    rest = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - set(table.values()), key=lambda c: (ord(c) > 0xFF, c))
    return table | dict(zip(sorted(set(range(256)) - set(table)), rest, strict=True))


BYTES = {character: byte for byte, character in bytes_to_characters().items()}


def test_no_replacement_character_appears_before_the_end(byte_level: Tokenizer) -> None:
    detokenizer = byte_level.detokenizer()
    ids = byte_level.encode("決葉 👩\u200d💻 €", False)
    for piece in detokenizer.feed(ids[:-1]):
        assert "\ufffd" not in piece.text


@pytest.mark.parametrize("make", ["byte_level", "sentence_piece", "unigram", "word_piece", "word_end", "tagged"])
def test_every_kind_of_decoder_gives_what_decoding_the_whole_gives(make: str, tmp_path: Path) -> None:
    backend: Backend = getattr(tiny_tokenizers, make)()
    tokenizer = load(backend, tmp_path)
    for text in (SAMPLE, "the fox isn't jumping , is it .", "the  the", " the", ""):
        ids = tokenizer.encode(text, False)
        whole = backend.decode(list(ids), skip_special_tokens=False)
        for cut in range(len(ids) + 1):
            pieces = run(tokenizer.detokenizer(), ids, (cut,))
            assert text_of(pieces) == whole
            assert ids_of(pieces) == ids


def test_a_decoder_that_needs_the_whole_list_is_read_through_a_window(tmp_path: Path) -> None:
    detokenizer = load(tiny_tokenizers.word_end(), tmp_path).detokenizer()
    assert isinstance(detokenizer, WindowDetokenizer)


def test_a_window_gives_control_tokens_and_logprobs_like_any_other(tmp_path: Path) -> None:
    tokenizer = load(tiny_tokenizers.word_end(), tmp_path)
    (end,) = tokenizer.special_ids
    ids = (*tokenizer.encode("The fox", False), end)
    pieces = tokenizer.detokenizer().feed(ids, tuple(Logprobs(-1.0, (index,), (-1.0,)) for index in ids))
    assert pieces[-1].text == "<|end|>" and pieces[-1].is_special
    assert [entry.token_id for piece in pieces for entry in piece.logprobs] == list(ids)


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Metaspace(),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Replace("▁", " "),
        decoders.WordPiece(),
    ],
    ids=["Metaspace", "ByteFallback", "Replace", "WordPiece"],
)
@pytest.mark.parametrize("pre_tokenizer", ["byte level", "none"])
def test_a_byte_level_vocabulary_with_another_decoder_is_repaired(
    decoder: Any, pre_tokenizer: str, tmp_path: Path
) -> None:
    backend = tiny_tokenizers.byte_level()
    ids = tuple(backend.encode(SAMPLE, add_special_tokens=False).ids)
    backend.decoder = decoder
    if pre_tokenizer == "none":
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = load(backend, tmp_path)
    assert text_of(run(tokenizer.detokenizer(), ids)) == SAMPLE


def test_bytes_of_sentencepiece_tokens_are_joined_to_characters(sentence_piece: Tokenizer) -> None:
    ids = sentence_piece.encode("the 決\U0001f600", False)
    assert len(ids) > 7
    shown = [piece.text for piece in sentence_piece.detokenizer().feed(ids)]
    assert [text for text in shown if text][-2:] == ["決", "\U0001f600"]


def test_the_space_in_front_of_a_text_is_dropped_unless_the_text_continues_another(sentence_piece: Tokenizer) -> None:
    ids = sentence_piece.encode("the the", False)
    assert text_of(run(sentence_piece.detokenizer(), ids)) == "the the"
    assert text_of(run(sentence_piece.detokenizer(continues=True), ids)) == " the the"


def test_added_tokens_are_their_own_text_and_control_tokens_are_marked(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("a<tool_call>b<|im_end|>", False)
    pieces = run(byte_level.detokenizer(), ids)
    assert [(piece.text, piece.is_special) for piece in pieces] == [
        ("a", False), ("<tool_call>", False), ("b", False), ("<|im_end|>", True),
    ]  # fmt: skip


def test_ids_no_token_has_are_counted_and_say_nothing(byte_level: Tokenizer) -> None:
    pieces = run(byte_level.detokenizer(), (byte_level.vocab_size + 5, *byte_level.encode("a", False)))
    assert text_of(pieces) == "a"
    assert len(ids_of(pieces)) == 2


def test_two_sequences_at_once_do_not_disturb_each_other(byte_level: Tokenizer) -> None:
    texts = ("決葉葉葉 👩\u200d💻", "Hello there! How can I assist you?")
    sequences = [(byte_level.detokenizer(), list(byte_level.encode(text, False))) for text in texts]
    shown = ["", ""]
    while any(ids for _, ids in sequences):
        for number, (detokenizer, ids) in enumerate(sequences):
            if ids:
                shown[number] += text_of(detokenizer.feed((ids.pop(0),)))
    assert tuple(shown) == texts


def test_logprobs_wait_with_their_bytes_and_keep_them_exact(byte_level: Tokenizer) -> None:
    detokenizer = byte_level.detokenizer()
    ids = byte_level.encode("\U0001f9ff", False)
    assert len(ids) > 1
    rows = tuple(Logprobs(-0.5, (token_id, 40), (-0.5, -2.0)) for token_id in ids)
    assert detokenizer.feed(ids[:-1], rows[:-1]) == []
    (piece,) = detokenizer.feed(ids[-1:], rows[-1:])
    assert piece.text == "\U0001f9ff"
    assert b"".join(entry.data for entry in piece.logprobs) == "\U0001f9ff".encode()
    assert [entry.token_id for entry in piece.logprobs] == list(ids)
    assert [best.token_id for best in piece.logprobs[0].top] == [ids[0], 40]
    assert piece.logprobs[0].top[1].logprob == -2.0
    assert piece.logprobs[0].top[1].data


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        {"type": "Strip", "content": " ", "start": 0, "stop": 1},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteLevel"}]},
        {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Replace", "pattern": {"String": "a"}}]},
    ],
    ids=json.dumps,
)
def test_a_decoder_that_is_not_known_to_work_on_single_tokens_is_not_guessed_at(decoder: dict[str, Any] | None) -> None:
    assert compile_rules(decoder) is None


def test_a_vocabulary_is_worked_out_once_for_each_token() -> None:
    vocabulary = Vocabulary.of(tiny_tokenizers.byte_level())
    assert vocabulary is not None
    assert vocabulary[40] is vocabulary[40]
