"""Figures for Prometheus, under vLLM's names with the prefix `paceline:`, and for the page."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from paceline.core.events import Event, Finished, Prefilled, Round
from paceline.engine.scheduler import Load
from paceline.generate.async_engine import CANCELLED, Member, Observer

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)
_LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64)
_RECENT = 20
"""How many answers that have ended the page shows."""


class Metrics(Observer):
    """Counts what an engine tells. It is told on one thread, and asked from others.

    Args:
        model_name: the label of every figure.
    """

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._names = {"model_name": model_name, "engine": "0"}
        count, spread = self._counter, self._histogram
        self._drafts = count("spec_decode_num_drafts", "Drafts that were scored")
        self._drafted = count("spec_decode_num_draft_tokens", "Draft tokens that were scored")
        self._accepted = count("spec_decode_num_accepted_tokens", "Draft tokens that were accepted")
        self._per_position = self._labelled(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted, by place in the draft", "position"
        )
        self._drafted_by = self._labelled(
            "drafter_num_draft_tokens", "Draft tokens, by drafter", "drafter"
        )
        self._accepted_by = self._labelled(
            "drafter_num_accepted_tokens", "Accepted draft tokens, by drafter", "drafter"
        )
        self._lengths = spread("spec_decode_draft_length", "Draft tokens on a path", _LENGTHS)
        self._prompt = count("prompt_tokens", "Tokens of prompts")
        self._queries = count("prefix_cache_queries", "Tokens of prompts that were looked up")
        self._hits = count("prefix_cache_hits", "Tokens of prompts that were read before")
        self._set_back = count("num_preemptions", "Answers that were set back for lack of memory")
        self._answer = count("generation_tokens", "Tokens of answers")
        self._first = spread("time_to_first_token_seconds", "From arrival to the first token")
        self._between = spread("inter_token_latency_seconds", "Between two tokens")
        self._whole = spread("e2e_request_latency_seconds", "From arrival to the end")
        self._success = self._labelled(
            "request_success", "Answers that have ended, by reason", "finished_reason"
        )
        self._running = self._gauge("num_requests_running", "Answers that are decoded")
        self._waiting = self._gauge("num_requests_waiting", "Answers that wait")
        self._memory = self._gauge(
            "kv_cache_usage_perc", "The share of --memory that is taken, 1 being all"
        )
        self._num_set_back = 0
        self._live: dict[Member, float] = {}
        self._ended: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self._by_drafter: dict[str, list[int]] = {}
        self._num_tokens = self._num_ended = 0

    def came(self, member: Member) -> None:
        """See `Observer.came`."""
        self._live[member] = member.times.arrived

    def took(self, member: Member, event: Event) -> None:
        """See `Observer.took`."""
        now = monotonic()
        if isinstance(event, Prefilled):
            if member.times.prefilled is None:  # one that was set back is read again
                self._prompt.inc(event.num_prompt_tokens)
                self._queries.inc(event.num_prompt_tokens)
                self._hits.inc(event.num_cached_tokens)
        elif isinstance(event, Round):
            self._took_round(member, event, now)
        elif isinstance(event, Finished):
            self._success.labels(**self._names, finished_reason=event.reason.value).inc()
            self._whole.observe(now - member.times.arrived)

    def _took_round(self, member: Member, event: Round, now: float) -> None:
        times, count = member.times, len(event.tokens)
        if times.last_token is None:
            self._first.observe(now - times.arrived)
        else:
            for _ in range(count):
                self._between.observe((now - times.last_token) / count)
        self._answer.inc(count)
        self._num_tokens += count
        self._lengths.observe(event.max_path_length)
        if not event.num_draft_tokens:
            return
        self._drafts.inc()
        self._drafted.inc(event.num_draft_tokens)
        self._accepted.inc(event.num_accepted_tokens)
        for position in range(event.num_accepted_tokens):
            self._per_position.labels(**self._names, position=str(position)).inc()
        self._drafted_by.labels(**self._names, drafter=event.drafter).inc(event.num_draft_tokens)
        self._accepted_by.labels(**self._names, drafter=event.drafter).inc(
            event.num_accepted_tokens
        )
        sums = self._by_drafter.setdefault(event.drafter, [0, 0])
        sums[0] += event.num_draft_tokens
        sums[1] += event.num_accepted_tokens

    def ended(self, member: Member, error: Exception | None) -> None:
        """See `Observer.ended`."""
        self._live.pop(member, None)
        self._num_ended += 1
        if error is not None:
            reason = "abort" if error is CANCELLED else "error"
            self._success.labels(**self._names, finished_reason=reason).inc()
            self._ended.append({**_shown(member), "state": reason})
            return
        self._ended.append({**_shown(member), "state": "done"})

    def text(self, load: Load, memory: int | None) -> bytes:
        """In the format that Prometheus reads.

        Args:
            load: of the engine, now.
            memory: its budget in bytes; None for none.
        """
        self._running.set(load.num_running)
        self._waiting.set(load.num_waiting)
        self._memory.set(load.num_bytes / memory if memory else 0)
        self._set_back.inc(load.num_set_back - self._num_set_back)
        self._num_set_back = load.num_set_back
        return generate_latest(self._registry)

    def load(self) -> dict[str, Any]:
        """What the page shows. No text of a prompt or an answer is in it."""
        return {
            "num_ended": self._num_ended,
            "generation_tokens": self._num_tokens,
            "drafters": {
                name: {"num_draft_tokens": drafted, "num_accepted_tokens": accepted}
                for name, (drafted, accepted) in sorted(self._by_drafter.copy().items())
            },
            "requests": [_shown(member) for member in list(self._live)],
            "recent": list(self._ended),
        }

    def _counter(self, name: str, about: str) -> Counter:
        found = Counter(f"paceline:{name}", about, tuple(self._names), registry=self._registry)
        return found.labels(**self._names)

    def _gauge(self, name: str, about: str) -> Gauge:
        found = Gauge(f"paceline:{name}", about, tuple(self._names), registry=self._registry)
        return found.labels(**self._names)

    def _histogram(self, name: str, about: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
        names, registry = tuple(self._names), self._registry
        found = Histogram(f"paceline:{name}", about, names, registry=registry, buckets=buckets)
        return found.labels(**self._names)

    def _labelled(self, name: str, about: str, label: str) -> Counter:
        names = (*self._names, label)
        return Counter(f"paceline:{name}", about, names, registry=self._registry)


def _shown(member: Member) -> dict[str, Any]:
    """An answer as the page shows it."""
    metrics, times, request = member.job.metrics, member.times, member.job.request
    end = monotonic() if times.ended is None else times.ended
    return {
        "state": "waits" if times.prefilled is None else "decodes",
        "seconds": round(end - times.arrived, 3),
        "prompt_tokens": len(request.prompt),
        "tokens": metrics.num_tokens,
        "max_tokens": request.max_tokens,
        "drafter": request.drafter.name,
        "mean_acceptance_length": metrics.mean_acceptance_length,
        "draft_acceptance_rate": metrics.draft_acceptance_rate,
    }


def of_request(member: Member) -> dict[str, Any]:
    """The figures of one answer that has ended, in the shape of vLLM's."""
    metrics, times = member.job.metrics, member.times
    count, end = metrics.num_tokens, times.ended
    first, ready = times.first_token, times.prefilled
    generation_s = None if first is None or end is None else end - first
    between = None if generation_s is None or count < 2 else generation_s / (count - 1)
    return {
        "time_to_first_token_ms": _ms(None if first is None else first - times.arrived),
        "generation_time_ms": _ms(generation_s),
        "queue_time_ms": _ms(
            None if ready is None else max(0.0, ready - times.arrived - metrics.prefill_s)
        ),
        "mean_itl_ms": _ms(between),
        "tokens_per_second": None if not between else 1 / between,
        "speculative_decoding": {
            "mean_acceptance_length": metrics.mean_acceptance_length,
            "draft_acceptance_rate": metrics.draft_acceptance_rate,
            "acceptance_histogram": list(metrics.acceptance_histogram or ()),
            "num_spec_steps": metrics.counts.num_drafts,
            "num_accepted_draft_tokens": metrics.counts.num_accepted_tokens,
            "num_draft_tokens": metrics.num_draft_tokens,
            "num_spec_tokens": max(member.drafted, default=0),
            "per_step_accepted": list(member.accepted),
            "per_step_drafted": list(member.drafted),
        },
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)
