"""Whether a draft model has the tokenizer of the target."""

from __future__ import annotations

import logging
from typing import ClassVar

import pytest

from paceline.core.target import TargetInfo
from paceline.errors import InvalidInput
from paceline.generate.tokenizers import check_same_tokenizer, warn_of_vocabularies
from tests.tiny_tokenizers import byte_level, sentencepiece


class TestVocabularies:
    NAMES: ClassVar[dict[str, str]] = {"target": "large", "draft": "small"}

    def test_the_same_tokenizer(self) -> None:
        check_same_tokenizer(byte_level(), byte_level(), **self.NAMES)

    def test_another_one(self) -> None:
        with pytest.raises(InvalidInput, match="draft model small has another tokenizer than larg"):
            check_same_tokenizer(byte_level(), sentencepiece(), **self.NAMES)

    @pytest.mark.parametrize(
        ("size", "told"), [(1000, 0), (1010, 0), (990, 0), (1011, 1), (989, 1)]
    )
    def test_sizes_that_padding_does_not_explain_are_told(
        self, size: int, told: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, logger="paceline"):
            warn_of_vocabularies(TargetInfo("large", 1000), TargetInfo("small", size))
        assert len(caplog.records) == told
        assert all(f"vocabulary of {size} tokens" in message for message in caplog.messages)
