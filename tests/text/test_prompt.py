"""The oracle is the tokenizer: its own `encode`, and its own rendering of the chat template."""

import pytest

from paceline.errors import InvalidInput
from paceline.text import ChatOptions, encode_prompt
from tests import tiny_tokenizers

PLAIN = tiny_tokenizers.byte_level()
CHAT = tiny_tokenizers.byte_level(chat_template=tiny_tokenizers.CHAT_TEMPLATE, add_bos=True)
MESSAGES = [{"role": "system", "content": "the"}, {"role": "user", "content": "stop?"}]


@pytest.mark.parametrize("tokenizer", [PLAIN, CHAT])
@pytest.mark.parametrize("text", ["the stop", " ", "🙂", "<|user|>"])
def test_text_is_encoded_as_the_tokenizer_does(tokenizer, text):
    ids = encode_prompt(tokenizer, text)
    assert ids == tokenizer(text)["input_ids"]
    assert (ids[0] == tokenizer.bos_token_id) == (tokenizer is CHAT)


@pytest.mark.parametrize("tokenizer", [PLAIN, CHAT])
def test_a_start_token_in_the_text_is_not_doubled(tokenizer):
    ids = encode_prompt(tokenizer, "<s>the")
    assert tokenizer.decode(ids) == "<s>the"


def test_a_start_token_that_the_user_doubled_stays_doubled():
    # The tokenizer adds none here, so both are the user's.
    assert PLAIN.decode(encode_prompt(PLAIN, "<s><s>the")) == "<s><s>the"


@pytest.mark.parametrize(
    ("add_generation_prompt", "expected"),
    [
        (True, "<s><|system|>the<|end|><|user|>stop?<|end|><|assistant|>"),
        (False, "<s><|system|>the<|end|><|user|>stop?<|end|>"),
    ],
)
def test_messages_go_through_the_template(add_generation_prompt, expected):
    ids = encode_prompt(CHAT, MESSAGES, add_generation_prompt)
    assert CHAT.decode(ids) == expected
    # Roles are single tokens, and the start token of the template is the only one.
    assert ids.count(CHAT.bos_token_id) == 1
    assert CHAT.convert_tokens_to_ids("<|user|>") in ids


def test_tuples_and_other_mappings_are_messages_too():
    from types import MappingProxyType

    frozen = tuple(MappingProxyType(message) for message in MESSAGES)
    assert encode_prompt(CHAT, frozen) == encode_prompt(CHAT, MESSAGES)


@pytest.mark.parametrize(
    ("tokenizer", "prompt", "message"),
    [
        (PLAIN, "", "empty; give some text"),
        (CHAT, [], "empty; give at least one message"),
        (PLAIN, MESSAGES, "no chat template"),
        (CHAT, {"role": "user", "content": "x"}, "list of messages"),
        (CHAT, b"text", "it is of type bytes"),
        (CHAT, 7, "it is of type int"),
        (CHAT, None, "it is of type NoneType"),
        (CHAT, ["text"], "message 0 must be a mapping"),
        (CHAT, [MESSAGES[0], {"role": "user"}], "message 1 needs a content .* there is none"),
        (CHAT, [{"content": "x"}], "message 0 needs a role .* there is none"),
        (CHAT, [{"role": "user", "content": 3}], "needs a content that is a text; it is 3"),
        (CHAT, [{"role": None, "content": "x"}], "needs a role that is a text; it is None"),
        (CHAT, [{"role": "wizard", "content": "x"}], "refuses these messages: unknown role wizard"),
        (PLAIN, "a\udcff", "not valid Unicode"),
        (CHAT, [{"role": "user", "content": "\ud800"}], "message 0 is not valid Unicode"),
    ],
)
def test_a_bad_prompt_is_refused(tokenizer, prompt, message):
    with pytest.raises(InvalidInput, match=message):
        encode_prompt(tokenizer, prompt)


TEMPLATE = (
    "{% if tools %}<|system|>{{ tools | map(attribute='name') | join(',') }}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ '' if enable_thinking else 'no' }}{% endif %}"
)
OPEN = tiny_tokenizers.byte_level(chat_template=TEMPLATE)
BEGUN = [*MESSAGES, {"role": "assistant", "content": "the st"}]


def rendered(messages, **options):
    return OPEN.decode(encode_prompt(OPEN, messages, chat=ChatOptions(**options)))


def test_tools_and_values_go_to_the_template():
    user = MESSAGES[1:]
    assert rendered(user) == "<|user|>stop?<|end|><|assistant|>no"
    thinking = {"template_kwargs": {"enable_thinking": True}}
    assert rendered(user, **thinking) == "<|user|>stop?<|end|><|assistant|>"
    tools = [{"name": "add"}, {"name": "stop"}]
    assert rendered(user, tools=tools).startswith("<|system|>add,stop<|end|><|user|>")


def test_a_message_of_the_assistant_is_continued():
    whole = "<|system|>the<|end|><|user|>stop?<|end|><|assistant|>the st"
    assert rendered(BEGUN, continue_final_message=True) == whole
    assert rendered(BEGUN) == whole + "<|end|><|assistant|>no"


def test_content_in_parts_and_none():
    parts = [{"type": "text", "text": "the"}, {"type": "text", "text": "stop"}]
    told = [{"role": "user", "content": parts}]
    assert rendered(told) == rendered([{"role": "user", "content": "the\nstop"}])
    called = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    silent = {"role": "assistant", "tool_calls": [{"name": "add"}]}
    for message in (called, silent):
        assert rendered([*MESSAGES, message]) == rendered([*MESSAGES, {**called, "content": ""}])
    assert told[0]["content"] is parts, "the caller's messages stay as they are"


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        ("the", {"tools": [{}]}, "require chat messages; the prompt is a text"),
        ("the", {"continue_final_message": True}, "require chat messages"),
        (MESSAGES, {"continue_final_message": True}, "continues a message of the assistant.*user"),
        (MESSAGES, {"template_kwargs": {"enable_thinkin": True}}, "never reads 'enable_thinkin'"),
        (MESSAGES, {"template_kwargs": {"tokenize": False}}, "'tokenize' is not a value for"),
        (MESSAGES, {"template_kwargs": {"tools": []}}, "'tools' is not a value.*option of its own"),
        (MESSAGES, {"tools": "add"}, "tools must be a list of JSON schemas or of functions"),
        (MESSAGES, {"tools": [3]}, "tools must be a list"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], {}, "not text.*'image_url'"),
        ([{"role": "user", "content": ["the"]}], {}, "message 0 has a part .* not text"),
        ([{"role": "user", "content": None}], {}, "message 0 needs a content"),
        ([{"role": "assistant"}], {}, "message 0 needs a content .* there is none"),
        ([{"role": "user", "content": []}], {}, "message 0 has no parts"),
    ],
)
def test_what_a_chat_refuses(messages, options, message):
    with pytest.raises(InvalidInput, match=message):
        encode_prompt(OPEN, messages, chat=ChatOptions(**options))


def test_a_template_without_tools_refuses_them():
    with pytest.raises(InvalidInput, match="never reads 'tools'"):
        encode_prompt(CHAT, MESSAGES, chat=ChatOptions(tools=[{"name": "add"}]))


@pytest.mark.model
def test_smollm2(smollm2_tokenizer):
    ids = encode_prompt(smollm2_tokenizer, [{"role": "user", "content": "Hi"}])
    assert smollm2_tokenizer.decode(ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
