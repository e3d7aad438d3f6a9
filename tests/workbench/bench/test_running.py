"""The runs of a benchmark, on models made here."""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import Any

import pytest
import torch

import paceline
from paceline.core.drafts import Draft, Scheme, Verdict
from paceline.engine.metrics import Metrics
from paceline.errors import InvalidInput
from paceline.workbench.bench import running
from paceline.workbench.bench.report import report
from paceline.workbench.bench.results import BenchResult, Difference
from paceline.workbench.bench.running import Setting
from paceline.workbench.bench.runs import Run
from paceline.workbench.bench.schedule import Step
from paceline.workbench.report import to_html, to_markdown
from paceline.workbench.workload import Item
from paceline.workbench.workload.methods import parse_methods
from tests import tiny_models

METHODS = ["ngram,k=2", "ngram,k=4,max_ngram=2"]
PROMPTS = [tiny_models.tokens_of(12, seed) * 2 for seed in range(3)]


@pytest.fixture(scope="module")
def model() -> Any:
    return paceline.load(tiny_models.tiny("llama"))


@pytest.fixture(scope="module")
def setting(model: Any) -> Setting:
    methods = [method.options({}) for method in parse_methods(METHODS)]
    return Setting(model, PROMPTS, methods, {"max_tokens": 24, "temperature": 0.0})


@pytest.fixture(scope="module")
def runs(setting: Setting) -> list[Run]:
    running.warm_up(setting)
    return list(running.runs(setting, repeats=1))


def result_of(runs: list[Run], **changes: Any) -> BenchResult:
    items = [Item(f"p{n}", "text", "ab"[n % 2]) for n in range(len(PROMPTS))]
    settings: dict[str, Any] = {
        "items": items,
        "methods": parse_methods(METHODS),
        "runs": runs,
        "differences": {0: [], 1: [], 2: []},
        "about": {"model": "tiny", "environment": {"command": "paceline bench"}, "options": {}},
    }
    return BenchResult(**{**settings, **changes})


def test_each_prompt_brings_its_own_prediction(model: Any, runs: list[Run]) -> None:
    """Where the answer is expected back, for its own prompt alone, every draft is accepted."""
    answers = {run.item: list(run.tokens) for run in runs if run.method == 0}
    methods = parse_methods(["predicted-output,k=5"], prompts_bring=True)
    for shift, whole in ((0, True), (1, False)):
        drafting = [
            {"prediction": answers[(item + shift) % len(PROMPTS)]} for item in range(len(PROMPTS))
        ]
        setting = Setting(
            model,
            PROMPTS,
            [method.options({}) for method in methods],
            {"max_tokens": 24, "temperature": 0.0},
            drafting=drafting,
            takes=[method.takes for method in methods],
        )
        running.check(setting, ["a", "b", "c"])
        for item in range(len(PROMPTS)):
            run = running.run(setting, Step(item, 1))
            assert list(run.tokens) == answers[item]
            assert (len(run.rounds) == 24 // 6) is whole


def test_a_run_counts_what_generate_counts(setting: Setting, model: Any, runs: list[Run]) -> None:
    for run in runs:
        options = setting.options(Step(run.item, run.method))
        generation = model.generate(PROMPTS[run.item], **options)
        metrics: Metrics = generation.metrics
        assert run.tokens == generation.token_ids
        assert run.finish_reason == generation.finish_reason
        assert run.counts == metrics.counts
        assert sum(item.num_draft_tokens for item in run.rounds) == metrics.num_draft_tokens
        assert sum(item.num_tokens for item in run.rounds) == len(run.tokens)
        assert run.prefill_s > 0
        assert run.decode_s >= run.parts_s["target"] > 0
        assert run.peak_bytes is not None
        assert run.peak_bytes > 1_000_000


def test_tokens_are_those_of_plain_decoding(runs: list[Run]) -> None:
    assert running.differing(runs) == {}


def test_an_answer_that_differs_is_found_and_looked_into(setting: Setting, runs: list[Run]) -> None:
    changed = [*runs]
    place = next(n for n, run in enumerate(runs) if (run.item, run.method) == (1, 2))
    wrong = (*runs[place].tokens[:5], (runs[place].tokens[5] + 1) % 64, *runs[place].tokens[6:])
    changed[place] = replace(runs[place], tokens=wrong)
    assert running.differing(changed) == {(1, 2): 5}
    # The model itself does not differ, so looking again finds nothing.
    assert running.parting(setting, 1, 2, 5) is None
    differences = {0: [], 1: [], 2: [Difference(1, 2, 5, None)]}
    result = result_of(changed, differences=differences)
    same = result.to_json()["methods"][2]["same_tokens"]
    assert (same["num_prompts"], same["num_different"]) == (3, 1)
    assert same["differences"][0]["label"] == "not repeated"
    assert "2 of 3" in to_markdown(report(result, plots=False))


class AcceptEverything:
    """A lossy rule."""

    name, exact, couples, needs_chain = "accept everything", False, False, True
    schemes = frozenset(Scheme)

    def verify(self, draft: Draft, p: Any, noise: Any, position: int) -> Verdict:
        return Verdict(tuple(range(len(draft))), int(p(len(draft) - 1).argmax()))


def test_a_fault_is_called_one(model: Any) -> None:
    """A drafter whose rule is lossy: it accepts whatever is drafted."""
    methods = [
        {"drafter": "none"},
        {"drafter": "ngram", "num_draft_tokens": 3, "verify": AcceptEverything()},
    ]
    setting = Setting(model, PROMPTS, methods, {"max_tokens": 24, "temperature": 0.0})
    runs = list(running.runs(setting, repeats=1))
    found = running.differing(runs)
    assert found
    for (item, method), position in found.items():
        parting = running.parting(setting, item, method, position)
        assert parting is not None
        assert parting.position == position
        assert parting.label == "fault"


def test_json_and_reports_hold_what_was_measured(runs: list[Run]) -> None:
    result = result_of(runs)
    found = result.to_json()
    assert found["schema"] == "paceline.bench/1"
    assert [item["name"] for item in found["methods"]] == ["none", "ngram,k=2", METHODS[1]]
    plain, first, _ = found["methods"]
    assert plain["overall"]["speedup"]["value"] == pytest.approx(1.0)
    assert plain["overall"]["mean_acceptance_length"] == 1.0
    assert plain["overall"]["draft_acceptance_rate"] is None
    counts = first["acceptance"]
    assert counts == first["overall"]["acceptance"]
    assert first["overall"]["mean_acceptance_length"] == pytest.approx(
        1 + sum(counts["accepted"]) / counts["rounds"]
    )
    assert set(first["categories"]) == {"a", "b"}
    assert found["noise"]["num_pairs"] == 3
    assert len(found["prompts"]) == 3
    assert found["prompts"][0]["methods"]["ngram,k=2"]["num_tokens"] == 24
    page = to_html(report(result))
    for title in ("Speed-up by category", "Acceptance by position", "Where the time went"):
        assert title in page
    assert page.count("<svg") == 5
    assert "noise" in to_markdown(report(result, plots=False))


def test_a_report_of_few_runs_still_stands(runs: list[Run]) -> None:
    """What Ctrl-C leaves: one prompt, and not all of its runs."""
    for count in range(1, 5):
        result = result_of(runs[:count], interrupted=True)
        assert "interrupted" in to_markdown(report(result, plots=False))
        assert "<svg" in to_html(report(result))
        assert result.to_json()["interrupted"]


def test_a_prompt_that_does_not_fit_is_named(model: Any) -> None:
    long = [*PROMPTS[:1], tuple(range(3, 43)) * 4]
    setting = Setting(model, long, [{"drafter": "none"}], {"max_tokens": 8})
    with pytest.raises(InvalidInput, match=r"b.jsonl, line 2: the prompt has 160 tokens"):
        running.check(setting, ["b.jsonl, line 1", "b.jsonl, line 2"])


def test_the_memory_of_the_process_is_seen() -> None:
    memory = running._Memory(torch.device("cpu"))
    memory.look()
    before = memory.peak
    # A mapping of its own: an allocator may give memory that the process has already.
    held = mmap.mmap(-1, 50_000_000)
    held.write(b"x" * 50_000_000)
    memory.look()
    assert before is not None
    assert memory.peak is not None
    assert memory.peak >= before + 40_000_000
    held.close()
