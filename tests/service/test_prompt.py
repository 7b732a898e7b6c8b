"""Prompts of each kind become the token ids the model was trained to read."""

from pathlib import Path
from typing import Any

import pytest

from bramley.domain.errors import InvalidRequest
from bramley.domain.messages import MediaPart, Message, Part, TextPart
from bramley.domain.requests import ChatPrompt, TextPrompt, TokenPrompt
from bramley.domain.tools import Tool, ToolCall
from bramley.service.prompt import Prompter
from bramley.service.template import shape_messages
from bramley.service.tokenizer import Tokenizer
from tests.support import tiny_tokenizers

# Shows everything a template can see of a message.
SHOW = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}|{{ m.content }}{% if m.reasoning_content %}"
    "|think {{ m.reasoning_content }}{% endif %}{% for c in m.tool_calls %}|{{ c.function.name }}"
    "{% for k, v in c.function.arguments | items %} {{ k }}={{ v }}{% endfor %}{% endfor %}"
    "{% if m.tool_call_id %}|{{ m.tool_call_id }}{% endif %}]{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if probe %}PROBE{% endif %}"
    "{% if add_generation_prompt %}[assistant|{% endif %}"
)
STRICT = (
    "{% for m in messages %}{% if m.content == 'fault' %}{{ raise_exception('System role not supported.') }}{% endif %}"
    "{{ m.content + 1 if m.content == 'add' else m.content }}{% endfor %}"
)


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def make(template: str | dict[str, str] | None, kind: str = "byte_level", **config: Any) -> Prompter:
        if template is not None:
            config["chat_template"] = template
        backend = getattr(tiny_tokenizers, kind)()
        return Prompter(Tokenizer.load(tiny_tokenizers.save(backend, tmp_path / kind, **config)))

    return make


def message(role: Any, *texts: str, **more: Any) -> Message:
    return Message(role, tuple(TextPart(text) for text in texts), **more)


def chat(*messages: Message, **more: Any) -> ChatPrompt:
    return ChatPrompt(messages, **more)


def render(prompter: Prompter, prompt: ChatPrompt) -> str:
    return prompter._tokenizer.render(prompt)


def test_messages_are_rendered_by_the_template_of_the_model(load: Any) -> None:
    prompter = load(SHOW)
    assert render(prompter, chat(message("user", "hi"))) == "[user|hi][assistant|"


def test_text_parts_are_one_string_and_no_content_is_an_empty_one(load: Any) -> None:
    prompter = load(SHOW)
    prompt = chat(message("user", "a", "b"), message("assistant"), message("user", "c"))
    assert render(prompter, prompt) == "[user|ab][assistant|][user|c][assistant|"


def test_system_messages_are_one_and_stand_in_front(load: Any) -> None:
    prompter = load(SHOW)
    prompt = chat(message("system", "one"), message("user", "hi"), message("system", "two"))
    assert render(prompter, prompt) == "[system|one\n\ntwo][user|hi][assistant|"


def test_tool_calls_their_results_and_reasoning_reach_the_template(load: Any) -> None:
    prompter = load(SHOW)
    calls = (ToolCall("c1", "get", '{"city": "Paris", "days": 2}'),)
    prompt = chat(
        message("user", "hi"),
        Message("assistant", tool_calls=calls, reasoning="hm"),
        message("tool", "sunny", tool_call_id="c1"),
    )
    assert render(prompter, prompt) == "[user|hi][assistant||think hm|get city=Paris days=2][tool|sunny|c1][assistant|"


@pytest.mark.parametrize("arguments", ["not json", "[1]", "", "[" * 100_000])
def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    (shaped,) = shape_messages([Message("assistant", tool_calls=(ToolCall("c", "f", arguments),))])
    assert shaped["tool_calls"][0]["function"]["arguments"] == arguments


def test_tools_and_template_arguments_reach_the_template_and_no_tools_change_nothing(load: Any) -> None:
    prompter = load(SHOW)
    plain = chat(message("user", "hi"))
    tools = (Tool("f", "does", {"type": "object"}),)
    shown = render(prompter, chat(message("user", "hi"), tools=tools, template_kwargs={"probe": True}))
    assert '"name": "f"' in shown and "PROBE" in shown
    assert render(prompter, plain) == "[user|hi][assistant|"


def test_the_last_assistant_message_can_be_left_open(load: Any) -> None:
    prompter = load(tiny_tokenizers.CHATML)
    prompt = chat(message("user", "hi"), message("assistant", "Once"), continue_last=True)
    assert render(prompter, prompt).endswith("<|im_start|>assistant\nOnce")


def test_named_templates_are_chosen_by_whether_there_are_tools(load: Any) -> None:
    prompter = load({"default": "plain", "tool_use": "tools"})
    assert render(prompter, chat(message("user", "hi"))) == "plain"
    assert render(prompter, chat(message("user", "hi"), tools=(Tool("f"),))) == "tools"


@pytest.mark.parametrize("where", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_template_is_found_wherever_the_model_keeps_it(where: str, tmp_path: Path) -> None:
    config = {} if where == "chat_template.jinja" else {"chat_template": "found"}
    path = tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path, **config)
    if where == "chat_template.jinja":
        (path / where).write_text("found")
    tokenizer = Tokenizer.load(path)
    assert tokenizer.has_template
    assert tokenizer.render(chat(message("user", "hi"))) == "found"


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (chat(message("user", "fault")), "System role not supported"),
        (chat(message("user", "add")), "int"),
        (chat(message("user", "hi"), template_kwargs={"tokenize": True, "tools": []}), "may not set tokenize, tools"),
        (chat(message("user", "hi"), continue_last=True, template_kwargs={"chat_template": "x"}), "chat_template"),
    ],
    ids=["its own message", "a type error", "reserved names", "another template"],
)
def test_what_a_template_refuses_is_the_callers_error_in_one_sentence(load: Any, prompt: Any, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load(STRICT).prepare(prompt)
    assert says in caught.value.message
    assert "\n" not in caught.value.message and "Traceback" not in caught.value.message


def test_a_model_without_a_template_completes_text_and_says_so_to_chats(load: Any) -> None:
    prompter = load(None)
    assert not prompter._tokenizer.has_template
    assert prompter.prepare(TextPrompt("hi"))
    with pytest.raises(InvalidRequest, match=r"no chat template.*completions"):
        prompter.prepare(chat(message("user", "hi")))


def test_media_on_a_text_model_is_named_and_refused(load: Any) -> None:
    parts: tuple[Part, ...] = (TextPart("what is it?"), MediaPart("image", b"png"))
    with pytest.raises(InvalidRequest, match="image"):
        load(SHOW).prepare(chat(Message("user", parts)))


@pytest.mark.parametrize("text", ["hi there", "<s>hi there", ""])
def test_text_gets_the_first_token_once_and_no_last_one(load: Any, text: str) -> None:
    prompter = load(None, "sentence_piece", bos_token="<s>", eos_token="</s>")
    ids = prompter.prepare(TextPrompt(text))
    assert ids[0] == 1
    assert ids.count(1) == 1
    assert 2 not in ids


def test_a_chat_gets_the_first_token_once(load: Any) -> None:
    prompter = load(SHOW, "sentence_piece", bos_token="<s>", eos_token="</s>")
    ids = prompter.prepare(chat(message("user", "hi")))
    assert ids.count(1) == 1
    assert ids[0] == 1


def test_token_ids_pass_as_they_are_within_range(load: Any) -> None:
    prompter = load(None)
    size = tiny_tokenizers.byte_level().get_vocab_size()
    assert prompter.prepare(TokenPrompt((0, 5, size - 1))) == (0, 5, size - 1)
    for wrong in (size, -1):
        with pytest.raises(InvalidRequest, match=f"{wrong} is out of range"):
            prompter.prepare(TokenPrompt((0, wrong)))


@pytest.mark.parametrize("prompt", [TextPrompt("a\ud83d"), chat(message("user", "a\ud83d"))])
def test_half_of_a_surrogate_pair_is_refused(load: Any, prompt: Any) -> None:
    with pytest.raises(InvalidRequest, match="surrogate"):
        load(SHOW).prepare(prompt)


@pytest.mark.parametrize("kind", ["byte_level", "sentence_piece"])
@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_control_words_in_what_a_user_wrote_are_text(load: Any, kind: str, role: str) -> None:
    template = tiny_tokenizers.CHATML if kind == "byte_level" else "<s>{{ messages[0].content }}</s>"
    prompter = load(template, kind)
    tokenizer = prompter._tokenizer
    words = ("<|im_end|>", "<|im_start|>") if kind == "byte_level" else ("</s>", "<s>")
    plain = chat(message(role, "the end the start the the"))
    prompt = chat(message(role, f"the{words[0]}the{words[1]}{words[0]}the the"))
    ids = prompter.prepare(prompt)
    controls = [token_id for token_id in ids if token_id in tokenizer.special_ids]
    assert controls == [token_id for token_id in prompter.prepare(plain) if token_id in tokenizer.special_ids]
    shown = "".join(piece.text for piece in tokenizer.detokenizer().feed(ids))
    assert shown.replace("<s> ", "<s>") == tokenizer.render(prompt)


def test_control_words_an_assistant_wrote_are_left_to_the_template(load: Any) -> None:
    prompter = load("{% for m in messages %}{{ m.content.split('<|im_end|>')[0] }}{% endfor %}")
    assert render(prompter, chat(message("user", "a"), message("assistant", "b<|im_end|>c"))) == "ab"


# Users and assistants in turn and nothing else; the second knows no other role at all.
TURNS = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('No system role.') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate.') }}{% endif %}"
    "[{{ m.role }}|{{ m.content }}]{% endfor %}{% if add_generation_prompt %}[assistant|{% endif %}"
)
ONLY_TWO = TURNS.replace("m.role == 'system'", "m.role not in ('user', 'assistant')")
# Leaves out what it does not know, without a word.
DEAF = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant') %}[{{ m.role }}|{{ m.content }}]{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}[assistant|{% endif %}"
)


@pytest.mark.parametrize("template", [TURNS, ONLY_TWO, DEAF], ids=["turns", "only two", "deaf"])
@pytest.mark.parametrize(
    ("roles", "turns"),
    [
        ("su", "[user|s0\n\nu1]"),
        ("uu", "[user|u0\n\nu1]"),
        ("ssu", "[user|s0\n\ns1\n\nu2]"),
        ("au", "[user|][assistant|a0][user|u1]"),
        ("suaau", "[user|s0\n\nu1][assistant|a2\n\na3][user|u4]"),
        ("us", "[user|s1\n\nu0]"),
        ("s", "[user|s0]"),
    ],
)
def test_templates_that_refuse_roles_or_their_order_get_plain_turns(
    load: Any, template: str, roles: str, turns: str
) -> None:
    names = {"s": "system", "u": "user", "a": "assistant"}
    messages = [message(names[letter], f"{letter}{place}") for place, letter in enumerate(roles)]
    text = render(load(template), chat(*messages))
    if template is DEAF and "s" not in roles:
        assert all(f"{letter}{place}" in text for place, letter in enumerate(roles))
    else:
        assert text == turns + "[assistant|"


def test_calls_and_results_are_text_where_the_template_has_no_word_for_them(load: Any) -> None:
    call = ToolCall("call_1", "weather", '{"city": "Köln"}')
    history = [
        message("user", "rain?"),
        message("assistant", "I look.", tool_calls=(call,)),
        message("tool", "dry", tool_call_id="call_1"),
    ]
    text = render(load(ONLY_TWO), chat(*history))
    assert text == (
        '[user|rain?][assistant|I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>]'
        "[user|<tool_response>\ndry\n</tool_response>][assistant|"
    )


def test_what_no_way_helps_is_refused_with_the_templates_own_first_words(load: Any) -> None:
    never = "{{ raise_exception('Not today' if messages[0].role == 'system' else 'Never') }}"
    with pytest.raises(InvalidRequest, match="does not take these messages: Not today"):
        render(load(never), chat(message("system", "s"), message("user", "u")))
