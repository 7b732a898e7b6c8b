"""Loading a tokenizer from a model directory, and using one from several threads."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from bramley.domain.errors import ModelLoadError
from bramley.domain.messages import Message, TextPart
from bramley.domain.requests import ChatPrompt
from bramley.service.tokenizer import Tokenizer
from tests.support import tiny_tokenizers

PROGRAM = """
import sys
from pathlib import Path
from bramley.domain.messages import Message, TextPart
from bramley.domain.requests import ChatPrompt
from bramley.service.prompt import Prompter
from bramley.service.tokenizer import Tokenizer
tokenizer = Tokenizer.load(Path(sys.argv[1]))
Prompter(tokenizer).prepare(ChatPrompt((Message("user", (TextPart("hi"),)),)))
tokenizer.detokenizer().feed((40,))
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "mlx", "mlx_lm", "jax", "tensorflow"}))
"""


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chat")
    return tiny_tokenizers.save(
        tiny_tokenizers.byte_level(), path, chat_template=tiny_tokenizers.CHATML, eos_token="<|im_end|>"
    )


def test_the_text_side_of_the_front_loads_neither_torch_nor_mlx(chat_model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(chat_model)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_text_goes_to_ids_and_back(chat_model: Path) -> None:
    tokenizer = Tokenizer.load(chat_model)
    text = "naïve 決葉 <|im_start|>"
    ids = tokenizer.encode(text, False)
    assert "".join(piece.text for piece in tokenizer.detokenizer().feed(ids)) == text
    assert ids[-1] in tokenizer.special_ids
    assert tokenizer.vocab_size == tiny_tokenizers.byte_level().get_vocab_size()
    assert tokenizer.bos_token_id is None


def test_every_file_that_names_an_end_of_turn_token_is_heard(chat_model: Path, tmp_path: Path) -> None:
    for file in chat_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 40]}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 41}))
    assert Tokenizer.load(tmp_path).eos_token_ids == {1, 40, 41}
    (tmp_path / "generation_config.json").write_text("[broken")
    assert Tokenizer.load(tmp_path).eos_token_ids == {1, 41}


def _nothing(path: Path) -> None:
    """An empty directory."""


def _broken_tokenizer(path: Path) -> None:
    (path / "tokenizer.json").write_text("{")


def _odd_tokenizer(path: Path) -> None:
    (path / "tokenizer.json").write_text('{"model": {"type": "unheard of"}}')


def _remote_code(path: Path) -> None:
    (path / "evil.py").write_text("raise SystemExit(3)")
    auto_map = {"AutoTokenizer": ["evil.Tokenizer", None]}
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Evil", "auto_map": auto_map}))
    (path / "config.json").write_text(json.dumps({"model_type": "evil"}))


@pytest.mark.parametrize("make", [_nothing, _broken_tokenizer, _odd_tokenizer, _remote_code])
def test_a_directory_without_a_usable_tokenizer_is_refused_in_one_sentence(make: Any, tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(ModelLoadError) as caught:
        Tokenizer.load(tmp_path)
    assert str(tmp_path) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no model directory"):
        Tokenizer.load(tmp_path / "nowhere")


def test_a_class_name_in_the_configuration_does_not_replace_what_tokenizer_json_says(
    chat_model: Path, tmp_path: Path
) -> None:
    path = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path, tokenizer_class="LlamaTokenizer")
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    text = "The quick  brown 決葉\nfox"
    ids = Tokenizer.load(path).encode(text, False)
    assert ids == Tokenizer.load(chat_model).encode(text, False)
    assert "".join(piece.text for piece in Tokenizer.load(path).detokenizer().feed(ids)) == text


def test_truncation_and_padding_in_the_file_do_not_touch_prompts(tmp_path: Path) -> None:
    backend = tiny_tokenizers.byte_level()
    long = "spaces and lines " * 50
    plain = Tokenizer.load(tiny_tokenizers.save(backend, tmp_path / "plain")).encode(long, False)
    backend.enable_truncation(8)
    backend.enable_padding(length=2000)
    assert Tokenizer.load(tiny_tokenizers.save(backend, tmp_path / "cut")).encode(long, False) == plain


def test_several_threads_render_and_encode_at_once(chat_model: Path) -> None:
    tokenizer = Tokenizer.load(chat_model)
    prompts = [
        ChatPrompt((Message("user", (TextPart(f"{number} <|im_end|> 決葉 naïve " * number),)),))
        for number in range(1, 9)
    ]
    alone = [tokenizer.encode_chat(prompt) for prompt in prompts]
    barrier = Barrier(8)

    def work(prompt: ChatPrompt) -> list[tuple[int, ...]]:
        barrier.wait()
        return [tokenizer.encode_chat(prompt) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        for expected, found in zip(alone, pool.map(work, prompts), strict=True):
            assert found == [expected] * 20
