"""`paceline chat` on tiny models: turns, what is remembered, how answers and errors end."""

import io
import json

import pytest
from rich.console import Console

import paceline
from paceline.cli import chat, interrupts, terminal
from paceline.generate.api import Chunk, Piece

COMMON = ("--max-tokens", 8, "--dtype", "float32")


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


@pytest.fixture
def model(tiny):
    return paceline.load(tiny, dtype="float32")


def answers(result):
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_each_turn_is_answered_with_the_conversation_before_it(run, tiny, model):
    found = answers(run("chat", "-m", tiny, *COMMON, "--json", input="the end\n\nand then\n"))
    first = model.generate([user("the end")], max_tokens=8)
    messages = [user("the end"), assistant(first.text), user("and then")]
    second = model.generate(messages, max_tokens=8)
    assert [answer["token_ids"] for answer in found] == [
        list(first.token_ids),
        list(second.token_ids),
    ]
    assert found[1]["usage"]["prompt_tokens"] == len(model.encode(messages))


def test_the_model_is_loaded_once(run, tiny, monkeypatch):
    loads, load = [], paceline.load

    def counted(*arguments, **options):
        loads.append(arguments)
        return load(*arguments, **options)

    monkeypatch.setattr(paceline, "load", counted)
    result = run("chat", "-m", tiny, *COMMON, input="one\ntwo\nthree\n")
    assert result.exit_code == 0, result.stderr
    assert len(loads) == 1
    assert result.stderr.count("tokens/s") == 3


def test_reset_forgets_and_keeps_the_system_message_and_exit_ends(run, tiny, model):
    lines = "the stop\n/reset\nthe stop\n/exit\nnever answered\n"
    result = run("chat", "-m", tiny, *COMMON, "--system", "END", "--json", input=lines)
    first, second = answers(result)
    system = {"role": "system", "content": "END"}
    expected = model.generate([system, user("the stop")], max_tokens=8)
    assert first["token_ids"] == second["token_ids"] == list(expected.token_ids)
    assert first["usage"] == second["usage"] == expected.usage
    assert "note: a new conversation" in result.stderr


def test_a_pipe_gets_the_bare_answers_one_after_the_other(run, tiny, model):
    result = run("chat", "-m", tiny, *COMMON, input="the end\n/reset\nthe stop")
    texts = [model.generate([user(text)], max_tokens=8).text for text in ("the end", "the stop")]
    assert result.stdout == "".join(f"{text}\n" for text in texts)
    assert "\x1b" not in result.output


def test_settings_and_a_draft_model_draft(run, tiny, tiny_draft, tmp_path):
    file = tmp_path / "settings.json"
    drafting = {"draft_model": str(tiny_draft), "drafter": "model", "num_draft_tokens": 2}
    file.write_text(json.dumps({"schema": "paceline.settings/1", "drafting": drafting}))
    lines = "the end\nthe stop\n"
    (first, second) = answers(
        run("chat", "-m", tiny, *COMMON, "--settings", file, "--json", input=lines)
    )
    plain = answers(run("chat", "-m", tiny, *COMMON, "-d", "none", "--json", input=lines))
    assert first["spec"]["drafter"] == second["spec"]["drafter"] == "model"
    assert second["spec"]["num_draft_tokens"] > 0
    assert [first["token_ids"], second["token_ids"]] == [item["token_ids"] for item in plain]


@pytest.mark.parametrize(
    ("colour", "expected"), [(None, "\x1b[32m the\x1b[0m"), ("1", "said the\n")]
)
def test_accepted_tokens_are_coloured_on_a_terminal(run, tiny, monkeypatch, colour, expected):
    def scripted(model, prompt, **options):
        yield Chunk((Piece("said", 1, drafted=False), Piece(" the", 2, drafted=True)))
        yield model.generate(prompt, **options)

    screen = io.StringIO()
    if colour:
        monkeypatch.setenv("NO_COLOR", colour)
    console = Console(file=screen, force_terminal=True, color_system="standard", width=80)
    monkeypatch.setattr(terminal, "out", lambda: console)
    monkeypatch.setattr(paceline.LanguageModel, "stream", scripted)
    result = run("chat", "-m", tiny, *COMMON, input="the end\n")
    assert result.exit_code == 0, result.stderr
    assert expected in screen.getvalue() + result.stdout


class TestTyped:
    @pytest.fixture
    def typed(self, run, tiny, monkeypatch):
        """Type lines (or what happens instead of one) into a chat."""

        def typed(*lines):
            left = iter(lines)

            def line(prompt):
                found = next(left, EOFError())
                if isinstance(found, BaseException):
                    raise found
                return found

            monkeypatch.setattr(chat, "is_typed", lambda: True)
            monkeypatch.setattr(chat, "_typed", line)
            return run("chat", "-m", tiny, *COMMON)

        return typed

    def test_the_end_of_input_ends_it(self, typed):
        result = typed("the end")
        assert result.exit_code == 0
        assert "/exit or Ctrl-D ends" in result.stderr

    def test_an_interruption_stops_an_answer_and_what_was_shown_is_remembered(
        self, typed, monkeypatch
    ):
        prompts, stream = [], paceline.LanguageModel.stream

        def interrupted(model, prompt, **options):
            prompts.append(prompt)
            if len(prompts) == 1:
                yield Chunk((Piece("so far", 1, drafted=False),))
                raise KeyboardInterrupt
            yield from stream(model, prompt, **options)

        monkeypatch.setattr(paceline.LanguageModel, "stream", interrupted)
        result = typed("the end", "go on", "/exit")
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith("so far\n")
        assert "note: stopped" in result.stderr
        assert prompts[1] == [user("the end"), assistant("so far"), user("go on")]

    def test_an_interruption_before_the_first_word_forgets_the_message(self, typed, monkeypatch):
        prompts, stream = [], paceline.LanguageModel.stream

        def interrupted(model, prompt, **options):
            prompts.append(prompt)
            if len(prompts) == 1:
                raise KeyboardInterrupt
            yield from stream(model, prompt, **options)

        monkeypatch.setattr(paceline.LanguageModel, "stream", interrupted)
        assert typed("the end", "go on", "/exit").exit_code == 0
        assert prompts[1] == [user("go on")]

    def test_an_interruption_at_the_prompt_says_how_to_leave(self, typed):
        result = typed(KeyboardInterrupt(), "/exit")
        assert result.exit_code == 0
        assert result.stderr.count("/exit or Ctrl-D ends") == 2

    def test_being_told_to_end_ends_it(self, typed):
        assert typed(interrupts.Terminated()).exit_code == 130

    def test_a_message_that_does_not_fit_is_refused_and_the_chat_goes_on(self, typed):
        result = typed("the end " * 1000, "the end", "/exit")
        assert result.exit_code == 0
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        assert "takes 1024" in line
        assert "/reset starts a new one, or send a shorter message" in line
        assert result.stderr.count("tokens/s") == 1


def test_a_full_context_says_what_to_do(run, tiny):
    lines = "the " * 490 + "\n"
    result = run("chat", "-m", tiny, "--max-tokens", 2000, "-d", "none", input=lines)
    assert result.exit_code == 0, result.stderr
    assert "cut off at the token limit" in result.stderr
    assert "note: the context of 1024 tokens is full; /reset starts a new one" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-d", "ngran"], "did you mean 'ngram'"),
        (["--chat-option", "thinking=true"], "never reads 'thinking'"),
        (["--draft-storage", "int4"], "require --draft-model"),
    ],
)
def test_bad_input_is_refused_before_the_first_turn(run, tiny, options, message):
    result = run("chat", "-m", tiny, *options, input="the end\n")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr.splitlines()[-1]


def test_a_model_without_a_chat_template_is_refused(run, stranger):
    result = run("chat", "-m", stranger, input="the end\n")
    assert result.exit_code == 2
    assert "has no chat template" in result.stderr
    assert "paceline generate" in result.stderr
