"""The grammar of methods, and every way to get it wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.errors import InvalidInput, UnknownName
from paceline.workbench.workload.methods import DraftSource, HeadForm, HeadSource, parse_methods

DEFAULT = DraftSource("small", "int4", 500)


def test_plain_decoding_is_always_first_and_once() -> None:
    assert [method.name for method in parse_methods(["ngram", "none"])] == ["none", "ngram"]
    assert parse_methods(["none"])[0].options({}) == {"drafter": "none", "drafter_options": {}}


def test_lists_of_values_make_a_grid() -> None:
    methods = parse_methods(["ngram,k=2,4,max_ngram=3,5"])[1:]
    assert [method.name for method in methods] == [
        "ngram,k=2,max_ngram=3",
        "ngram,k=2,max_ngram=5",
        "ngram,k=4,max_ngram=3",
        "ngram,k=4,max_ngram=5",
    ]
    assert methods[1].options({}) == {
        "drafter": "ngram",
        "drafter_options": {"max_ngram": 5},
        "controller": "fixed",
        "num_draft_tokens": 2,
    }


def test_draft_models_are_named_in_the_method_or_by_the_options() -> None:
    named, default, changed = parse_methods(
        ["model,draft=big,k=3", "model", "model,storage=int8"], DEFAULT
    )[1:]
    assert named.draft == DraftSource("big")  # what was said of the default is not said of it
    assert default.draft == DEFAULT
    assert changed.draft == DraftSource("small", "int8", 500)
    assert named.options({DraftSource("big"): "loaded"})["draft_model"] == "loaded"
    (ngram,) = parse_methods(["ngram"], DEFAULT)[1:]
    assert ngram.draft is None


def test_several_drafters_in_one_method() -> None:
    (both,) = parse_methods(["ngram+model,ngram.max_ngram=4,min_confidence=0.4,k=3"], DEFAULT)[1:]
    assert both.drafter == "ngram,model"
    assert both.draft == DEFAULT
    assert dict(both.settings) == {"ngram.max_ngram": 4, "min_confidence": 0.4}


@pytest.mark.parametrize(
    ("text", "draft", "drafters"),
    [
        ('hybrid,k=4,drafters=["ngram","recycling"]', None, ["ngram", "recycling"]),
        ('hybrid,drafters=["ngram","tree"],tree.branching=[2,1],k=4', DEFAULT, ["ngram", "tree"]),
        ("hybrid", DEFAULT, None),
    ],
)
def test_a_drafter_that_combines_others_has_the_model_that_these_need(
    text: str, draft: DraftSource | None, drafters: list[str] | None
) -> None:
    (method,) = parse_methods([text], DEFAULT)[1:]
    assert method.draft == draft
    assert method.settings.get("drafters") == drafters


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("branching=[3,2],[2,1,1]", [[3, 2], [2, 1, 1]]),
        ("paths=[[0],[1],[0,0]]", [[[0], [1], [0, 0]]]),
        ('params={"temperature":0.5,"top_k":3}', [{"temperature": 0.5, "top_k": 3}]),
        ("max_nodes=3,5", [3, 5]),
    ],
)
def test_lists_and_objects_are_single_values(setting: str, values: list[Any]) -> None:
    methods = parse_methods([f"tree,{setting},k=3"], DEFAULT)[1:]
    name = setting.partition("=")[0]
    assert [method.settings[name] for method in methods] == values
    assert all(method.num_draft_tokens == 3 for method in methods)


def test_commas_in_a_text_of_json_split_nothing() -> None:
    texts = ['a, b] and "c"', "d"]
    (method,) = parse_methods([f"reference,references={json.dumps(texts)},k=2"])[1:]
    assert method.settings["references"] == texts


HEAD = HeadSource("heads/one", HeadForm("int4", 4000))


@pytest.mark.parametrize(
    ("text", "draft", "head", "form"),
    [
        ("head", None, "heads/one", HeadForm("int4", 4000)),
        ("medusa,storage=int8", None, "heads/one", HeadForm("int8", 4000)),
        ("medusa,head_tokens=all", None, "heads/one", HeadForm("int4", "all")),
        ("medusa,head=other", None, "other", HeadForm()),
        ("medusa,head=other,head_tokens=9", None, "other", HeadForm(None, 9)),
        # Beside a draft model, its own storage is meant.
        ("model+head,storage=int8", DEFAULT._replace(storage="int8"), "heads/one", HEAD.form),
    ],
)
def test_a_head_is_loaded_as_the_method_says(
    text: str, draft: DraftSource | None, head: str, form: HeadForm
) -> None:
    (method,) = parse_methods([text], DEFAULT, head=HEAD)[1:]
    assert (method.settings["head"], method.head, method.draft) == (head, form, draft)
    if draft is None:
        assert method.to_json()["draft_head_tokens"] == form.head_tokens
        named = {"draft_storage": form.storage, "draft_head_tokens": form.head_tokens}
        found = method.options({})
        assert {name: found.get(name) for name in named} == named


def test_the_rule_is_a_setting_of_the_method() -> None:
    (method,) = parse_methods(["ngram,verify=coupling"])[1:]
    assert method.options({})["verify"] == "coupling"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "a method begins with the name"),
        ("k=4", "a method begins with the name"),
        ("ngram+", "a method begins with the name"),
        ("ngram,4", "'4' is neither NAME=VALUE nor another value"),
        ("ngram,model", "'model' is neither"),
        ("ngram,k=", "a value is empty"),
        ("ngram,k=2,,3", "a value is empty"),
        ("ngram,k=2,k=3", "'k' is given twice"),
        ("ngram,=2", "has no name"),
        ("ngram,k=many", "k must be a whole number, or auto; it is 'many'"),
        ("ngram,k=-1", "k must be a whole number"),
        ("none,k=3", "'none' is plain decoding, alone"),
        ("none+ngram", "'none' is plain decoding, alone"),
        ("model,storage=int4", "storage and head_tokens go with a draft model"),
        ("model,draft=x,storage=int3", "storage is one of auto"),
        ("model,draft=x,head_tokens=no", "head_tokens must be a whole number above 0"),
        ("model", "drafter 'model' needs a draft model; give draft=NAME in the method"),
        ("ngram,draft=x", "takes no draft model"),
    ],
)
def test_what_does_not_follow_the_grammar(text: str, part: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_methods([text])
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("ngrm", "did you mean 'ngram'"),
        ("ngram,max_ngrm=3", "did you mean 'max_ngram'"),
        ("ngram,verify=tokn", "did you mean 'token'"),
    ],
)
def test_unknown_names_name_the_nearest(text: str, part: str) -> None:
    with pytest.raises(UnknownName) as caught:
        parse_methods([text])
    assert part in str(caught.value)


def test_a_method_is_given_once() -> None:
    with pytest.raises(InvalidInput, match="'ngram,k=3' is given twice"):
        parse_methods(["ngram,k=3", "ngram,k=2,3"])
