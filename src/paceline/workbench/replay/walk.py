r"""The rounds that decoding would have made along a recorded text.

Let x be the token at some position of the answer, p and q the distributions of target and draft
there, after the recorded tokens. Under the rule of Leviathan et al. (arXiv 2211.17192) a round
gives x as an *accepted draft token* with probability min(p(x), q(x)), and in total with probability
p(x). So if the target wrote the text, x came from the draft with probability

    min(p(x), q(x)) / p(x) = min(1, q(x) / p(x)),

independently at each position, given the text. If it did, the round goes on at the next position,
whose context is again the recorded text; if not, x is the correction and the round ends. There are
no other random choices, so rounds drawn with these probabilities have *exactly* the distribution of
the rounds of decoding, given that they produced this text. At temperature 0 the probabilities are 0
and 1, and the rounds are exactly those of decoding.

If others wrote the text, a round accepts the draft token with probability alpha, the sum of
min(p, q), and stays on the text with probability min(p(x), q(x)). If it accepts another token, it
leaves the text, and what would have followed is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.economics.stats import AcceptanceCounts


@dataclass(frozen=True)
class Row:
    """One position of the answer.

    Args:
        stay: the probability that the draft token is accepted and is the recorded token.
        leave: the probability that it is accepted and is another token.
        alpha: the sum of min(p, q); None if p is unknown.
    """

    stay: float
    leave: float = 0.0
    alpha: float | None = None


def walk(
    rows: Sequence[Row], longest: Callable[[int], int], uniform: Callable[[], float]
) -> AcceptanceCounts:
    """Acceptance by position over the rounds along a text.

    Args:
        rows: one per token of the answer.
        longest: the length of a draft after a given number of answer tokens.
        uniform: draws from [0, 1); called only if the outcome is random.

    Example:
        >>> rows = [Row(1.0), Row(1.0), Row(0.0), Row(1.0)]
        >>> counts = walk(rows, lambda done: 2, lambda: 0.5)
        >>> counts.rounds, counts.tested, counts.accepted
        (2, (2, 1), (2, 1))
    """
    counts = AcceptanceCounts()
    done = 0
    while done < len(rows):
        length = longest(done)
        accepted, left = 0, False
        while accepted < length and done + accepted < len(rows) and not left:
            row = rows[done + accepted]
            draw = uniform() if 0 < row.stay < 1 or 0 < row.leave < 1 else 0.5
            if draw >= row.stay + row.leave:
                break
            accepted += 1
            left = draw >= row.stay
        # At the end of the text, or where the round left it, nothing was rejected.
        unknown = left or done + accepted == len(rows)
        counts = counts.add(length, accepted, accepted if unknown else None)
        done += accepted + (not left)
    return counts
