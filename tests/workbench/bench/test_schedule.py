"""Every method has its turns, plain decoding two, and no place in the order is anybody's."""

from collections import Counter

import pytest

from paceline.workbench.bench.schedule import num_steps, schedule


@pytest.mark.parametrize("items", [1, 5])
@pytest.mark.parametrize("methods", [1, 2, 3, 6])
@pytest.mark.parametrize("repeats", [1, 3])
def test_turns(items: int, methods: int, repeats: int) -> None:
    steps = list(schedule(items, methods, repeats))
    assert len(steps) == num_steps(items, methods, repeats)
    assert [step.item for step in steps] == sorted(step.item for step in steps)
    for (_, method), count in Counter(steps).items():
        assert count == repeats * (1 if method else 2)


def test_over_many_prompts_each_method_stands_at_each_place_equally_often() -> None:
    cycle = 5  # four methods, and plain decoding twice
    steps = list(schedule(cycle, 4, 1))
    places = Counter((step.method, place % cycle) for place, step in enumerate(steps))
    for place in range(cycle):
        assert [places[method, place] for method in range(4)] == [2, 1, 1, 1]
