"""What `/metrics` and `/load` tell is what happened."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import NAME, client_of

TEXT = "/v1/completions"
DASHBOARD = Path(__file__).parents[2] / "docs/grafana.json"


def figures(text: str) -> dict[str, float]:
    """The value of each figure, by its name and the labels that tell it from others."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            assert sample.labels["model_name"] == NAME
            found[sample.name + "".join(f"[{v}]" for v in own.values())] = sample.value
    return found


def test_metrics_add_up_to_the_answers(tiny_model: Any) -> None:
    async def main() -> tuple[dict[str, float], list[Any], dict[str, Any]]:
        async with client_of(tiny_model, request_metrics=True) as client:
            answers = []
            for number in range(3):
                body = {"prompt": "the the the", "max_tokens": 9, "temperature": 0.0, "seed": 1}
                body["speculative"] = {"drafter": "ngram", "num_draft_tokens": number}
                answers.append((await client.post(TEXT, json=body)).json())
            await client.post(TEXT, json={"prompt": "the", "n": 99})
            text = (await client.get("/metrics")).text
            return figures(text), answers, (await client.get("/load")).json()

    found, answers, load = asyncio.run(main())
    told = [answer["metrics"]["speculative_decoding"] for answer in answers]
    assert told[0]["num_draft_tokens"] == 0
    assert told[2]["num_draft_tokens"] > 0
    accepted = sum(item["num_accepted_draft_tokens"] for item in told)
    drafted = sum(item["num_draft_tokens"] for item in told)
    tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert found["paceline:spec_decode_num_draft_tokens_total"] == drafted
    assert found["paceline:spec_decode_num_accepted_tokens_total"] == accepted
    assert found["paceline:spec_decode_num_drafts_total"] == sum(t["num_spec_steps"] for t in told)
    assert found["paceline:drafter_num_draft_tokens_total[ngram]"] == drafted
    per_position = "paceline:spec_decode_num_accepted_tokens_per_pos_total"
    assert sum(v for k, v in found.items() if k.startswith(per_position)) == accepted
    assert found["paceline:generation_tokens_total"] == tokens
    prompts = sum(answer["usage"]["prompt_tokens"] for answer in answers)
    assert found["paceline:prompt_tokens_total"] == prompts
    assert found["paceline:time_to_first_token_seconds_count"] == 3
    assert found["paceline:e2e_request_latency_seconds_count"] == 3
    ended = {k: v for k, v in found.items() if k.startswith("paceline:request_success_total")}
    assert sum(ended.values()) == 3
    assert found["paceline:num_requests_running"] == found["paceline:num_requests_waiting"] == 0
    assert load["num_ended"] == len(load["recent"]) == 3
    assert load["requests"] == []
    assert load["generation_tokens"] == tokens
    assert "the the" not in json.dumps(load)


def test_the_figures_of_an_answer_agree(tiny_model: Any) -> None:
    async def main() -> dict[str, Any]:
        async with client_of(tiny_model, request_metrics=True) as client:
            body = {"prompt": "the the the", "max_tokens": 9, "temperature": 0.0}
            body["speculative"] = {"num_draft_tokens": 3}
            return (await client.post(TEXT, json=body)).json()["metrics"]

    told = asyncio.run(main())
    drafts = told["speculative_decoding"]
    assert sum(drafts["per_step_drafted"]) == drafts["num_draft_tokens"]
    assert sum(drafts["per_step_accepted"]) == drafts["num_accepted_draft_tokens"]
    assert drafts["num_spec_tokens"] <= 3
    assert sum(drafts["acceptance_histogram"]) == drafts["num_spec_steps"]
    assert told["time_to_first_token_ms"] > 0


def test_the_page_needs_nothing_from_elsewhere(tiny_model: Any) -> None:
    async def main() -> Any:
        async with client_of(tiny_model, api_key="key") as client:
            assert (await client.get("/load")).status_code == 401
            return await client.get("/")

    response = asyncio.run(main())
    assert response.status_code == 200
    assert "http" not in response.text
    assert "src=" not in response.text
    assert "connect-src 'self'" in response.headers["content-security-policy"]


def test_the_dashboard_reads_figures_that_there_are(tiny_model: Any) -> None:
    async def main() -> str:
        async with client_of(tiny_model) as client:
            body = {"prompt": "the the the", "max_tokens": 9, "temperature": 0.0}
            body["speculative"] = {"drafter": "ngram", "num_draft_tokens": 3}
            await client.post(TEXT, json=body)
            return (await client.get("/metrics")).text

    names = {name.partition("[")[0] for name in figures(asyncio.run(main()))}
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    read = set()
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            read |= {
                word.partition("{")[0].partition("[")[0]
                for word in target["expr"].replace("(", " ").replace(")", " ").split()
                if word.startswith("paceline:")
            }
    assert len(read) >= 10
    assert read <= names
