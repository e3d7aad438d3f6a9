"""What servers do wrong is told in one line each."""

from __future__ import annotations

import re

import httpx
import pytest

from paceline.errors import EndpointError, InvalidInput
from paceline.workbench.audit.endpoint import Endpoint, EndpointSettings, base_url
from tests.workbench.audit.servers import Server, endpoint, ok, running

ASK = {"max_tokens": 3, "options": {"temperature": 0.0}}


def answering(*answers):
    """A server that gives one answer after the other, then the last one again."""
    left = list(answers)

    def serve(method, path, body):
        return left.pop(0) if len(left) > 1 else left[0]

    return serve


def refused(message):
    return pytest.raises(EndpointError, match=re.escape(message))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, "text/html", b"<html>\nHello"), "answered with text/html: '<html> Hello'. Is it an"),
        ((200, "application/json", b"[1]"), "must answer with a JSON object"),
        ((400, "application/json", b'{"error": {"message": "too\\nlong"}}'), "answered 400: too l"),
        ((401, "application/json", b'{"detail": "no key"}'), "answered 401: no key"),
        ((404, "text/plain", b"nothing here"), "answered 404: nothing here"),
        ((500, "application/json", b'{"error": "it broke"}'), "answered 500: it broke"),
        ((503, "text/plain", b""), "answered 503: no reason given"),
        (ok({"error": {"message": "no"}}), "answered with an error: no"),
        (ok({"choices": []}), "answered without choices"),
        (ok({"choices": [{"finish_reason": "stop"}]}), "answered without a text"),
    ],
)
def test_wrong_answers(answer, message):
    with refused(message) as error, endpoint(answering(answer), model="m", retries=1) as found:
        found.ask("red", **ASK)
    assert "\n" not in str(error.value)


def test_what_may_pass_is_tried_again():
    busy = (503, "text/plain", b"busy")
    with endpoint(answering(busy, busy, ok({"choices": [{"text": "x"}]})), model="m") as found:
        assert found.ask("red", **ASK).text == "x"
    once = answering(busy, ok({"choices": [{"text": "x"}]}))
    with refused("503"), endpoint(once, model="m", retries=0) as found:
        found.ask("red", **ASK)


def test_nobody_there_and_no_answer_in_time():
    settings = EndpointSettings(model="m", retries=0)
    with (
        refused("cannot reach http://127.0.0.1:9/v1/completions"),
        Endpoint("http://127.0.0.1:9", settings) as found,
    ):
        found.ask("red", **ASK)

    def late(request):
        raise httpx.ReadTimeout("late", request=request)

    settings = EndpointSettings(model="m", timeout=2, retries=1, pause=0)
    transport = httpx.MockTransport(late)
    with (
        refused("did not answer within 2 s"),
        Endpoint("http://toy", settings, transport=transport) as found,
    ):
        found.ask("red", **ASK)


def test_the_model_is_the_only_one_or_has_to_be_named():
    with endpoint(Server()) as found:
        assert found.identify() == "toy"
    for names, message in ((("a", "b"), "it lists a, b. Give --model NAME"), ((), "lists none")):
        with refused(message), endpoint(Server(names=names)) as found:
            found.identify()
    message = "404: The model `other` does not exist"
    with refused(message), endpoint(Server(), model="other") as found:
        found.ask("red", **ASK)


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_log_probabilities_in_both_forms(api):
    prompt = [{"role": "user", "content": "red"}] if api == "chat" else "red"
    with endpoint(Server(), api=api) as found:
        reply = found.ask(prompt, logprobs=True, **ASK)
        assert found.ask(prompt, **ASK).scores is None
    assert reply.num_tokens == 3
    assert "".join(score.text for score in reply.scores) == reply.text
    for score in reply.scores:
        values = [value for _, value in score.top]
        assert values == sorted(values, reverse=True)
        assert score.top[0] == (score.text, score.logprob)


def test_the_chat_form_in_an_answer_for_completions():
    content = [{"token": "x", "logprob": -0.5, "top_logprobs": [{"token": "x", "logprob": -0.5}]}]
    answer = ok({"choices": [{"text": "x", "logprobs": {"content": content}}]})
    with endpoint(answering(answer), model="m") as found:
        assert found.ask("red", logprobs=True, **ASK).scores[0].top == (("x", -0.5),)


def test_broken_log_probabilities_are_none():
    answer = ok({"choices": [{"text": "x", "logprobs": {"tokens": ["x"], "token_logprobs": []}}]})
    with endpoint(answering(answer), model="m") as found:
        assert found.ask("red", logprobs=True, **ASK).scores is None


def test_addresses():
    assert base_url("http://h:1") == "http://h:1/v1"
    assert base_url("http://h:1/v1/") == "http://h:1/v1"
    assert base_url("http://h:1/v1/completions") == "http://h:1/v1"
    for wrong in ("h:1", "ftp://h", "", "http://"):
        with pytest.raises(InvalidInput, match="expected the address of a server"):
            base_url(wrong)


def test_over_a_socket():
    seen = []

    def serve(method, path, body):
        seen.append(path)
        return Server()(method, path, body)

    with running(serve) as url, Endpoint(url) as found:
        assert found.ask("red", **ASK).text
    assert seen == ["/v1/models", "/v1/completions"]
