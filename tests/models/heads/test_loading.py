"""What is the same for the files of every format."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.errors import InvalidInput
from paceline.models.heads import load_head
from tests.tiny_head_files import hydra, medusa, mlp
from tests.tiny_models import tiny


@pytest.mark.parametrize("write", [medusa, hydra, mlp])
def test_a_dialect_is_refused_where_it_means_nothing(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = write(tiny("llama"), tmp_path / "head")
    for given in ({"source": f"{path}@vllm"}, {"source": path, "dialect": "specforge"}):
        with pytest.raises(InvalidInput, match="which has no dialects"):
            load_head(**given)
