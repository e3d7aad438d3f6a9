"""Drafts of sequences that are decoded together, cut to what a pass over all of them is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.core.drafts import Draft
from paceline.economics.admission import admitted
from paceline.economics.curve import interpolated
from paceline.errors import InvalidInput


@dataclass(frozen=True)
class Admission:
    """The scheduler of DSpark, for all sequences of a round; see `economics.admission.admitted`.

    It cuts chains whose confidences were known before the tokens were drawn, and chains of which
    nothing was drawn: for others the end of a draft would depend on its own draws. These are scored
    as they are.

    Source: DSpark 2607.05147, section 3.2.2.

    Args:
        seconds: of a target pass by its rows, measured beforehand; between and after them it is
            interpolated. Without a clock in it, the same requests are cut in the same way.

    Raises:
        InvalidInput: no times, or what is no time.

    Example:
        >>> draft = Draft((5, 7), confidence=(0.9, 0.1))
        >>> Admission({1: 1.0, 3: 1.4}).cut([draft], other_rows=0)[0].tokens
        (5,)
    """

    seconds: Mapping[int, float]

    def __post_init__(self) -> None:
        known = self.seconds
        if not known or not all(
            rows > 0 and 0 < float(time) < math.inf for rows, time in known.items()
        ):
            raise InvalidInput(
                "admission takes the seconds of a pass, above 0, by its rows, as in {1: 0.06, 8: "
                f"0.07}}; they are {known!r:.80}"
            )
        object.__setattr__(self, "seconds", dict(sorted(known.items())))

    def cut(self, drafts: Sequence[Draft], *, other_rows: int) -> list[Draft]:
        """The drafts, some of them shorter.

        Args:
            drafts: of the sequences of a round.
            other_rows: the rows of prompts in the same pass.
        """
        places = [place for place, draft in enumerate(drafts) if can_be_cut(draft)]
        whole = [draft for draft in drafts if not can_be_cut(draft)]
        counts = admitted(
            [drafts[place].confidence or () for place in places],
            self.passes_per_second,
            other_rows=other_rows + sum(draft.num_rows for draft in whole),
            other_tokens=len(whole) + math.fsum(_expected(draft) for draft in whole),
        )
        found = list(drafts)
        for place, count in zip(places, counts, strict=True):
            if count < len(found[place]):
                found[place] = found[place].first(count)
        return found

    def passes_per_second(self, rows: int) -> float:
        """Of passes over this many rows.

        >>> Admission({1: 1.0, 3: 2.0}).passes_per_second(5)
        0.3333333333333333
        """
        places, times = [*self.seconds], [*self.seconds.values()]
        slope = 0.0
        if len(places) > 1:
            slope = max(0.0, (times[-1] - times[-2]) / (places[-1] - places[-2]))
        return 1 / interpolated(places, times, rows, slope)


def can_be_cut(draft: Draft) -> bool:
    """Whether leaving out the end of a draft by its confidences keeps the output exact.

    >>> can_be_cut(Draft((5, 7), confidence=(0.9, 0.1))), can_be_cut(Draft((5, 7)))
    (True, False)
    """
    if draft.confidence is None or not draft.is_chain or draft.aux is not None:
        return False
    return draft.is_foreseen or all(law is None for law in draft.probs or ())


def _expected(draft: Draft) -> float:
    """How many tokens of a draft may be expected to be accepted; 0 where it does not say."""
    sure = draft.confidence
    if sure is None:
        return 0.0
    nodes = range(len(draft))
    return math.fsum(math.prod(sure[above] for above in draft.path(node)) for node in nodes)
