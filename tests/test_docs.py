"""The Python examples of README and docs run, page by page, from top to bottom.

Where a page loads a known model, a tiny one takes its place, so that the examples run offline and
in a moment; their output is not looked at here.
"""

from __future__ import annotations

import re
import sys
import tomllib
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.generation.streamers import TextStreamer
from typer.main import get_command

import paceline
from paceline.cli.main import app
from paceline.generate import api, draft_heads, plugins
from paceline.models.heads.loading import load_head, open_head
from tests import tiny_tokenizers
from tests.tiny_head_files import medusa

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
    if BLOCK.search(path.read_text(encoding="utf-8"))
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in Hugging Face layout."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.chat_template = tiny_tokenizers.CHAT_TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _opening(opens: Any, head: Path, source: Any, *arguments: Any, **options: Any) -> Any:
    """What `opens` makes of a head that is there, whatever the source."""
    return opens(head, *arguments, **options)


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(
    page: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # examples write files
    load = paceline.load

    def load_tiny(source: Any, *arguments: Any, **options: Any) -> Any:
        known = isinstance(source, str) and not Path(source).exists()
        return load(folder if known else source, *arguments, **options)

    def draft_tiny(source: Any, *form: Any, **options: Any) -> Any:
        return load_draft(folder if isinstance(source, str) else source, *form, **options)

    tiny_head = medusa(AutoModelForCausalLM.from_pretrained(folder), folder.parent / "head")
    for module, opens in ((paceline, load_head), (draft_heads, open_head)):
        replaced = partial(_opening, opens, tiny_head)
        monkeypatch.setattr(module, opens.__name__, replaced, raising=False)
    load_draft = api.load_draft
    monkeypatch.setattr(paceline, "load", load_tiny, raising=False)
    monkeypatch.setattr(paceline, "load_draft", draft_tiny, raising=False)
    monkeypatch.setattr(api, "load_draft", draft_tiny)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # A dataclass looks its module up.
    monkeypatch.setitem(sys.modules, "example", ModuleType("example"))
    names: dict[str, Any] = {
        "__name__": "example",
        "name": folder,
        "tokenizer": tokenizer,
        "model": AutoModelForCausalLM.from_pretrained(folder),
        "inputs": tokenizer("One two one two", return_tensors="pt"),
        "streamer": TextStreamer(tokenizer),
    }
    for block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        if block.startswith("import paceline\n\noutput = model"):
            # The README shows Python first; there `model` is Paceline's, here it is the user's.
            names["model"] = AutoModelForCausalLM.from_pretrained(folder)
        exec(compile(block, page, "exec"), names)


def test_every_built_in_plug_in_has_its_place_in_the_docs() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in plugins.names("drafter"):
        assert (ROOT / f"docs/drafters/{name}.md").exists()
        assert f"`{name}`" in readme
    exactness = (ROOT / "docs/exactness.md").read_text(encoding="utf-8")
    for name in plugins.names("verifier"):
        assert f"`{name}`" in exactness


def test_every_command_and_every_extra_is_named_where_readers_start() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in get_command(app).commands:  # type: ignore[attr-defined]
        assert f"paceline {name}" in readme or f"make {name}" in readme, f"README: {name}"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in project["optional-dependencies"].keys() - {"dev", "docs"}:
        assert re.search(rf"pip install '\.\[[a-z,]*\b{extra}\b", readme), f"README: {extra}"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in ROOT.glob("docs/**/*.md"):
        assert path.relative_to(ROOT / "docs").as_posix() in navigation


def test_the_structure_page_names_every_room_and_nothing_that_is_not_there() -> None:
    page = (ROOT / "docs/structure.md").read_text(encoding="utf-8")
    source = ROOT / "src/paceline"
    for room in sorted(source.iterdir()):
        if room.is_dir() and room.name != "__pycache__":
            assert f"`{room.name}/`" in page, f"docs/structure.md leaves out {room.name}/"
    for name in re.findall(r"`([a-z_/]+(?:/|\.py))`", page):
        anywhere = [source / name, ROOT / name, *source.glob(f"**/{name}")]
        assert any(path.exists() for path in anywhere), f"docs/structure.md names {name}"
