"""The parts of a call, from names and objects, for every door."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, ClassVar

import pytest

from paceline.controllers.auto import AutoController
from paceline.controllers.fixed import FixedController
from paceline.core.view import TargetView
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.predicted_output import PredictedOutputDrafter
from paceline.errors import InvalidInput, PacelineError, UnknownName
from paceline.generate import plugins
from paceline.generate.choice import Choice, choose, choose_drafter
from paceline.generate.draft_models import OpenDraft
from paceline.generate.parts import (
    check_processors,
    draft_weights,
    encode_references,
    make_controller,
    make_drafter,
    make_verifier,
    named_rule,
)
from paceline.verifiers.block import BlockVerifier
from paceline.verifiers.lenience import LenienceVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.top_beta import TopBetaVerifier
from tests.rigged import markov, oracle
from tests.tiny_tokenizers import byte_level, sentencepiece

TARGET = markov(8, 0)
TOKENIZERS = byte_level(), sentencepiece()
AB = tuple(TOKENIZERS[0].encode("ab", add_special_tokens=False))


@dataclass(frozen=True)
class Foreign:
    """A third party's drafter that says nothing of draft models, with a setting of that name."""

    name: ClassVar[str] = "foreign"
    needs: ClassVar[frozenset[str]] = frozenset()
    model: str

    def open(self, target: TargetView, capacity: int) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class ForeignModel(Foreign):
    """A third party's drafter with a draft model."""

    needs_draft_model: ClassVar[bool] = True


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    places = {"foreign": "Foreign", "foreign-model": "ForeignModel"}
    found = EntryPoints(
        EntryPoint(name, f"{__name__}:{attribute}", "paceline.drafters")
        for name, attribute in places.items()
    )
    monkeypatch.setattr(plugins, "entry_points", lambda: found)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    plugins.forget()
    yield
    plugins.forget()


def made(drafter: Any = None, settings: Any = None, draft_model: Any = None) -> Any:
    choice = choose(drafter, settings, draft_model)
    drafts = {}
    if isinstance(choice, Choice):
        for part in choice.with_draft_models():
            target = {"target": TARGET}[part.draft_model]
            drafts[id(part.draft_model)] = OpenDraft(target, target, TOKENIZERS[1])
    return make_drafter(choice, drafts, TOKENIZERS[0])


class TestForeign:
    def test_a_drafter_that_translates_is_handed_both_tokenizers(self) -> None:
        drafter = made("universal", {"mode": "slem"}, "target")
        assert (drafter.model, drafter.mode) == (TARGET, "slem")
        assert (drafter.tokenizer, drafter.draft_tokenizer) == TOKENIZERS

    def test_one_that_is_given_as_a_setting_stays(self) -> None:
        own = byte_level()
        assert made("universal", {"draft_tokenizer": own}, "target").draft_tokenizer is own

    def test_as_a_part_of_a_cascade(self) -> None:
        drafter = made("ngram,universal", {"mode": "slem"}, "target")
        assert drafter.drafters[1].draft_tokenizer is TOKENIZERS[1]


class TestChoice:
    def test_the_default_follows_the_draft_model(self) -> None:
        assert choose_drafter(None) == Choice("ngram", {}, None)
        assert choose_drafter(None, {}, "small") == Choice("model", {}, "small")
        assert choose_drafter("none") == Choice("none", {}, None)

    def test_a_draft_model_may_be_a_setting(self) -> None:
        for drafter in (None, "model"):
            assert choose_drafter(drafter, {"model": "small"}) == Choice("model", {}, "small")
        with pytest.raises(InvalidInput, match=r"given twice, as --draft-model and .*; give one"):
            choose_drafter("model", {"model": "small"}, "other", option="--draft-model")

    def test_the_settings_of_the_caller_stay(self) -> None:
        settings = {"model": "small", "min_confidence": 0.5}
        assert choose_drafter("model", settings).settings == {"min_confidence": 0.5}
        assert settings == {"model": "small", "min_confidence": 0.5}

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("model",), "'model' needs a draft model; give draft_model"),
            (("model", {"model": None}), "needs a draft model"),
            (("ngram", {}, "small"), "'ngram' takes no draft model; leave draft_model out"),
            (("ngram", {"model": "small"}), "unknown setting of drafter 'ngram': 'model'"),
            (("reference",), "'reference' needs the setting 'references'; give it in drafter_opti"),
            (("ngrm",), "did you mean 'ngram'"),
            ((None, {"max_ngrm": 3}), "did you mean 'max_ngram'"),
            ((None, 3), "must map their names to values; they are 3"),
            ((None, {3: 4}), "must map their names to values"),
        ],
        ids=str,
    )
    def test_what_does_not_go_together(self, arguments: Any, message: str) -> None:
        with pytest.raises(InvalidInput, match=message):
            choose_drafter(*arguments)

    @pytest.mark.usefixtures("foreign")
    def test_the_class_says_whether_it_needs_one_and_not_its_settings(self) -> None:
        found = choose_drafter("foreign", {"model": "a path"})
        assert found == Choice("foreign", {"model": "a path"}, None)
        with pytest.raises(InvalidInput, match="takes no draft model"):
            choose_drafter("foreign", {"model": "a path"}, "small")
        assert made("foreign-model", None, "target").model is TARGET

    def test_an_unknown_name_is_refused_before_torch_is_loaded(self) -> None:
        code = (
            "import sys\n"
            "from paceline.generate.choice import choose_drafter\n"
            "from paceline.errors import UnknownName\n"
            "try:\n"
            "    choose_drafter('ngrm')\n"
            "except UnknownName:\n"
            "    assert 'torch' not in sys.modules\n"
            "else:\n"
            "    raise AssertionError\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


class TestDrafters:
    def test_by_name_with_settings(self) -> None:
        assert made() == NgramDrafter()
        assert made("ngram", {"max_ngram": 5}) == NgramDrafter(max_ngram=5)
        for found in (made(None, None, "target"), made(None, {"model": "target"})):
            assert isinstance(found, ModelDrafter)
            assert found.model is TARGET

    def test_an_object_has_its_settings(self) -> None:
        drafter = oracle([1, 2, 3])
        assert made(drafter) is drafter
        for more in (({"max_ngram": 2},), ({}, "target")):
            with pytest.raises(InvalidInput, match="has its settings already"):
                made(drafter, *more)

    def test_the_draft_model_is_not_touched_before_all_else_is_right(self) -> None:
        with pytest.raises(UnknownName, match="'min_confidence'"):
            made("model", {"min_confidense": 0.5}, "no such model")

    @pytest.mark.parametrize("given", ["ngram,model", "ngram, model", ["ngram", "model"]], ids=str)
    def test_several_are_a_cascade_with_the_settings_of_each(self, given: Any) -> None:
        settings = {"max_ngram": 4, "model.min_confidence": 0.5}
        cascade = made(given, settings, "target")
        assert isinstance(cascade, CascadeDrafter)
        first, second = cascade.drafters
        assert first == NgramDrafter(max_ngram=4)
        assert isinstance(second, ModelDrafter)
        assert (second.model, second.min_confidence) == (TARGET, 0.5)
        assert made(given, settings | {"model": "target"}).drafters == cascade.drafters
        assert made("cascade", settings, "target").drafters == cascade.drafters

    def test_several_of_which_some_are_objects(self) -> None:
        own = NgramDrafter(max_ngram=7)
        cascade = made([own, "model"], None, "target")
        assert cascade.drafters[0] is own

    @pytest.mark.parametrize(
        ("drafter", "settings", "model", "message"),
        [
            ("ngram,modl", {}, "target", "did you mean 'model'"),
            ("ngram,model", {}, None, "'model' needs a draft model; give draft_model"),
            ("ngram,none", {}, "target", "none of the drafters ngram, none takes a draft model"),
            ("ngram,model", {"max_ngrm": 3}, "target", "did you mean 'max_ngram'"),
            ("ngram,model", {"ngram.max_ngrm": 3}, "target", "did you mean 'max_ngram'"),
            ("ngram,ngram", {"max_ngram": 3}, None, "max_ngram' is a setting of ngram and of ngr"),
            ("ngram,ngram", {}, None, "drafters of different names"),
            ("ngram,cascade", {}, "target", "'cascade' combines single drafters; 'cascade' is"),
            ("cascade", {"drafters": 3}, None, "drafters must be a list"),
            ([], {}, None, "or a list of them"),
            ([3], {}, None, "drafters must be a registered name"),
        ],
    )
    def test_what_is_no_cascade(
        self, drafter: Any, settings: Any, model: Any, message: str
    ) -> None:
        with pytest.raises(InvalidInput, match=message):
            made(drafter, settings, model)

    @pytest.mark.parametrize(
        "given", [5, NgramDrafter, object()], ids=["number", "class", "object"]
    )
    def test_what_is_no_drafter(self, given: Any) -> None:
        with pytest.raises(InvalidInput, match="drafter must be a registered name or a drafter"):
            made(given)

    @pytest.mark.parametrize(
        ("references", "expected"),
        [
            ("ab", (AB,)),
            (["ab"], (AB,)),
            (["ab", (7, 8)], (AB, (7, 8))),
            ([], ()),
        ],
        ids=str,
    )
    def test_references_that_are_text_are_encoded(self, references: Any, expected: Any) -> None:
        assert made(None, {"references": references}) == NgramDrafter(references=expected)

    def test_a_prediction_that_is_text_is_encoded(self) -> None:
        for prediction in ("ab", list(AB)):
            found = made("predicted-output", {"prediction": prediction})
            assert found == PredictedOutputDrafter(AB)
        for wrong in (3, b"ab", None, {"a": 1}, [1.5]):
            with pytest.raises(InvalidInput, match="a prediction must be a text or a list of tok"):
                made("predicted-output", {"prediction": wrong})

    @pytest.mark.parametrize("references", [3, None, {"a": 1}, [3], [[1.5]], [b"ab"], [None]])
    def test_what_is_no_reference(self, references: Any) -> None:
        with pytest.raises(InvalidInput, match="reference"):
            encode_references(references, TOKENIZERS[0])


def test_rules_by_name_and_as_objects() -> None:
    rule = TokenVerifier()
    assert named_rule("token") == rule
    assert named_rule(rule) is rule
    assert named_rule(None) is None
    assert make_verifier(rule, NgramDrafter()) is rule
    for given in (5, TokenVerifier, NgramDrafter()):
        with pytest.raises(InvalidInput, match="verify must be a registered name or a verifier"):
            named_rule(given)  # type: ignore[arg-type]


def test_settings_of_rules() -> None:
    assert named_rule("lenience", {"lenience": 0.8}) == LenienceVerifier(0.8)
    assert named_rule("top-beta", {"beta": 2}) == TopBetaVerifier(beta=2)
    assert named_rule("token", {}) == TokenVerifier()
    for verify, settings, message in (
        ("lenience", {"lenient": 0.8}, "did you mean 'lenience'"),
        ("lenience", {"lenience": 0}, "above 0"),
        ("token", {"epsilon": 1}, "unknown setting of verifier 'token'"),
        (None, {"epsilon": 1}, "by name: name the rule too"),
        (TokenVerifier(), {"epsilon": 1}, "by name"),
        ("lenience", [1], "settings of a rule must map"),
    ):
        with pytest.raises(InvalidInput, match=message):
            named_rule(verify, settings)  # type: ignore[arg-type]


def test_a_rule_that_looks_ahead_takes_no_processor_with_a_state() -> None:
    processor = lambda tokens, logits: logits  # noqa: E731
    check_processors(TokenVerifier(), [processor], [])
    check_processors(BlockVerifier(), [processor], [processor])
    with pytest.raises(InvalidInput, match="'block' looks at draft tokens"):
        check_processors(BlockVerifier(), [processor], [])


def test_without_a_rule_the_one_that_suits_the_drafter() -> None:
    class Branching(NgramDrafter):
        default_verifier = "coupling"

    assert make_verifier(None, NgramDrafter()) == TokenVerifier()
    assert make_verifier(None, Branching()).name == "coupling"


class TestControllers:
    def test_by_name_and_as_objects(self) -> None:
        assert make_controller() == make_controller(None, "auto") == AutoController()
        assert make_controller("auto", 3) == AutoController(3)
        assert make_controller("fixed", 3) == make_controller(None, 3) == FixedController(3)
        assert make_controller("fixed", settings={"num_draft_tokens": 3}) == FixedController(3)
        own = FixedController(2)
        assert make_controller(own) is own

    def test_auto_is_told_the_drafters_that_it_can_choose(self) -> None:
        cascade = CascadeDrafter((NgramDrafter(), oracle([1])))
        assert make_controller(drafter=cascade) == AutoController(drafters=("ngram", "line"))
        assert make_controller(drafter=NgramDrafter()) == AutoController()
        assert make_controller("fixed", drafter=cascade) == FixedController()

    def test_a_seed_gives_the_same_text_whatever_the_clock_says(self) -> None:
        def rule(controller: Any, verify: Any = None, *, repeatable: bool = True) -> str:
            return make_verifier(
                named_rule(verify), NgramDrafter(), controller=controller, repeatable=repeatable
            ).name

        assert rule(AutoController()) == "coupling"
        assert rule(AutoController(), "token") == "token"
        assert rule(AutoController(), repeatable=False) == "token"
        table = AutoController(costs={"target": [1.0], "draft": 0.1})
        assert rule(table) == rule(FixedController()) == "token"

    def test_an_object_has_its_length(self) -> None:
        with pytest.raises(InvalidInput, match="num_draft_tokens requires a controller given by"):
            make_controller(FixedController(2), 2)
        with pytest.raises(InvalidInput, match="settings requires a controller given by"):
            make_controller(FixedController(2), settings={"num_draft_tokens": 2})

    @pytest.mark.parametrize(
        "given",
        [
            (5,),
            (FixedController,),
            (None, "3"),
            ("fixd",),
            ("",),
            ("fixed", "auto"),
            ("fixed", 2, {"num_draft_tokens": 2}),
            ("auto", None, {"cost": 3}),
        ],
    )
    def test_what_is_none(self, given: Any) -> None:
        with pytest.raises(PacelineError):
            make_controller(*given)


def test_auto_is_told_what_reading_the_prompt_takes() -> None:
    table = markov(4, 0)
    table.info = replace(table.info, num_weights=7)
    model = ModelDrafter(table)
    weights = {"ngram": 0, "model": 7}
    both = CascadeDrafter((NgramDrafter(), model))
    assert [draft_weights(one) for one in (model, NgramDrafter(), both)] == [7, 0, weights]
    expected = AutoController(drafters=("ngram", "model"), draft_weights=weights)
    assert make_controller(drafter=both) == expected
