from types import SimpleNamespace

import pytest

from paceline.cli import render


def generation(**changes):
    spec = {
        "drafter": "ngram",
        "verifier": "token",
        "exact": True,
        "num_accepted_tokens": 6,
        "mean_acceptance_length": 2.5,
        "draft_acceptance_rate": 0.375,
    }
    values = {
        "token_ids": tuple(range(10)),
        "finish_reason": "stop",
        "decode_seconds": 0.5,
        "tokens_per_second": 20.0,
        "spec": spec | changes.pop("spec", {}),
    }
    return SimpleNamespace(**values | changes)


def test_only_accepted_draft_tokens_are_coloured():
    pieces = [
        SimpleNamespace(text=text, drafted=drafted)
        for text, drafted in [("a", True), ("[b]", False), ("", True), ("\x1b[31mc", True)]
    ]
    text = render.answer_text(pieces)
    assert text.plain == "a[b][31mc"
    spans = [(text.plain[span.start : span.end], span.style) for span in text.spans]
    assert spans == [("a", "green"), ("[31mc", "green")]


def test_summary_says_how_much_how_fast_and_how_well():
    assert render.summary(generation(), legend=False).plain == (
        "10 tokens in 0.50 s, 20.0 tokens/s; mean acceptance length 2.50, acceptance rate 0.38 "
        "(ngram)"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"finish_reason": "length"}, "cut off at the token limit"),
        ({"spec": {"exact": False}}, "not exact: the rule token changes"),
        ({"spec": {"draft_acceptance_rate": None}}, "nothing was drafted (ngram)"),
        ({"token_ids": (1,)}, "1 token in"),
        ({"token_ids": (), "tokens_per_second": None, "decode_seconds": 0.0}, "0 tokens;"),
    ],
)
def test_summary_says_what_is_special(changes, said):
    assert said not in render.summary(generation(), legend=False).plain
    assert said in render.summary(generation(**changes), legend=False).plain


def test_the_legend_is_there_only_where_something_is_coloured():
    legend = "accepted draft tokens look like this"
    assert legend in render.summary(generation(), legend=True).plain
    nothing = generation(spec={"num_accepted_tokens": 0})
    assert legend not in render.summary(nothing, legend=True).plain
    assert legend not in render.summary(generation(), legend=False).plain
