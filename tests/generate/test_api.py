"""The Python door, on a tiny model in a folder."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import paceline
from paceline.controllers.fixed import FixedController
from paceline.core.sampling import SamplingParams
from paceline.drafters.ngram import NgramDrafter
from paceline.engine import loop
from paceline.errors import ContextOverflow, InvalidInput, PacelineError, UnknownName
from paceline.generate import api, draft_models
from paceline.generate.api import Chunk, Generation, LanguageModel, Options, load, load_draft
from paceline.integrations.huggingface import speculate
from paceline.targets.dense.decoder import DenseDecoder
from paceline.verifiers.coupling import CouplingVerifier
from tests import tiny_folders
from tests.tiny_models import build

PROMPT = "the stop the END the stop"
CHAT = [{"role": "user", "content": "the END"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folders.save(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def model(folder: Path) -> LanguageModel:
    return load(folder)


@pytest.fixture(scope="module")
def draft(folder: Path) -> LanguageModel:
    return load(folder, storage="int8")


def plainly(model: LanguageModel, prompt: Any = PROMPT, **options: Any) -> Generation:
    return model.generate(prompt, drafter="none", **options)


class TestLoad:
    def test_by_folder_and_by_object_alike(self, folder: Path, model: LanguageModel) -> None:
        words = tiny_folders.tokenizer()
        by_object = load(tiny_folders.model(eos_token_id=words.eos_token_id), words)
        for given in (str(folder), folder):
            assert load(given).generate(PROMPT, max_tokens=20).token_ids == (
                by_object.generate(PROMPT, max_tokens=20).token_ids
            )
        assert model.load_seconds > 0
        assert by_object.eos_token_ids == model.eos_token_ids

    def test_invariant_mode(self, folder: Path) -> None:
        model = load(folder, storage="packed", invariant=True)
        assert model.target.info.max_draft_tokens is not None
        plain = plainly(model, max_tokens=20)
        found = model.generate(PROMPT, max_tokens=20, draft_model=model, num_draft_tokens=50)
        assert found.token_ids == plain.token_ids
        assert found.spec["promise"] == plain.spec["promise"] == "law, path, bits"
        assert found.spec["num_drafts"] > 0

    @pytest.mark.parametrize("given", [{"device": "cuda"}, {"device_map": {"": "cuda:0"}}], ids=str)
    @pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has one")
    def test_a_device_that_is_not_there(self, folder: Path, given: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput, match=r"none of this kind on this machine; leave .* out"):
            load(folder, **given)
        with pytest.raises(InvalidInput, match="none of this kind"):
            load(tiny_folders.model(), **given)

    def test_the_cpu_is_where_models_run_by_default(self, folder: Path) -> None:
        for device in ("cpu", torch.device("cpu")):
            assert isinstance(load(folder, device=device).decoder, DenseDecoder)
            assert load(tiny_folders.model(), device=device).name

    @pytest.mark.parametrize("dtype", ["float16", torch.float16], ids=str)
    def test_float16_is_exact_by_the_model_s_own_modules(self, folder: Path, dtype: Any) -> None:
        model = load(folder, dtype=dtype)
        own = tiny_folders.model().half()
        ids = model.encode(PROMPT)
        limits = {"max_new_tokens": 30, "eos_token_id": None, "pad_token_id": 0}
        answer = own.generate(torch.tensor([ids]), do_sample=False, **limits)
        expected = answer[0, len(ids) :].tolist()
        for drafter in ("none", "ngram"):
            found = model.generate(ids, drafter=drafter, max_tokens=30, ignore_eos=True)
            assert list(found.token_ids) == expected

    def test_wrong_combinations(self, folder: Path) -> None:
        with pytest.raises(InvalidInput, match="has its own tokenizer"):
            load(folder, tiny_folders.tokenizer())
        for options in ({"dtype": "float32"}, {"head_tokens": 5}):
            with pytest.raises(InvalidInput, match="for models that Paceline loads itself"):
                load(tiny_folders.model(), **options)  # type: ignore[call-overload]
        with pytest.raises(InvalidInput, match="expected a model of transformers; got dict"):
            load({})


class TestSettingsOfTheCheckpoint:
    @pytest.mark.parametrize("drafter", ["none", "ngram"])
    def test_greedy_answers_are_those_of_generate(self, drafter: str) -> None:
        penalized, prompt = self.penalized(), [3, 9, 4, 3, 9, 4]
        own = penalized.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False)
        found = load(penalized).generate(prompt, drafter=drafter, max_tokens=30)
        assert list(found.token_ids) == own[0, len(prompt) :].tolist()
        assert found.sampling["repetition_penalty"] == 1.3

    @staticmethod
    def penalized() -> Any:
        model = tiny_folders.model()
        model.generation_config.repetition_penalty = 1.3
        return model

    def test_options_of_the_call_win(self, model: LanguageModel) -> None:
        options: Options = {"max_tokens": 30, "ignore_eos": True, "repetition_penalty": 1.0}
        found = load(self.penalized(), tiny_folders.tokenizer()).generate(PROMPT, **options)
        assert found.token_ids == model.generate(PROMPT, **options).token_ids
        assert found.to_json()["sampling"] == {
            "temperature": 0.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }


class TestPrompts:
    def test_text_ids_and_chats(self, model: LanguageModel) -> None:
        words = model.tokenizer
        ids = words.encode(PROMPT)
        expected = model.generate(ids, max_tokens=10)
        assert expected.usage == {"prompt_tokens": len(ids), "completion_tokens": 10}
        for prompt in (PROMPT, tuple(ids), torch.tensor(ids)):
            assert model.generate(prompt, max_tokens=10).token_ids == expected.token_ids
        chat = words.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
        assert model.encode(CHAT) == list(chat)
        assert (
            model.generate(CHAT, max_tokens=10).token_ids
            == model.generate(chat, max_tokens=10).token_ids
        )

    @pytest.mark.parametrize(
        ("prompt", "message"),
        [
            ("", "the prompt is empty"),
            ([], "the prompt is empty"),
            (5, "a text, chat messages or token ids; it is 5"),
            (None, "token ids; it is None"),
            (b"text", "token ids; it is b'text'"),
            (["one", "two"], "several prompts with generate_batch"),
            ({"role": "user", "content": "hi"}, "a list of messages"),
            ([{"role": "user"}], "needs a content"),
            ([1.5], "sequence of token ids"),
            (torch.tensor([[1, 2]]), "sequence of token ids"),
            ([5, 320], r"outside the vocabulary of .* \(0 to 319\)"),
            ([-1], "outside the vocabulary"),
        ],
        ids=str,
    )
    def test_what_is_no_prompt(self, model: LanguageModel, prompt: Any, message: str) -> None:
        with pytest.raises(InvalidInput, match=message):
            model.generate(prompt)

    def test_no_prompts_at_all(self, model: LanguageModel) -> None:
        with pytest.raises(InvalidInput, match="give at least one"):
            model.generate_batch([])
        with pytest.raises(InvalidInput, match="for one prompt use generate"):
            model.generate_batch("text")
        with pytest.raises(InvalidInput, match="token ids; it is 5"):
            model.generate_batch([5])  # type: ignore[list-item]

    def test_without_a_tokenizer(self) -> None:
        model = load(tiny_folders.model())
        found = model.generate([5, 6], max_tokens=4)
        assert (found.text, len(found.token_ids)) == ("", 4)
        for prompt, options in (("text", {}), (CHAT, {}), ([5], {"stop": "x"})):
            with pytest.raises(InvalidInput, match="needs a tokenizer"):
                model.generate(prompt, **options)  # type: ignore[arg-type]


class TestOptions:
    """Each changes plain decoding as it says, and drafting changes nothing of that."""

    CASES: tuple[dict[str, Any], ...] = (
        {"repetition_penalty": 1.4},
        {"presence_penalty": 2.0, "frequency_penalty": 1.0},
        {"logit_bias": {40: 60.0}},
        {"allowed_token_ids": [5, 9, 77, 130]},
        {"banned_token_ids": range(100)},
        {"stop_token_ids": [40], "logit_bias": {40: 8.0}},
        {"temperature": 1.5, "seed": 3},
        {"temperature": 1.0, "top_k": 5, "seed": 3},
        {"temperature": 1.0, "top_p": 0.5, "seed": 3},
        {"temperature": 1.0, "min_p": 0.2, "seed": 3},
        {"max_tokens": 3},
        {"processors": [lambda tokens, logits: -logits]},
    )

    @pytest.mark.parametrize("options", CASES, ids=lambda options: "-".join(options))
    def test_each_reaches_the_engine(
        self, model: LanguageModel, draft: LanguageModel, options: dict[str, Any]
    ) -> None:
        options = {"max_tokens": 24, "ignore_eos": True, **options}
        plain = plainly(model, **options)
        default = plainly(model, max_tokens=24, ignore_eos=True)
        assert plain.token_ids != default.token_ids
        # Under coupling the text is a function of the seed, so that sampled text compares too.
        coupled = {**options, "verify": "coupling"}
        expected = plainly(model, **coupled)
        for drafter in ({"drafter": "ngram"}, {"draft_model": draft}):
            assert model.generate(PROMPT, **coupled, **drafter).token_ids == expected.token_ids

    def test_what_they_mean(self, model: LanguageModel) -> None:
        assert set(plainly(model, logit_bias={40: 1e4}, max_tokens=5).token_ids) == {40}
        assert set(plainly(model, allowed_token_ids=[5, 9], max_tokens=9).token_ids) <= {5, 9}
        assert min(plainly(model, banned_token_ids=range(100), max_tokens=9).token_ids) >= 100
        stopped = plainly(model, logit_bias={40: 1e4}, stop_token_ids=[40])
        assert (stopped.token_ids, stopped.finish_reason) == ((40,), "stop")
        later = plainly(model, logit_bias={40: 1e4}, stop_token_ids=[40], min_tokens=4)
        assert len(later.token_ids) == 5, "as in transformers: four tokens, and then the end"
        assert 40 not in later.token_ids[:4]

    def test_lengths(self, model: LanguageModel) -> None:
        for length in (0, 1, 2, 7):
            found = model.generate(PROMPT, max_tokens=length, ignore_eos=True)
            assert len(found.token_ids) == length
            assert found.finish_reason == "length"
        assert plainly(model, max_tokens=0).tokens_per_second is None
        whole = model.generate(PROMPT, max_tokens=None, ignore_eos=True)
        assert whole.num_prompt_tokens + len(whole.token_ids) == 256

    def test_the_end_of_an_answer(self, model: LanguageModel) -> None:
        (end,) = model.eos_token_ids
        bias = {end: 1e4}
        found = model.generate(PROMPT, logit_bias=bias)
        assert (found.token_ids, found.text, found.finish_reason) == ((end,), "", "stop")
        found = model.generate(PROMPT, logit_bias=bias, ignore_eos=True, max_tokens=5)
        assert found.token_ids == (end,) * 5
        found = model.generate(PROMPT, logit_bias=bias, min_tokens=3)
        assert len(found.token_ids) == 4
        assert end not in found.token_ids[:3]

    @pytest.mark.parametrize("drafter", ["none", "ngram"])
    def test_stop_strings(self, model: LanguageModel, drafter: str) -> None:
        cycle = model.tokenizer.encode("the stop")
        assert len(cycle) == 3, "the, a space, stop"

        def spell(tokens: Any, logits: torch.Tensor) -> torch.Tensor:
            wanted = cycle[(len(tokens) - len(prompt)) % 3]
            return torch.full_like(logits, -torch.inf).index_fill(0, torch.tensor(wanted), 0.0)

        prompt = model.encode("the stopthe stop")
        options: dict[str, Any] = {"drafter": drafter, "processors": [spell], "max_tokens": 10}
        assert model.generate(prompt, **options).text == "the stop" * 3 + "the"
        found = model.generate(prompt, stop="stopth", **options)
        assert (found.text, found.finish_reason) == ("the ", "stop")
        assert found.token_ids == (*cycle, cycle[0])
        found = model.generate(prompt, stop=["zzz", "op"], **options)
        assert (found.text, len(found.token_ids)) == ("the st", 3)
        found = model.generate(prompt, stop=None, **options)
        assert found.finish_reason == "length"
        # One that the answer may not yet end with is part of the text.
        found = model.generate(prompt, stop="stop", min_tokens=5, **options)
        assert (found.text, len(found.token_ids)) == ("the stopthe ", 6)

    def test_logprobs_are_those_of_plain_decoding(
        self, model: LanguageModel, draft: LanguageModel
    ) -> None:
        plain = plainly(model, logprobs=3, max_tokens=20)
        assert plainly(model, max_tokens=3).logprobs is None
        for options in ({"drafter": "ngram"}, {"draft_model": draft}):
            found = model.generate(PROMPT, logprobs=3, max_tokens=20, **options)  # type: ignore[call-overload]
            assert found.token_ids == plain.token_ids
            assert found.logprobs == pytest.approx(plain.logprobs, abs=1e-5)
            for ours, theirs in zip(found.top_logprobs, plain.top_logprobs or (), strict=True):
                assert [token for token, _ in ours] == [token for token, _ in theirs]
                assert [p for _, p in ours] == pytest.approx([p for _, p in theirs], abs=1e-5)
        for token, logprob, top in zip(
            plain.token_ids, plain.logprobs or (), plain.top_logprobs or (), strict=True
        ):
            assert top[0] == (token, logprob), "greedy"

    def test_every_sampling_option_is_an_option(self) -> None:
        assert SamplingParams.__dataclass_fields__.keys() <= Options.__annotations__.keys()


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"temprature": 1.0}, "unknown option 'temprature'; did you mean 'temperature'"),
            ({"drafter": "ngrams"}, "unknown drafter 'ngrams'; did you mean 'ngram'"),
            ({"verify": "couplin"}, "unknown verifier 'couplin'; did you mean 'coupling'"),
            ({"drafter_options": {"max_ngrm": 3}}, "did you mean 'max_ngram'"),
            (
                {"verify": "typical", "verify_options": {"epsilom": 0.1}},
                "unknown setting of verifier 'typical': 'epsilom'; did you mean 'epsilon'",
            ),
            ({"verify_options": {"epsilon": 0.1}}, "settings require a rule given by name"),
            ({"verify": "block", "processors": [max]}, "'block' looks at draft tokens"),
            ({"controller": "fixd"}, "unknown controller 'fixd'; did you mean 'fixed'"),
            ({"controller": FixedController(2), "num_draft_tokens": 2}, "by name"),
            ({"drafter": "model"}, "needs a draft model; give draft_model"),
            ({"drafter": NgramDrafter(), "drafter_options": {"max_ngram": 2}}, "by name"),
            ({"num_draft_tokens": -1}, "num_draft_tokens must be at least 0"),
            ({"num_draft_tokens": 2.5}, "num_draft_tokens must be a whole number"),
            ({"temperature": -1.0}, "temperature"),
            ({"top_p": 1.5}, "top_p"),
            ({"seed": -3}, "seed"),
            ({"max_tokens": -1}, "max_tokens"),
            ({"min_tokens": 9, "max_tokens": 5}, "min_tokens must be at most max_tokens"),
            ({"logprobs": 1000}, "logprobs must be at least 0 and at most 320"),
            ({"logit_bias": {1000: 1.0}}, "take ids from 0 to 319; got 1000"),
            ({"stop_token_ids": [1000]}, "stop_token_ids take ids from 0 to 319; got 1000"),
            ({"stop_token_ids": 5}, "stop_token_ids must be token ids; it is 5"),
            ({"stop_token_ids": ["a"]}, "stop_token_ids must be token ids"),
            ({"stop": ["ok", ""]}, "a stop string must be a text"),
        ],
        ids=str,
    )
    def test_options(self, model: LanguageModel, options: Any, message: str) -> None:
        """Before the first token, and with `stream` before the first piece is asked for."""
        for call in (model.generate, model.stream):
            with pytest.raises(InvalidInput, match=message):
                call(PROMPT, **options)

    # Some of everything that an option cannot be. `max_tokens` and others may be None.
    WRONG: ClassVar[dict[str, list[Any]]] = {
        "drafter": [5, NgramDrafter, [], ""],
        "drafter_options": [
            3,
            "max_ngram",
            [("max_ngram", 3)],
            {3: 4},
            {"max_ngram": "3"},
            {"match": 3},
            {"references": 3},
            {"references": [3]},
            {"references": [["a"]]},
            {"references": [[-1]]},
        ],
        "draft_model": [3, [], {}, b"name", len],
        "draft_head": [3, [], {}, b"name", len, "heads/nowhere/at/all"],
        "draft_storage": ["int4", "int2", 4],
        "draft_head_tokens": [5, 0, "most", 2.5],
        "tools": [5, "add", {}, [3], [{}]],
        "chat_template_kwargs": [5, "a=1", {3: 4}, {"a": 1}],
        "continue_final_message": [None, 1, "yes", True],
        "controller": [5, FixedController, NgramDrafter, ""],
        "settings": [
            5,
            [],
            "nosuch.json",
            {"schema": "x"},
            {"schema": "paceline.settings/1", "drafting": 3},
        ],
        "controller_options": [3, "fixed", {"num_draft_token": 3}, {3: 4}],
        "num_draft_tokens": ["5", 2.5, True, [3]],
        "verify": [5, CouplingVerifier, NgramDrafter(), ""],
        "verify_options": [5, "beta=1", [("beta", 1)], {1: 2}, {"beta": 1}],
        "max_tokens": ["5", 2.5, True, [3]],
        "min_tokens": [None, "5", 2.5, True],
        "stop": [0, 5, False, b"END", [5], {"END": 1}, ""],
        "stop_token_ids": [0, 5, "a", ["a"], [1.5], [None]],
        "ignore_eos": [None, 0, "no"],
        "logprobs": ["5", 2.5, True, -1],
        "processors": [None, 5, [5], "text", len],
        "draft_processors": [None, 5, [5], "text", len],
        "temperature": [None, "warm", [1.0], 10**400, float("nan")],
        "top_k": [None, "5", 2.5, True],
        "top_p": [None, "most", [0.5]],
        "min_p": [None, "few", [0.5]],
        "repetition_penalty": [None, "high", [1.0]],
        "presence_penalty": [None, "high", [1.0]],
        "frequency_penalty": [None, "high", [1.0]],
        "logit_bias": [None, 5, [1], "a", {"a": 1.0}, {1: "a"}, {1: 10**400}],
        "allowed_token_ids": [5, "a", ["a"], [1.5], []],
        "banned_token_ids": [None, 3, "a", ["a"], [[1]]],
        "seed": ["5", 2.5, True, [3]],
        "structured_outputs": [5, "a", {}, {"regx": "a"}, {"regex": "a", "choice": ["a"]}],
        "trace": [5, True, [None], {"file": "rounds.jsonl"}],
    }

    def test_every_option_is_in_the_table(self) -> None:
        assert self.WRONG.keys() == Options.__annotations__.keys()

    @pytest.mark.parametrize("option", WRONG)
    def test_no_wrong_type_is_let_through(self, model: LanguageModel, option: str) -> None:
        for value in self.WRONG[option]:
            with pytest.raises(PacelineError) as caught:
                model.generate(PROMPT, **{option: value})
            assert str(caught.value), (option, value)

    @pytest.mark.parametrize(
        "settings",
        [
            {"params": 3},
            {"params": {"temprature": 1.0}},
            {"params": {"temperature": "warm"}},
            {"params": {3: 4}},
            {"params": {"seed": 5}},
            {"min_confidence": "high"},
            {"entropy_bound": None},
            {"model": 3},
        ],
        ids=str,
    )
    def test_no_wrong_setting_of_a_draft_model_is_let_through(
        self, model: LanguageModel, draft: LanguageModel, settings: dict[str, Any]
    ) -> None:
        own = {} if "model" in settings else {"draft_model": draft}
        with pytest.raises(PacelineError):
            model.generate(PROMPT, drafter="model", drafter_options=settings, **own)  # type: ignore[call-overload]

    def test_samples(self, model: LanguageModel) -> None:
        for n in (0, -1, 1.5, "2"):
            with pytest.raises(InvalidInput, match="n must be"):
                model.generate(PROMPT, n=n)  # type: ignore[call-overload]
        with pytest.raises(UnknownName, match="unknown option 'n'"):
            model.stream(PROMPT, n=2)  # type: ignore[call-arg]

    def test_a_prompt_longer_than_the_context(self, model: LanguageModel) -> None:
        for call in (model.generate, model.stream):
            with pytest.raises(ContextOverflow, match=r"has 256 tokens and .* takes 256"):
                call([5] * 256)

    def test_draft_models(self, model: LanguageModel, draft: LanguageModel) -> None:
        with pytest.raises(InvalidInput, match="'ngram' takes no draft model"):
            model.generate(PROMPT, drafter="ngram", draft_model=draft)
        with pytest.raises(InvalidInput, match="given has its settings already"):
            model.generate(PROMPT, drafter=NgramDrafter(), draft_model=draft)
        with pytest.raises(InvalidInput, match=r"a model of transformers, one from paceline.load"):
            model.generate(PROMPT, draft_model=object())  # type: ignore[call-overload]
        for form in ({"draft_storage": "int4"}, {"draft_head_tokens": 64}):
            with pytest.raises(
                InvalidInput, match="the one given stays as it was loaded; give its name"
            ):
                model.generate(PROMPT, draft_model=draft, **form)  # type: ignore[call-overload]
            with pytest.raises(InvalidInput, match="require a draft model or a draft head; give"):
                model.generate(PROMPT, **form)  # type: ignore[call-overload]


class TestDraftModels:
    def test_by_name_it_is_loaded_once(self, folder: Path, monkeypatch: Any) -> None:
        loads: list[Any] = []

        def counted(*form: Any, device: Any) -> LanguageModel:
            assert device == torch.device("cpu")  # where the target is
            loads.append(form)
            return load_draft(*form, device=device)

        monkeypatch.setattr(api, "load_draft", counted)
        model = load(folder)
        plain = plainly(model, max_tokens=12)
        for _ in range(2):
            found = model.generate(PROMPT, drafter="model", draft_model=folder, max_tokens=12)
            assert found.token_ids == plain.token_ids
            assert found.drafter == "model"
            assert found.spec["draft_acceptance_rate"] == 1.0
            assert found.spec["draft"] == "whole weights, all 320 head tokens; drafter model"
        assert loads == [(folder, None, None)]
        given = {"draft_storage": "plain", "draft_head_tokens": 64}
        found = model.generate(PROMPT, draft_model=folder, max_tokens=12, **given)  # type: ignore[call-overload]
        assert found.token_ids == plain.token_ids
        assert found.spec["draft"].startswith("whole weights, 64 of 320 head tokens")
        assert loads[1:] == [(folder, "plain", 64)]

    def test_one_of_transformers(self, model: LanguageModel) -> None:
        own = tiny_folders.model()
        found = model.generate(PROMPT, drafter="model", draft_model=own, max_tokens=12)  # type: ignore[call-overload]
        assert found.token_ids == plainly(model, max_tokens=12).token_ids
        assert found.spec["draft_acceptance_rate"] == 1.0

    @pytest.mark.parametrize(
        ("options", "drafter"),
        [
            ({}, "tree"),
            ({"controller": "auto", "num_draft_tokens": 5}, "tree"),
            ({"num_draft_tokens": "auto", "verify": "coupling"}, "tree"),
            ({"drafter": "model"}, "model"),
            ({"num_draft_tokens": 3}, "model"),
            ({"controller": "heuristic"}, "model"),
            ({"controller": FixedController(3)}, "model"),
            ({"verify": "token"}, "model"),
            ({"drafter_options": {"min_confidence": 0.5}}, "model"),
        ],
        ids=str,
    )
    def test_the_default_is_a_tree_with_leaves_under_auto(
        self, model: LanguageModel, draft: LanguageModel, options: dict[str, Any], drafter: str
    ) -> None:
        found = model.generate(PROMPT, draft_model=draft, max_tokens=12, **options)
        assert found.drafter == drafter
        assert found.token_ids == plainly(model, max_tokens=12).token_ids
        words = "tree of one path with leaves" if drafter == "tree" else "drafter model"
        assert found.spec["draft"] == f"as it was loaded; {words}"
        made = model.drafter(draft_model=draft, **options)
        if drafter == "tree":
            assert (made.width, made.top_k, made.max_nodes) == (1, 3, 7)  # type: ignore[attr-defined]

    def test_where_trees_cannot_be_the_default_is_a_chain(self, folder: Path) -> None:
        strict, model = load(folder, invariant=True), load(folder)
        for target, draft in ((strict, model), (model, strict)):
            found = target.generate(PROMPT, draft_model=draft, max_tokens=12)
            assert found.drafter == "model"
            assert found.token_ids == plainly(model, max_tokens=12).token_ids

    def test_settings_go_to_the_drafter(self, model: LanguageModel, draft: LanguageModel) -> None:
        found = model.generate(
            PROMPT, draft_model=draft, drafter_options={"min_confidence": 1.0}, max_tokens=12
        )
        assert set(found.spec) >= {"num_drafts", "num_draft_tokens"}
        assert found.spec["num_draft_tokens"] == found.spec["num_drafts"], "one token a draft"

    def test_padded_vocabularies_may_differ(self, model: LanguageModel) -> None:
        for vocab_size in (310, 400):
            padded = load(tiny_folders.model(vocab_size=vocab_size), tiny_folders.tokenizer())
            found = model.generate(PROMPT, draft_model=padded, max_tokens=20)
            assert found.token_ids == plainly(model, max_tokens=20).token_ids
            assert found.spec["num_drafts"] > 0

    def test_another_tokenizer_is_refused(self, model: LanguageModel) -> None:
        from tests.tiny_tokenizers import sentencepiece

        other = load(tiny_folders.model(vocab_size=400), sentencepiece())
        for _ in range(2):
            with pytest.raises(InvalidInput, match=r"has another tokenizer .* same family"):
                model.generate(PROMPT, draft_model=other)

    def test_the_tokenizers_are_compared_once(
        self, folder: Path, draft: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A vocabulary of 150,000 tokens takes a tenth of a second to list."""
        model, compared = load(folder), []
        monkeypatch.setattr(
            draft_models,
            "check_same_tokenizer",
            lambda *args, **names: compared.append((args, names)),
        )
        for _ in range(3):
            model.generate(PROMPT, draft_model=draft, max_tokens=2)
        names = {"target": model.name, "draft": draft.name}
        assert compared == [((model.tokenizer, draft.tokenizer), names)]

    def test_references(self, model: LanguageModel) -> None:
        answer = plainly(model, max_tokens=30)
        ids = (*model.encode(PROMPT)[-2:], *answer.token_ids)
        for references in ([ids], [PROMPT, ids]):
            found = model.generate(
                PROMPT,
                drafter_options={"references": references},
                num_draft_tokens=5,
                max_tokens=30,
            )
            assert found.token_ids == answer.token_ids
            assert found.metrics.mean_acceptance_length > 3
        text = model.generate(PROMPT, drafter_options={"references": "the END"}, max_tokens=4)
        assert text.token_ids == answer.token_ids[:4], "one text is one reference"

    def test_references_are_text_amid_others_through_both_doors(self) -> None:
        """A start token would stand between the text and what comes before it."""
        words = tiny_folders.tokenizer(add_bos=True)
        model = load(tiny_folders.model(), words)
        assert model.encode("the END")[0] == words.bos_token_id
        expected = NgramDrafter(references=[words.encode("the END", add_special_tokens=False)])  # type: ignore[arg-type]
        assert words.bos_token_id not in expected.references[0]
        assert model.drafter(drafter_options={"references": "the END"}) == expected
        assert speculate(references="the END", tokenizer=words).drafter == expected

    def test_references_that_are_text_need_a_tokenizer(self) -> None:
        with pytest.raises(InvalidInput, match="a text to draft from needs the tokenizer"):
            load(tiny_folders.model()).generate([5], drafter_options={"references": "the"})

    def test_as_a_setting_of_the_drafter(
        self, model: LanguageModel, draft: LanguageModel, folder: Path
    ) -> None:
        expected = model.generate(PROMPT, draft_model=draft, max_tokens=9)
        for given in (draft, draft.target, folder):
            found = model.generate(PROMPT, drafter_options={"model": given}, max_tokens=9)
            assert found.drafter == expected.drafter == "tree"
            assert found.token_ids == expected.token_ids
        with pytest.raises(InvalidInput, match="the draft model is given twice"):
            model.generate(PROMPT, draft_model=draft, drafter_options={"model": draft})

    def test_its_sampling_options_may_be_a_mapping(
        self, model: LanguageModel, draft: LanguageModel
    ) -> None:
        options: dict[str, Any] = {"draft_model": draft, "temperature": 1.0, "seed": 4}
        options["num_draft_tokens"] = 4  # "auto" follows the clock
        told = [
            model.generate(PROMPT, drafter_options={"params": params}, max_tokens=16, **options)
            for params in ({"temperature": 0.5}, SamplingParams(temperature=0.5))
        ]
        assert told[0].token_ids == told[1].token_ids
        assert told[0].spec == told[1].spec

    def test_threads_load_it_once(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        loads = []

        def slowly(source: Any, *form: Any, **place: Any) -> LanguageModel:
            loads.append(source)
            time.sleep(0.2)  # long enough for the others to come by
            return load_draft(source, *form, **place)

        monkeypatch.setattr(api, "load_draft", slowly)
        model = load(folder)
        threads = [
            threading.Thread(
                target=model.generate,
                args=(PROMPT,),
                kwargs={"draft_model": folder, "max_tokens": 2},
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert loads == [folder]

    def test_an_unknown_tokenizer_and_another_vocabulary_are_told_once(
        self, model: LanguageModel, caplog: pytest.LogCaptureFixture
    ) -> None:
        for vocab_size, told in ((tiny_folders.PADDED_VOCAB, 0), (400, 1)):
            unknown = load(tiny_folders.model(vocab_size=vocab_size))
            for given in (unknown, unknown, unknown.target):
                model.generate(PROMPT, draft_model=given, max_tokens=2)  # type: ignore[call-overload]
            assert sum("has a vocabulary of 400" in text for text in caplog.messages) == told


class TestSeeds:
    OPTIONS: ClassVar[dict[str, Any]] = {"temperature": 1.0, "max_tokens": 16}

    @pytest.mark.parametrize("drafter", ["none", "ngram"])
    def test_the_same_seed_gives_the_same_text_alone_and_in_company(
        self, model: LanguageModel, drafter: str
    ) -> None:
        options = {**self.OPTIONS, "drafter": drafter, "seed": 7}
        prompts = [PROMPT, "END", [5, 6, 7], PROMPT]
        alone = [model.generate(prompt, **options).token_ids for prompt in prompts]
        together = model.generate_batch(prompts, **options)
        assert [one.token_ids for one in together] == alone
        assert all(one.seed == 7 for one in together)
        again = model.generate(PROMPT, **{**options, "seed": 8})
        assert again.token_ids != alone[0]

    def test_the_same_seed_gives_the_same_text_though_the_clock_says_otherwise(
        self, model: LanguageModel, draft: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The draft lengths of `auto` follow the clock; the text must not."""
        options = {**self.OPTIONS, "max_tokens": 48, "draft_model": draft, "ignore_eos": True}
        texts, lengths = set(), set()
        for run in range(4):
            clock, now = random.Random(run), [0.0]

            def tick(clock: random.Random = clock, now: list[float] = now) -> float:
                now[0] += clock.choice((0.001, 0.002, 0.05))
                return now[0]

            for module in ("gather", "loop", "sequence"):
                monkeypatch.setattr(f"paceline.engine.{module}.perf_counter", tick)
            found = model.generate(PROMPT, **options, seed=11)
            assert found.verifier == "coupling"
            texts.add(found.token_ids)
            lengths.add(found.spec["num_draft_tokens"])
        assert len(texts) == 1
        assert len(lengths) > 1, "the clock changed nothing"
        assert (
            model.generate(
                PROMPT, **options, seed=11, drafter="model", num_draft_tokens=0, verify="coupling"
            ).token_ids
            in texts
        )
        assert model.generate(PROMPT, **options, seed=11, verify="token").verifier == "token"
        assert model.generate(PROMPT, **{**options, "temperature": 0.0}, seed=11).verifier == "tree"

    def test_a_fresh_seed_is_told(self, model: LanguageModel) -> None:
        # A rule that does not couple repeats itself where the draft lengths do.
        fixed = {**self.OPTIONS, "num_draft_tokens": 4}
        first, other = (model.generate(PROMPT, **fixed) for _ in range(2))
        assert first.seed != other.seed
        assert first.token_ids != other.token_ids
        again = model.generate(PROMPT, **fixed, seed=first.seed)
        assert again.token_ids == first.token_ids
        batch = model.generate_batch([PROMPT, PROMPT], **self.OPTIONS)
        assert batch[0].seed != batch[1].seed

    def test_samples_differ_and_each_can_be_had_again(self, model: LanguageModel) -> None:
        samples = model.generate(PROMPT, n=4, **self.OPTIONS, seed=2**64 - 2)
        assert len({sample.token_ids for sample in samples}) == 4
        assert [sample.seed for sample in samples] == [2**64 - 2, 2**64 - 1, 0, 1]
        for sample in samples:
            again = model.generate(PROMPT, **self.OPTIONS, seed=sample.seed)
            assert again.token_ids == sample.token_ids
        fresh = model.generate(PROMPT, n=2, **self.OPTIONS)
        assert fresh[1].seed == fresh[0].seed + 1
        assert isinstance(model.generate(PROMPT, n=1, **self.OPTIONS), list)

    def test_n_samples_at_temperature_zero_are_the_same(self, model: LanguageModel) -> None:
        one, two = model.generate(PROMPT, n=2, max_tokens=8)
        assert one.token_ids == two.token_ids


class TestStream:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_the_pieces_are_the_text(self, model: LanguageModel, temperature: float) -> None:
        options: dict[str, Any] = {"temperature": temperature, "seed": 1, "max_tokens": 60}
        options |= {"stop": ["zzzz", "END END END"], "ignore_eos": True}
        *chunks, last = model.stream(PROMPT, **options)
        assert isinstance(last, Generation)
        assert all(isinstance(chunk, Chunk) for chunk in chunks)
        expected = model.generate(PROMPT, **options)
        assert "".join(chunk.text for chunk in chunks) == last.text == expected.text
        assert last.token_ids == expected.token_ids

    def test_drafted_pieces_are_those_that_were_drafted(
        self, model: LanguageModel, draft: LanguageModel
    ) -> None:
        *chunks, last = model.stream(
            PROMPT, draft_model=draft, num_draft_tokens=5, max_tokens=40, ignore_eos=True
        )
        rounds = [chunk.pieces for chunk in chunks][: last.spec["num_rounds"]]
        told = [piece.token_id for pieces in rounds for piece in pieces]
        assert tuple(told) == last.token_ids
        drafted = [piece.drafted for pieces in rounds for piece in pieces]
        assert sum(drafted) == last.spec["num_accepted_tokens"] > 10
        for pieces in rounds[:-1]:
            flags = [piece.drafted for piece in pieces]
            assert flags == [True] * (len(flags) - 1) + [False], "the last is the target's own"
        *chunks, _ = plainly_streamed(model)
        assert not any(piece.drafted for chunk in chunks for piece in chunk.pieces)

    def test_text_held_back_to_the_end_has_the_flag_of_its_token(
        self, model: LanguageModel
    ) -> None:
        """A beginning of a stop string that nothing followed comes out when the answer ends."""
        the = model.tokenizer.encode("the")[0]
        options: dict[str, Any] = {"logit_bias": {the: 1e4}, "stop": "thex", "max_tokens": 6}
        *chunks, last = model.stream([the] * 5, **options)
        assert last.text == "the" * 6
        held = chunks[-1].pieces[-1]
        assert (held.text, held.token_id) == ("the", the)
        assert held.drafted == chunks[-2].pieces[-1].drafted

    def test_pieces_come_round_by_round(self, model: LanguageModel) -> None:
        seen: list[int] = []

        def spy(tokens: Any, logits: torch.Tensor) -> torch.Tensor:
            seen.append(len(tokens))
            return logits

        stream = model.stream(PROMPT, drafter="none", processors=[spy], max_tokens=9)
        assert not seen, "nothing runs before the first piece is asked for"
        next(stream)
        assert len(seen) == 1

    def test_closing_early_frees_everything(self, model: LanguageModel) -> None:
        closed: list[Any] = []
        target = model.target

        class Watched:
            def __getattr__(self, name: str) -> Any:
                return getattr(target, name)

            def close(self, slot: Any) -> None:
                closed.append(slot)
                target.close(slot)

        watched = LanguageModel(Watched(), model.decoder, model.tokenizer, model.eos_token_ids)
        stream = watched.stream(PROMPT, max_tokens=50)
        next(stream)
        assert not closed
        stream.close()  # type: ignore[attr-defined]
        assert len(closed) == 1
        with pytest.raises(StopIteration):
            next(stream)
        assert (
            watched.generate(PROMPT, max_tokens=9).token_ids
            == model.generate(PROMPT, max_tokens=9).token_ids
        )

    def test_a_slow_reader_is_not_counted(self, model: LanguageModel) -> None:
        start = time.perf_counter()
        slept = 0.0
        for item in model.stream(PROMPT, drafter="none", max_tokens=4, ignore_eos=True):
            if isinstance(item, Generation):
                found = item
            else:
                pause = time.perf_counter()
                time.sleep(0.05)
                slept += time.perf_counter() - pause
        assert slept >= 0.2
        assert 0 < found.decode_seconds <= time.perf_counter() - start - slept


def plainly_streamed(model: LanguageModel) -> Iterator[Chunk | Generation]:
    return model.stream(PROMPT, drafter="none", max_tokens=12)


class TestResult:
    SPEC = (
        "drafter",
        "verifier",
        "exact",
        "promise",
        "draft",
        "num_rounds",
        "num_drafts",
        "num_draft_tokens",
        "num_accepted_tokens",
        "mean_acceptance_length",
        "draft_acceptance_rate",
        "acceptance_rate_per_position",
        "acceptance_histogram",
    )

    def test_json_has_the_promised_keys(
        self, model: LanguageModel, draft: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The parts of an answer and the whole, by one clock.
        monkeypatch.setattr("paceline.generate.jobs.perf_counter", loop.perf_counter)
        found = model.generate(PROMPT, draft_model=draft, num_draft_tokens=3, max_tokens=20)
        told = json.loads(json.dumps(found.to_json(), allow_nan=False))
        assert list(told) == [
            "text",
            "token_ids",
            "finish_reason",
            "usage",
            "seed",
            "sampling",
            "spec",
            "time",
            "tokens_per_second",
        ]
        assert list(told["usage"]) == ["prompt_tokens", "completion_tokens"]
        assert tuple(told["spec"]) == self.SPEC
        assert list(told["time"]) == [
            "load_s",
            "prefill_s",
            "decode_s",
            "draft_s",
            "target_s",
            "verify_s",
        ]
        assert told["token_ids"] == list(found.token_ids)
        parts = told["time"]["draft_s"] + told["time"]["target_s"] + told["time"]["verify_s"]
        assert 0 < parts <= told["time"]["decode_s"]
        assert told["tokens_per_second"] == pytest.approx(
            len(found.token_ids) / told["time"]["decode_s"]
        )
        spec = told["spec"]
        assert (spec["drafter"], spec["verifier"], spec["exact"]) == ("model", "token", True)
        assert spec["promise"] == "law, path"
        assert spec["mean_acceptance_length"] == pytest.approx(20 / spec["num_rounds"])
        assert len(spec["acceptance_rate_per_position"]) == 3

    def test_with_logprobs(self, model: LanguageModel) -> None:
        told = json.loads(json.dumps(model.generate(PROMPT, logprobs=2, max_tokens=4).to_json()))
        assert len(told["logprobs"]) == len(told["top_logprobs"]) == 4
        assert [len(row) for row in told["top_logprobs"]] == [2] * 4

    def test_rates_are_null_where_nothing_was_drafted(self, model: LanguageModel) -> None:
        spec = plainly(model, max_tokens=5).spec
        assert spec["num_drafts"] == spec["num_draft_tokens"] == spec["num_accepted_tokens"] == 0
        assert spec["mean_acceptance_length"] == 1.0
        assert spec["draft_acceptance_rate"] is None
        assert spec["acceptance_rate_per_position"] is None
        json.dumps(plainly(model, max_tokens=0).to_json(), allow_nan=False)


def test_a_model_that_is_used_again_answers_the_same(
    model: LanguageModel, draft: LanguageModel
) -> None:
    options: dict[str, Any] = {"draft_model": draft, "max_tokens": 20}
    first = model.generate(PROMPT, **options)
    model.generate("END the", temperature=2.0, repetition_penalty=1.5, max_tokens=30)
    assert model.generate(PROMPT, **options).token_ids == first.token_ids


def test_four_threads_answer_as_one(model: LanguageModel, draft: LanguageModel) -> None:
    prompts = ["the END", "stop stop stop", "é你好", "the\nthe\n"]
    options: dict[str, Any] = {
        "draft_model": draft,
        "max_tokens": 25,
        "temperature": 0.8,
        "seed": 5,
    }
    alone = [model.generate(prompt, **options) for prompt in prompts]
    found: dict[int, list[Generation]] = {}

    def work(number: int) -> None:
        found[number] = [model.generate(prompts[number], **options) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, expected in enumerate(alone):
        for one in found[number]:
            assert (one.text, one.token_ids) == (expected.text, expected.token_ids)


def test_a_controller_by_name_and_as_an_object(model: LanguageModel) -> None:
    options: dict[str, Any] = {"max_tokens": 20, "ignore_eos": True}
    told = [
        model.generate(PROMPT, **options, **length).spec
        for length in (
            {"num_draft_tokens": 2},
            {"num_draft_tokens": 2, "controller": "fixed"},
            {"controller": "fixed", "controller_options": {"num_draft_tokens": 2}},
            {"controller": FixedController(2)},
        )
    ]
    assert told[0] == told[1] == told[2]
    assert len(told[0]["acceptance_rate_per_position"]) == 2


def test_a_rule_and_a_drafter_as_objects(model: LanguageModel) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "seed": 2, "max_tokens": 12}
    by_name = model.generate(PROMPT, verify="coupling", drafter="ngram", **options)
    by_object = model.generate(PROMPT, verify=CouplingVerifier(), drafter=NgramDrafter(), **options)
    assert by_object.token_ids == by_name.token_ids


def test_the_top_of_the_package_is_this_door() -> None:
    assert paceline.load is load
    assert paceline.LanguageModel is LanguageModel


@pytest.mark.parametrize("rule", ["token", "tree", "naive", "coupling"])
def test_no_processor_is_called_after_an_end_token(rule: str) -> None:
    """The end stands in the middle of an accepted draft; a grammar has no state after it."""
    language_model = load(build("llama"))
    prompt = (3, 9, 4)
    plain = language_model.generate(prompt, drafter="none", max_tokens=20).token_ids
    cut = next(i for i in range(3, 20) if plain[i] not in plain[:i])
    end, shown = plain[cut], []

    def grammar(tokens: Any, logits: Any) -> Any:
        shown.append(tuple(tokens))
        assert end not in tokens[len(prompt) :]
        return logits

    found = language_model.generate(
        prompt,
        drafter="predicted-output",
        drafter_options={"prediction": list(plain)},
        verify=rule,
        max_tokens=20,
        stop_token_ids=[end],
        processors=[grammar],
        num_draft_tokens=8,
    )
    assert found.token_ids == plain[: cut + 1]
    assert found.finish_reason == "stop"
    assert shown
