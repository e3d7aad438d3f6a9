"""Files of settings: what they say comes back, and what cannot be meant is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.controllers.fixed import FixedController
from paceline.errors import InvalidInput, UnknownName
from paceline.generate.settings import (
    DRAFTING,
    SCHEMA,
    read_settings,
    settings_json,
    with_settings,
)
from tests import tiny_models

DRAFT = {"drafter": "tree", "drafter_options": {"width": 1}, "draft_model": "D", "verify": None}


def test_what_was_written_is_read() -> None:
    kept = {"drafter": "tree", "drafter_options": {"width": 1}, "draft_model": "D"}
    assert read_settings(settings_json("T", DRAFT, {"speedup": 2.0})) == kept


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("s.json", json.dumps({"schema": SCHEMA, "drafting": {"drafter": "ngram"}})),
        ("s.toml", f'schema = "{SCHEMA}"\n[drafting]\ndrafter = "ngram"\n'),
    ],
)
def test_files_of_both_forms(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_settings(tmp_path / name) == {"drafter": "ngram"}
    assert read_settings(str(tmp_path / name)) == {"drafter": "ngram"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "neither JSON nor TOML"),
        ("[]", "whose schema is"),
        ('{"schema": "paceline.settings/2"}', "whose schema is"),
        (json.dumps({"schema": SCHEMA}), "'drafting'"),
        (json.dumps({"schema": SCHEMA, "drafting": 3}), "'drafting'"),
        (json.dumps({"schema": SCHEMA, "drafting": {"draftr": 1}}), "did you mean 'drafter'"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "settings.json"
    file.write_text(content)
    with pytest.raises((InvalidInput, UnknownName), match=message):
        read_settings(file)


def test_a_missing_file() -> None:
    with pytest.raises(InvalidInput, match="cannot read the settings in none"):
        read_settings("none")


def test_settings_stand_for_their_options() -> None:
    found: dict[str, Any] = settings_json("T", DRAFT, {})
    given = {"settings": found, "max_tokens": 9, "verify": None, "drafter_options": {}}
    assert with_settings(given) == {**read_settings(found), "max_tokens": 9}
    assert with_settings({"settings": None, "drafter": "ngram"}) == {"drafter": "ngram"}


@pytest.mark.parametrize("name", DRAFTING)
def test_settings_and_an_option_of_theirs_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"{name} says it too"):
        with_settings({"settings": settings_json("T", DRAFT, {}), name: "x"})


@pytest.fixture(scope="module")
def model() -> Any:
    return paceline.load(tiny_models.tiny("llama"))


def test_every_door_takes_them(model: Any, tmp_path: Path) -> None:
    """The drafter of the file makes the drafts, with its settings and its draft length."""
    drafting = {"drafter": "suffix", "drafter_options": {"max_depth": 7}, "num_draft_tokens": 3}
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(settings_json("T", drafting, {})))
    drafter = model.drafter(settings=file)
    assert (drafter.name, drafter.max_depth) == ("suffix", 7)
    prompt = tiny_models.tokens_of(12, 0) * 2
    answer = model.generate(prompt, settings=str(file), max_tokens=8)
    assert answer.spec["drafter"] == "suffix"
    assert answer.token_ids == model.generate(prompt, drafter="none", max_tokens=8).token_ids
    made = paceline.speculate(settings=file)
    assert made.drafter == drafter
    assert made.controller == FixedController(3)
    with pytest.raises(InvalidInput, match="drafter says it too"):
        model.generate(prompt, settings=file, drafter="ngram")
    with pytest.raises(InvalidInput, match="drafter_options says it too"):
        paceline.speculate(settings=file, max_depth=3)
