"""Reading traces: files that the page's reader is held to as well, and what is refused by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core.events import Finished
from paceline.errors import InvalidInput
from paceline.trace import parse_trace, read_trace, reader

FILES = Path(__file__).parent / "files"
BAD = json.loads((FILES / "bad" / "expected.json").read_text())
WORDS = " three four five six <b> \N{LINE SEPARATOR}"


@pytest.mark.parametrize("name", ["race", "interleaved"])
def test_a_race(name: str) -> None:
    trace = read_trace(FILES / "good" / f"{name}.jsonl")
    plain, fast = trace.lanes["plain"], trace.lanes["speculative"]
    assert plain.text == fast.text == WORDS
    assert plain.tokens == fast.tokens == tuple(range(13, 19))
    assert fast.seconds == (0.0, 0.16, 0.33, 0.34)
    assert fast.tokens_per_second == pytest.approx(6 / 0.33)
    assert plain.metrics.mean_acceptance_length == 1.0
    assert fast.metrics.mean_acceptance_length == 3.0
    assert fast.metrics.draft_acceptance_rate == 4 / 7
    draft = fast.rounds[1].draft
    assert draft is not None
    assert (draft.path, draft.token) == ((1, 2), 18)
    assert draft.p == (0.1, 0.7, 0.6, None)
    assert draft.q == (None,) * 4


def test_a_run_that_was_stopped_has_no_end() -> None:
    trace = read_trace(FILES / "good" / "stopped.jsonl")
    assert [len(lane.rounds) for lane in trace.lanes.values()] == [2, 1]
    assert not any(isinstance(lane.events[-1], Finished) for lane in trace.lanes.values())


def test_a_stop_may_cut_the_accepted_tokens() -> None:
    lane = read_trace(FILES / "good" / "cut-by-a-stop.jsonl").lanes["speculative"]
    assert lane.text == " three"
    draft = lane.rounds[0].draft
    assert draft is not None
    assert draft.path == (0, 1)


def test_a_trace_without_texts_and_drafts_has_counts() -> None:
    lane = read_trace(FILES / "good" / "counts-only.jsonl").lanes["speculative"]
    assert lane.text is None
    assert all(event.draft is None for event in lane.rounds)
    assert lane.metrics.counts.num_accepted_tokens == 4


def test_a_run_that_failed() -> None:
    lane = read_trace(FILES / "good" / "failed.jsonl").lanes["speculative"]
    assert lane.error == "ValueError: no"
    assert lane.text == " three four five"


def test_every_bad_file_is_there() -> None:
    assert {path.stem for path in (FILES / "bad").glob("*.jsonl")} == set(BAD)
    assert len(BAD) >= 12


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_by_line(name: str) -> None:
    path = FILES / "bad" / f"{name}.jsonl"
    with pytest.raises(InvalidInput) as raised:
        read_trace(path)
    message = str(raised.value)
    assert message.startswith(f"{path}, line {BAD[name]['line']}: ")
    assert BAD[name]["about"] in message


def test_an_error_says_what_was_expected_and_what_came() -> None:
    with pytest.raises(InvalidInput, match="number must be 1, the next of the lane; it is 2"):
        read_trace(FILES / "bad" / "number-missing-from-the-row.jsonl")


class TestWhatIsNoTrace:
    @pytest.mark.parametrize("text", ["", "\n\n", "[1]", "null", "[" * 100_000, '{"a":1}'])
    def test_text_of_another_kind(self, text: str) -> None:
        with pytest.raises(InvalidInput, match=r"^the trace, line 1: "):
            parse_trace(text)

    @pytest.mark.parametrize(
        "edit",
        [
            {"lanes": {}},
            {"lanes": {"plain": 3}},
            {"lanes": []},
            {"prompt": None},
            {"model": 1},
            {"sampling": "greedy"},
            {"environment": []},
        ],
        ids=str,
    )
    def test_a_header_with_a_wrong_value(self, edit: dict[str, Any]) -> None:
        first = (FILES / "good" / "race.jsonl").read_text().split("\n")[0]
        with pytest.raises(InvalidInput, match=r"line 1: "):
            parse_trace(json.dumps({**json.loads(first), **edit}))

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match=r"cannot read the trace .*No such file"):
            read_trace(tmp_path / "none.jsonl")

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        path = tmp_path / "picture.png"
        path.write_bytes(b"\x89PNG\xff")
        with pytest.raises(InvalidInput, match="is no trace: it is not text in UTF-8"):
            read_trace(path)

    def test_a_file_far_too_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reader, "MAX_BYTES", 100)
        with pytest.raises(InvalidInput, match=r"bytes; a trace has at most 100"):
            read_trace(FILES / "good" / "race.jsonl")

    def test_every_value_of_a_round_is_checked(self) -> None:
        """Whatever stands in place of one value, it is refused with the line, or harmless."""
        lines = (FILES / "good" / "race.jsonl").read_text().rstrip("\n").split("\n")
        place = next(i for i, line in enumerate(lines) if '"draft":' in line)
        found = json.loads(lines[place])
        refused = 0
        for holder in (found, found["draft"]):
            for name, value in list(holder.items()):
                for wrong in (None, True, -1, 0.5, "x", [None], {"a": 1}, [[]]):
                    holder[name] = wrong
                    edited = [*lines[:place], json.dumps(found), *lines[place + 1 :]]
                    try:
                        parse_trace("\n".join(edited))
                    except InvalidInput as error:
                        refused += 1
                        assert ", line " in str(error)  # noqa: PT017 - most are refused, not all
                holder[name] = value
        assert refused > 150
