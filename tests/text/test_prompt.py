"""The oracle is the tokenizer: its own `encode`, and its own rendering of the chat template."""

import pytest

from paceline.errors import InvalidInput
from paceline.text import encode_prompt
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


@pytest.mark.model
def test_smollm2(smollm2_tokenizer):
    ids = encode_prompt(smollm2_tokenizer, [{"role": "user", "content": "Hi"}])
    assert smollm2_tokenizer.decode(ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
