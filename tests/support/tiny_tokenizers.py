"""Tokenizers of each kind, small enough to make in a test, and the directories a model keeps them in."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It isn't far, is it?",
    "Übermäßig schöne Grüße aus Köln, naïve café, 5 € und mehr.",
    "決葉葉葉 你好世界 世界你好 漢字とかな 안녕하세요 여러분",
    "😀😁😂 👩\u200d💻 👨\u200d👩\u200d👧 ok! \n\t  spaces   and\nlines",
] * 4
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level() -> Backend:
    """Byte-level BPE whose merges run over the borders of characters."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|im_start|>", "<|im_end|>"],
    )  # fmt: skip
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return backend


def sentence_piece(prepend: bool = True) -> Backend:
    """BPE with byte fallback, as Llama 2 (with a space in front of every text) and Gemma (without) have it."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for piece in [*"▁abcdefghijklmnopqrstuvwxyzTI.,'", "▁t", "▁th", "▁the", "▁▁", "▁▁▁"]:
        vocabulary[piece] = len(vocabulary)
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "▁"), ("▁▁", "▁")]
    backend = Backend(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    front: list[Any] = [normalizers.Prepend("▁")] if prepend else []
    backend.normalizer = normalizers.Sequence([*front, normalizers.Replace(" ", "▁")])
    back: list[Any] = [decoders.Strip(" ", 1, 0)] if prepend else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *back])
    backend.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in ("<s>", "</s>")])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return backend


def unigram() -> Backend:
    """Unigram with Metaspace before and after, as T5 has it."""
    backend = Backend(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, show_progress=False, unk_token="<unk>", special_tokens=["<unk>"])
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def word_piece() -> Backend:
    """WordPiece, as BERT has it."""
    words = ["[UNK]", "the", "fox", "is", "n", "'", "t", "far", "##s", "##ing", ",", ".", "it", "jump"]
    backend = Backend(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return backend


def word_end() -> Backend:
    """BPE that marks the ends of words, as CLIP has it: its decoder needs the whole list."""
    backend = Backend(models.BPE(end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(vocab_size=300, end_of_word_suffix="</w>", show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens(["<|end|>"])
    return backend


def tagged() -> Backend:
    """Byte-level with a pattern taken off each token first."""
    backend = byte_level()
    backend.decoder = decoders.Sequence([decoders.Replace(Regex("[xz]+"), ""), decoders.ByteLevel()])
    return backend


def save(backend: Backend, path: Path, **config: Any) -> Path:
    """Write a model directory without a model. ``config`` goes into tokenizer_config.json."""
    path.mkdir(parents=True, exist_ok=True)
    backend.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    (path / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return path
