"""Whole runs: broken off anywhere they go on with the same numbers, and nothing is mixed up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import paceline
from paceline.cli.train_view import sentences
from paceline.core.sampling import SamplingParams
from paceline.drafters.medusa import MedusaDrafter
from paceline.errors import InvalidInput, NoSpace
from paceline.generate.api import LanguageModel
from paceline.models.heads import load_head
from paceline.train import answers, store
from paceline.train import run as module
from paceline.train.fixed import architectures_of
from paceline.train.loop import Plan
from paceline.train.medusa_recipe import MedusaRecipe
from paceline.train.meter import Progressed
from paceline.train.prompts import Prompt
from paceline.train.result import Trained
from paceline.train.run import train
from paceline.train.settings import RunFolder, Settings
from tests import tiny_folders
from tests.train import periodic

PLAN = Plan(epochs=80, batch_tokens=120, learning_rate=0.05, measured=8)


@pytest.fixture(scope="module")
def circle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return periodic.save(tmp_path_factory.mktemp("models") / "circle")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folders.save(tmp_path_factory.mktemp("models") / "tiny")


def settings_of(model: Path, **changes: Any) -> Settings:
    found = Settings(
        recipe=MedusaRecipe(3, 1, None),
        model=str(model),
        tokens=300,
        max_tokens=20,
        batch=4,
        plan=PLAN,
    )
    return replace(found, **changes)


def encoded(model: Any) -> Sequence[Prompt]:
    """Texts of the language of `periodic`, each of another beginning and length."""
    return [
        Prompt(str(n), tuple(periodic.text(first=n % 8, length=2 + n // 8))) for n in range(200)
    ]


def run(settings: Settings, folder: Path, **options: Any) -> Trained:
    found = options.setdefault("given", None)
    assert found is None or callable(found)
    return train(
        settings,
        RunFolder(folder),
        lambda: paceline.load(settings.model, dtype="float32"),
        **options,
    )


def shards(folder: Path) -> list[Any]:
    """All that the shards hold."""
    found: list[Any] = []
    for shard in store.Store(folder / "training"):
        ours = [shard[place] for place in range(len(shard))]
        states = [one.hidden.final for one in ours]
        assert all(final is not None for final in states)
        found.append(
            (
                shard.about,
                shard.lengths,
                [one.tokens.tolist() for one in ours],
                [final.tolist() for final in states if final is not None],
            )
        )
    return found


def test_a_periodic_language_is_learned_and_served(circle: Path, tmp_path: Path) -> None:
    told: list[Progressed] = []
    found = run(settings_of(circle), tmp_path / "out", given=encoded, tell=told.append)
    assert found.ended in ("done", "stale")
    assert found.progress is not None
    assert found.progress.best is not None
    assert found.to_json()["conditional_acceptance_rate_per_position"] == [1.0, 1.0, 1.0]
    assert {at.stage for at in told} == {"loading the model", "capturing answers", "training"}
    assert [at.done for at in told if at.stage == "training"] == [
        *range(1, found.progress.step + 1)
    ]
    model = paceline.load(circle, dtype="float32")
    head = load_head(tmp_path / "out", model.target.info)
    answer = model.generate(
        periodic.text(first=2, length=3),
        drafter=MedusaDrafter(head, shape="chain"),
        num_draft_tokens=3,
        max_tokens=40,
        temperature=0.0,
    )
    assert answer.token_ids == tuple(periodic.text(first=2, length=43)[3:])
    assert answer.metrics.counts.num_accepted_tokens == 30
    kept = json.loads((tmp_path / "out/training/result.json").read_text())
    assert kept == json.loads(json.dumps(found.to_json()))


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}])
def test_a_run_broken_off_anywhere_gives_the_same_numbers(
    tiny: Path, tmp_path: Path, sampling: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target's own prompts, at random where it samples; stops in capture and in training."""
    monkeypatch.setattr(answers, "PROMPT_TOKENS", 12)
    settings = settings_of(tiny, sampling=sampling, tokens=250, plan=replace(PLAN, epochs=8))
    whole = run(settings, tmp_path / "whole")
    folder = tmp_path / "parts"
    states = []
    for stage, count in (
        ("capturing answers", 20),
        ("capturing answers", 170),
        ("training", 6),
        ("training", 15),
    ):
        at: dict[str, int] = {}
        part = run(
            settings,
            folder,
            resume=bool(states),
            tell=lambda told, at=at: at.update({told.stage: told.done}),
            stops=lambda at=at, stage=stage, count=count: at.get(stage, 0) >= count,
        )
        assert part.ended == "stopped"
        states.append((len(shards(folder)), part.progress and part.progress.step))
    assert states == [(0, None), (1, None), (2, 6), (2, 15)]
    last = run(settings, folder, resume=True)
    assert shards(folder) == shards(tmp_path / "whole")
    assert last.progress is not None
    assert whole.progress is not None
    assert last.progress.curve == whole.progress.curve
    assert last.progress.points == whole.progress.points
    ours, theirs = (
        load_file(path / "medusa_lm_head.safetensors") for path in (folder, tmp_path / "whole")
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_prompts_are_used_up(circle: Path, tmp_path: Path) -> None:
    found = run(
        settings_of(circle, tokens=10**6),
        tmp_path / "out",
        given=lambda model: [*encoded(model)[:11], *encoded(model)[:3]],
    )
    assert found.data["ended"] == "prompts"
    assert found.data["num_sequences"] == 11
    assert found.data["thrown_out"] == {"seen before": 3}
    assert found.data["num_answer_tokens"] == 11 * 20


def test_excluded_prompts_are_not_learned_from(circle: Path, tmp_path: Path) -> None:
    unseen = encoded(None)[7].text
    found = run(
        settings_of(circle, tokens=10**6),
        tmp_path / "out",
        given=lambda model: encoded(model)[:20],
        excluded=[f"{unseen}."],
    )
    assert found.data["thrown_out"] == {"excluded": 1}
    written = (tmp_path / "out/training").glob("shard-*")
    kept = [text for path in written for text in store.Shard(path).about["prompts"]]
    assert len(kept) == 19
    assert unseen not in kept


def test_the_time_is_divided(circle: Path, tmp_path: Path) -> None:
    """On a clock of which every look takes a quarter of a second."""
    now = iter(range(10**9))
    options: dict[str, Any] = {"given": encoded, "clock": lambda: next(now) / 4}
    settings = settings_of(circle, tokens=10**6, plan=replace(PLAN, epochs=100))
    found = run(settings, tmp_path / "out", minutes=1, **options)
    assert found.data["ended"] == "time"
    assert found.ended in ("done", "time")
    assert found.is_written
    assert found.progress is not None
    assert next(now) / 4 < 63
    # What was captured and planned is kept: with more time the run goes on from there.
    more = run(settings, tmp_path / "out", resume=True, minutes=1, **options)
    assert more.progress is not None
    assert more.progress.num_steps == found.progress.num_steps
    assert more.data["num_answer_tokens"] == found.data["num_answer_tokens"]


def test_a_disk_that_is_too_small_is_found_before_capture(
    circle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=100_000_000))
    with pytest.raises(NoSpace, match=r"has 100 MB left and 747 MB are needed"):
        run(settings_of(circle, tokens=10**7), tmp_path / "out", given=encoded)
    assert not shards(tmp_path / "out")


def test_a_disk_that_fills_up_while_capturing_loses_nothing(
    circle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = store.save_file, iter(range(100))

    def full(*arguments: Any, **options: Any) -> None:
        if next(calls) == 1:
            raise OSError(28, "No space left on device")
        real(*arguments, **options)

    monkeypatch.setattr(store, "save_file", full)
    with pytest.raises(NoSpace, match="go on with --resume"):
        run(settings_of(circle), tmp_path / "out", given=encoded)
    assert len(shards(tmp_path / "out")) == 1
    found = run(settings_of(circle), tmp_path / "out", resume=True, given=encoded)
    whole = run(settings_of(circle), tmp_path / "whole", given=encoded)
    assert shards(tmp_path / "out") == shards(tmp_path / "whole")
    assert found.progress is not None
    assert whole.progress is not None
    assert found.progress.curve == whole.progress.curve


def test_folders_that_cannot_be_used(circle: Path, tmp_path: Path) -> None:
    settings = settings_of(circle)
    other = tmp_path / "other"
    other.mkdir()
    (other / "letter.txt").write_text("dear")
    with pytest.raises(InvalidInput, match="is there already, or give another folder"):
        run(settings, other, given=encoded)
    with pytest.raises(InvalidInput, match="holds no run to resume; leave --resume out"):
        run(settings, other, given=encoded, resume=True)
    run(settings, tmp_path / "out", given=encoded, stops=lambda: True)
    with pytest.raises(InvalidInput, match="holds a run already; add --resume to go on with it"):
        run(settings, tmp_path / "out", given=encoded)
    with pytest.raises(InvalidInput, match="has num_heads 3, and 4 was given; a run goes on"):
        run(
            replace(settings, recipe=MedusaRecipe(4, 1, None)),
            tmp_path / "out",
            given=encoded,
            resume=True,
        )
    with (
        RunFolder(tmp_path / "out").opened(settings, resume=True),
        pytest.raises(InvalidInput, match="another process works on"),
    ):
        run(settings, tmp_path / "out", given=encoded, resume=True)
    (tmp_path / "out/training/run.json").write_text("{")
    with pytest.raises(InvalidInput, match="cannot be read"):
        run(settings, tmp_path / "out", given=encoded, resume=True)


def test_too_little_was_captured(circle: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="1 sequences were captured, and training needs at"):
        run(settings_of(circle), tmp_path / "out", given=lambda model: encoded(model)[:1])
    found = run(settings_of(circle), tmp_path / "out", resume=True, given=encoded)
    assert found.is_written


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "tokens must be at least 1"),
        ({"max_tokens": 1}, "max_tokens must be at least 2"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"sampling": {"temperature": -1.0}}, "temperature"),
        ({"plan": replace(PLAN, learning_rate=2.0)}, "learning_rate must be above 0"),
        ({"plan": replace(PLAN, epochs=0)}, "epochs must be at least 1"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        settings_of(Path("model"), **changes)


def test_settings_survive_json() -> None:
    settings = settings_of(Path("model"), sampling={"temperature": 0.5}, exclude=("a", "b"))
    assert Settings.from_json(json.loads(json.dumps(settings.to_json()))) == settings


def test_the_shares_of_the_time() -> None:
    budget = module.Budget(100.0, 60.0)
    assert budget.after(0.5) == 130.0
    assert module.Budget(100.0, None).after(0.5) is None
    assert SamplingParams().is_greedy


@pytest.mark.parametrize("is_there", [True, False])
def test_a_run_that_fails_before_its_first_answer_leaves_no_folder(
    circle: Path, tmp_path: Path, is_there: bool
) -> None:
    """Another try needs neither --resume, with settings that were wrong, nor another folder."""
    settings, folder = settings_of(circle), tmp_path / "out"
    if is_there:
        folder.mkdir()

    def fails() -> LanguageModel:
        raise InvalidInput("no such model")

    with pytest.raises(InvalidInput, match="no such model"):
        train(settings, RunFolder(folder), fails, given=encoded)
    assert folder.exists() == is_there
    assert not is_there or not any(folder.iterdir())
    assert run(settings, folder, given=encoded).is_written


def test_a_seed_may_be_any_of_64_bits(circle: Path, tmp_path: Path) -> None:
    settings = settings_of(circle)
    most = 2**64 - 1
    large = replace(settings, seed=most, plan=replace(settings.plan, seed=most))
    assert run(large, tmp_path / "out", given=encoded).is_written


@pytest.mark.parametrize("kind", ["adapter", "pickled"])
def test_the_architecture_is_that_of_whatever_was_loaded(
    circle: Path, tmp_path: Path, kind: str
) -> None:
    """It is looked up after the capture, where a refusal would come too late."""
    folder = tmp_path / kind
    if kind == "adapter":
        folder.mkdir()
        module = "base_model.model.model.layers.0.mlp.down_proj"
        low_rank = {"lora_A": torch.ones(1, 16), "lora_B": torch.zeros(periodic.WIDTH, 1)}
        named = {f"{module}.{name}.weight": value for name, value in low_rank.items()}
        save_file(named, folder / "adapter_model.safetensors")
        about = {"peft_type": "LORA", "base_model_name_or_path": str(circle), "r": 1}
        (folder / "adapter_config.json").write_text(json.dumps(about))
    else:
        shutil.copytree(circle, folder)
        weights = folder / "model.safetensors"
        torch.save(load_file(weights), folder / "pytorch_model.bin")
        weights.unlink()
    model = paceline.load(folder, dtype="float32", allow_pickle=kind == "pickled")
    found = architectures_of(settings_of(folder, dtype="float32"), model)
    assert found == ["LlamaForCausalLM"]


def test_commands_that_are_shown_can_be_pasted() -> None:
    """Folders have spaces."""
    settings, folder = settings_of(Path("my model")), RunFolder(Path("my head"))
    data = {"num_answer_tokens": 0, "num_sequences": 0, "num_bytes": 0}
    stopped = Trained(folder, settings, data, None, None, "stopped", True)
    assert stopped.use == "paceline generate -m 'my model' --draft-head 'my head'"
    assert "Go on with: paceline train medusa -m 'my model' -o 'my head' --resume" in sentences(
        stopped
    )
