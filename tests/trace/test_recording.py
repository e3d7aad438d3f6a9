"""What is recorded is what was run: traces against the answers that they were made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core.events import DraftRecord, Failed, Round
from paceline.errors import InvalidInput
from paceline.generate.api import Chunk, Generation, LanguageModel, load
from paceline.trace import LaneRecorder, Recording, parse_trace, read_trace
from tests import tiny_folders

PROMPT = "the stop the END the stop"
HALF = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return load(tiny_folders.save(tmp_path_factory.mktemp("target")))


METHODS: dict[str, dict[str, Any]] = {
    "plain": {"drafter": "none"},
    "n-grams": {"drafter": "ngram", "num_draft_tokens": 3},
    "as many as pay": {"drafter": "ngram"},
    "sampled": {"drafter": "model", "num_draft_tokens": 3, "temperature": 1.0, "seed": 4},
    "coupled": {"drafter": "model", "verify": "coupling", "temperature": 1.0, "seed": 4},
    "a tree": {"drafter": "tree", "num_draft_tokens": 3, "temperature": 1.0, "seed": 4},
    "with a stop string": {"drafter": "ngram", "stop": "END", "num_draft_tokens": 2},
}


def traced(model: LanguageModel, path: Path, prompt: Any = PROMPT, **options: Any) -> Generation:
    if options["drafter"] in ("model", "tree"):
        options["draft_model"] = model
    return model.generate(prompt, max_tokens=30, trace=path, **options)


@pytest.mark.parametrize("method", METHODS)
def test_a_trace_is_the_run(model: LanguageModel, tmp_path: Path, method: str) -> None:
    path = tmp_path / "run.jsonl"
    found = traced(model, path, **METHODS[method])
    trace = read_trace(path)
    assert (trace.model, trace.prompt) == (model.name, PROMPT)
    assert trace.sampling["temperature"] == METHODS[method].get("temperature", 0.0)
    assert trace.sampling["seed"] == METHODS[method].get("seed")
    assert trace.environment["torch"]
    ((name, lane),) = trace.lanes.items()
    assert name == ("plain" if method == "plain" else "speculative")
    assert lane.about["verifier"] == found.verifier
    assert lane.about["promise"] == found.promise
    assert lane.tokens == found.token_ids
    assert lane.text == found.text
    assert lane.metrics == found.metrics
    assert lane.error is None
    assert lane.seconds[0] == 0.0
    assert lane.tokens_per_second == pytest.approx(found.tokens_per_second, rel=0.2)
    for event in lane.rounds:
        assert isinstance(event.draft, DraftRecord)
        assert len(event.draft.tokens) == event.num_draft_tokens


def test_each_drafted_token_has_its_own_text(model: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    traced(model, path, **METHODS["a tree"])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rounds = [line for line in lines if line["event"] == "round"]
    assert sum(len(line["draft"]["tokens"]) for line in rounds) > 5
    seen, compared = list(model.encode(PROMPT)), 0
    for line in rounds:
        draft = line["draft"]
        paths: dict[int, list[int]] = {-1: []}
        for node, token in enumerate(draft["tokens"]):
            parent = draft["parents"][node]
            paths[node] = [*paths[parent], token]
            before = model.tokenizer.decode([*seen, *paths[parent]])
            if HALF not in before:  # a token that completes a character is shown alone
                after = model.tokenizer.decode([*seen, *paths[node]])
                assert before + draft["pieces"][node] == after
                compared += 1
        seen += line["tokens"]
    assert compared > 5


def test_two_lanes_of_one_prompt_are_one_trace(model: LanguageModel, tmp_path: Path) -> None:
    race = Recording()
    chat = [{"role": "user", "content": PROMPT}]
    plain = model.generate(chat, drafter="none", max_tokens=12, trace=race)
    fast = model.generate(chat, drafter="ngram", max_tokens=12, trace=race)
    race.write(tmp_path / "race.jsonl")
    trace = read_trace(tmp_path / "race.jsonl")
    assert list(trace.lanes) == ["plain", "speculative"]
    assert trace.prompt == PROMPT
    assert trace.lanes["plain"].tokens == plain.token_ids == fast.token_ids
    assert trace.lanes["plain"].metrics == plain.metrics
    assert trace.lanes["speculative"].metrics == fast.metrics
    with pytest.raises(InvalidInput, match="has a lane 'plain' already"):
        model.generate(chat, drafter="none", max_tokens=12, trace=race)


@pytest.mark.parametrize(
    "other", [{"max_tokens": 9}, {"temperature": 1.0}, {"prompt": "the END"}], ids=str
)
def test_lanes_of_different_runs_are_no_race(model: LanguageModel, other: dict[str, Any]) -> None:
    race = Recording()
    options = {"prompt": PROMPT, "max_tokens": 8}
    model.generate(drafter="none", trace=race, **options)
    with pytest.raises(InvalidInput, match="this lane differs from the first"):
        model.generate(drafter="ngram", trace=race, **{**options, **other})


def test_a_run_that_is_stopped_leaves_what_there_was(model: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    stream = model.stream(PROMPT, drafter="none", max_tokens=20, trace=path)
    shown = [next(stream), next(stream)]
    stream.close()
    lane = read_trace(path).lanes["plain"]
    assert lane.text == "".join(item.text for item in shown if isinstance(item, Chunk))
    assert len(lane.rounds) == 2
    assert lane.events[-1] is lane.events[2]


def test_without_a_tokenizer_a_trace_holds_token_ids(model: LanguageModel, tmp_path: Path) -> None:
    bare = load(tiny_folders.model())
    path = tmp_path / "run.jsonl"
    found = bare.generate([3, 4, 3, 4], max_tokens=6, drafter="ngram", trace=str(path))
    trace = read_trace(path)
    assert trace.prompt == "3 4 3 4"
    assert trace.lanes["speculative"].tokens == found.token_ids
    assert trace.lanes["speculative"].text is None


def test_a_failed_run_says_so() -> None:
    race = Recording()
    lane = race.lane("plain", {}, [1], None, model="tiny", prompt="1", sampling={})
    lane.take(Failed(id=0, error=ValueError("out of luck"), num_tokens=0), 0.5)
    text = "\n".join(map(json.dumps, race.lines()))
    assert parse_trace(text).lanes["plain"].error == "ValueError: out of luck"


def test_lines_are_there_as_they_come() -> None:
    """What a server sends: each line once, and all of them in the end."""
    lane = LaneRecorder("plain", {}, [1], None)
    numbers = []
    for number in (1, 2):
        event = Round(
            id=0,
            number=number,
            tokens=(5,),
            num_draft_tokens=0,
            num_accepted_tokens=0,
            max_path_length=0,
            draft_seconds=0.0,
            target_seconds=0.1,
            verify_seconds=0.0,
        )
        lane.take(event, 0.1 * number)
        numbers += [line["number"] for line in lane.drain()]
    assert numbers == [line["number"] for line in lane.lines] == [1, 2]
    assert lane.drain() == []


class TestBadInput:
    def test_what_is_no_file(self, model: LanguageModel) -> None:
        with pytest.raises(InvalidInput, match="trace must be a file or a Recording; it is 3"):
            model.generate(PROMPT, trace=3)  # type: ignore[call-overload]

    def test_a_folder_that_is_not_there(self, model: LanguageModel, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match=r"trace: cannot write .*there is no folder"):
            model.generate(PROMPT, trace=tmp_path / "none" / "run.jsonl")

    def test_several_answers(self, model: LanguageModel, tmp_path: Path) -> None:
        for call in (
            lambda: model.generate(PROMPT, n=2, trace=tmp_path / "run.jsonl"),
            lambda: model.generate_batch([PROMPT] * 2, trace=tmp_path / "run.jsonl"),
        ):
            with pytest.raises(InvalidInput, match="a trace is of one answer; this call gives 2"):
                call()
        assert not (tmp_path / "run.jsonl").exists()

    def test_nothing_recorded(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="nothing was recorded"):
            Recording().write(tmp_path / "run.jsonl")
