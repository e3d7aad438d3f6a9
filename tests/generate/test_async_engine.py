"""Many callers, one thread that decodes: the same answers, and everything ends."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import paceline
from paceline.engine.scheduler import Load
from paceline.errors import EngineStopped, InvalidInput, QueueFull
from paceline.generate.async_engine import Engine
from paceline.generate.results import Chunk, Generation
from tests.held import Faulty, Gate
from tests.tiny_folders import model, tokenizer


@pytest.fixture(scope="module")
def tiny() -> Any:
    words = tokenizer()
    return paceline.load(model(eos_token_id=words.eos_token_id), words)


def test_every_caller_gets_what_it_gets_alone(tiny: Any) -> None:
    """Ten at once, four of them decoded, with lengths, seeds, drafters and stops of their own."""
    chance = random.Random(0)
    drafters = ["none", "ngram", "suffix", "lookahead", "ngram,suffix"]
    calls = []
    for number in range(10):
        text = "".join(chance.choice("the stop END. ") for _ in range(chance.randint(1, 40)))
        options = {
            "max_tokens": chance.randint(1, 16),
            "temperature": chance.choice([0.0, 1.0]),
            "seed": number,
            "drafter": chance.choice(drafters),
            "verify": "coupling",
            "stop": chance.choice([None, "e", "op"]),
        }
        if options["drafter"] == "lookahead":
            options["temperature"] = 0.0
        calls.append((text, options))
    alone = [tiny.generate(text, **options) for text, options in calls]

    async def main() -> list[Generation]:
        async with Engine(tiny, max_sequences=4) as engine:
            return await asyncio.gather(
                *(engine.generate(text, **options) for text, options in calls)
            )

    together = asyncio.run(main())
    assert [item.token_ids for item in together] == [item.token_ids for item in alone]
    assert [item.text for item in together] == [item.text for item in alone]
    assert [item.finish_reason for item in together] == [item.finish_reason for item in alone]


def test_a_stream_is_the_answer_in_parts(tiny: Any) -> None:
    expected = tiny.generate("the stop", max_tokens=20, temperature=1.0, seed=4)

    async def main() -> list[Any]:
        async with Engine(tiny) as engine:
            stream = engine.stream("the stop", max_tokens=20, temperature=1.0, seed=4)
            return [item async for item in stream]

    *chunks, generation = asyncio.run(main())
    assert all(isinstance(chunk, Chunk) for chunk in chunks)
    assert "".join(chunk.text for chunk in chunks) == expected.text == generation.text
    assert tuple(t for chunk in chunks for t in chunk.tokens) == expected.token_ids


def test_several_samples_are_those_of_generate(tiny: Any) -> None:
    options = {"max_tokens": 6, "temperature": 1.0, "seed": 9}
    expected = [item.text for item in tiny.generate("the", n=3, **options)]

    async def main() -> list[str]:
        async with Engine(tiny) as engine:
            return [item.text for item in await engine.generate("the", n=3, **options)]

    assert asyncio.run(main()) == expected


def test_cancelled_callers_leave_nothing_behind(tiny: Any) -> None:
    async def main() -> None:
        drafter = Gate()
        async with Engine(tiny, max_sequences=2) as engine:
            tasks = [asyncio.create_task(engine.generate("the", drafter=drafter)) for _ in range(4)]
            while engine.num_open < 4:
                await asyncio.sleep(0.001)
            for task in tasks:
                task.cancel()
            assert all(
                isinstance(result, asyncio.CancelledError)
                for result in await asyncio.gather(*tasks, return_exceptions=True)
            )
            drafter.gate.set()
            while engine.num_open:
                await asyncio.sleep(0.001)
            stream = engine.stream("the", max_tokens=100, ignore_eos=True)
            await anext(stream)
            await stream.aclose()
            while engine.num_open:
                await asyncio.sleep(0.001)
            assert engine._core.load == Load()
            assert (await engine.generate("the", max_tokens=2)).text is not None

    asyncio.run(main())


def test_more_than_may_wait_are_refused_whole(tiny: Any) -> None:
    async def main() -> None:
        drafter = Gate()
        async with Engine(tiny, max_sequences=1, max_waiting=1) as engine:
            with pytest.raises(QueueFull, match="3 answers are more"):
                await engine.generate("the", n=3)
            held = asyncio.create_task(engine.generate("the", drafter=drafter, max_tokens=1))
            while not engine.num_open:
                await asyncio.sleep(0.001)
            with pytest.raises(QueueFull, match="1 answers are decoded or wait, and 2 may"):
                await engine.generate("the", n=2)
            assert engine.num_open == 1
            drafter.gate.set()
            await held

    asyncio.run(main())


def test_an_error_ends_its_own_answer_alone(tiny: Any) -> None:
    async def main() -> None:
        async with Engine(tiny) as engine:
            good = asyncio.create_task(engine.generate("the", max_tokens=20, ignore_eos=True))
            with pytest.raises(ArithmeticError):
                await engine.generate("the", drafter=Faulty())
            assert len((await good).token_ids) == 20
            with pytest.raises(InvalidInput):
                await engine.generate("the", temperature=-1.0)

    asyncio.run(main())


def test_a_fault_of_the_loop_ends_its_answers_and_not_the_engine(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with Engine(tiny) as engine:

            def broken() -> Any:
                raise ZeroDivisionError("the loop")

            monkeypatch.setattr(engine._core, "events", broken)
            with pytest.raises(ZeroDivisionError):
                await engine.generate("the", max_tokens=2)
            assert engine.is_healthy
            assert len((await engine.generate("the", max_tokens=2, ignore_eos=True)).token_ids) == 2

    asyncio.run(main())


@pytest.mark.parametrize("grace", [0.0, 30.0])
def test_closing_waits_for_answers_as_long_as_its_grace(tiny: Any, grace: float) -> None:
    async def main() -> None:
        engine = Engine(tiny)
        engine.start()
        drafter = Gate()
        options = {"max_tokens": 5, "ignore_eos": True}  # longer than one step
        held = asyncio.create_task(engine.generate("the", drafter=drafter, **options))
        while not engine.num_open:
            await asyncio.sleep(0.001)
        closing = asyncio.create_task(engine.close(grace))
        await asyncio.sleep(0)
        with pytest.raises(EngineStopped):
            await engine.generate("the")
        drafter.gate.set()
        if grace:
            assert len((await held).token_ids) == 5
        else:
            with pytest.raises(EngineStopped):
                await held
        await closing
        assert not engine.is_healthy
        assert not engine._thread.is_alive()

    asyncio.run(main())


def test_prompts_that_begin_the_same_are_read_once(tiny: Any) -> None:
    """And nothing is kept once the engine is closed."""
    options = {"max_tokens": 4, "temperature": 1.0, "verify": "coupling"}
    expected = [tiny.generate("the stop END", seed=seed, **options).text for seed in range(3)]
    prefixes = tiny.target.prefixes

    async def main() -> tuple[list[str], int]:
        async with Engine(tiny, prefix_bytes=1 << 24) as engine:
            calls = (engine.generate("the stop END", seed=seed, **options) for seed in range(3))
            found = [item.text for item in await asyncio.gather(*calls)]
            return found, prefixes.num_bytes

    before = prefixes.num_found_tokens
    found, num_bytes = asyncio.run(main())
    assert found == expected
    assert num_bytes > 0
    rest = len(tiny.encode("the stop END")) - 1
    assert prefixes.num_found_tokens - before == 2 * rest
    assert prefixes.num_bytes == 0


def test_an_answer_that_could_never_fit_into_the_memory_is_refused(tiny: Any) -> None:
    memory = tiny.target.slot_bytes(60) + 128 * tiny.target.info.vocab_size

    async def main() -> Generation:
        async with Engine(tiny, memory=memory) as engine:
            answer = engine.generate("the", max_tokens=4, drafter="none")
            with pytest.raises(InvalidInput, match="give a smaller max_tokens"):
                await engine.generate("the", max_tokens=100000, drafter="none")
            return await answer

    assert len(asyncio.run(main()).token_ids) == 4
