"""How much is left between what is proved and what is broken, in words."""

from __future__ import annotations

from collections import Counter

import numpy as np

from bnndp.questions.verdict import Verdict
from bnndp.report.page.outcome import Intervals, Outcome, Radii
from bnndp.report.page.scales import at_least, counted, percent, short


def gap_sentences(outcome: Outcome) -> list[str]:
    """How much is left between what is proved and what is broken."""
    return _radii_gap(outcome) if isinstance(outcome, Radii) else _interval_gap(outcome)


def _radii_gap(outcome: Radii) -> list[str]:
    ratio = outcome.ratio[~np.isnan(outcome.ratio)]
    wrong, unbroken = int((~outcome.correct).sum()), int(np.isinf(outcome.attack).sum())
    capped = int(outcome.capped.sum())
    nothing = int((outcome.correct & np.isnan(outcome.radius)).sum())
    sentences = []
    if ratio.size == 1:
        sentences.append(
            f"The certified radius is {at_least(float(ratio[0]))} of the radius of the attack, for the one input that "
            "has both. At 1 nothing would be left to win."
        )
    elif ratio.size:
        sentences.append(
            f"The certified radius is {short(float(np.median(ratio)))} of the radius of the attack in the median, "
            f"{at_least(float(ratio.min()))} at worst and {short(float(ratio.max()))} at best, over "
            f"{counted(ratio.size, 'input')}. At 1 nothing would be left to win."
        )
    counts = (
        (capped, "the decision is proved up to the largest radius that was tried."),
        (unbroken, "no attack succeeded up to the largest radius that was tried."),
        (nothing, "nothing is proved, not even at the input itself."),
        (wrong, "the network decides for another class than the label at the input."),
    )
    sentences += [f"For {counted(count, 'input')} {text}" for count, text in counts if count]
    if not outcome.attacked:
        sentences.append("No attack was requested, so it is not known how tight the radii are.")
    return sentences


def _interval_gap(outcome: Intervals) -> list[str]:
    inside, sentences = outcome.inside, []
    if inside is not None and inside.sum() > 0:
        ratio = float(outcome.width.sum() / inside.sum())
        sentences.append(
            f"Summed over all boxes the certified intervals are {short(ratio)} times as wide as the ranges that an "
            "attack found inside. At 1 nothing would be left to win."
        )
    elif inside is None and outcome.claims is None:
        sentences.append("No range from inside was requested (--attack), so it is not known how tight the bounds are.")
    beyond = int(outcome.beyond.sum())
    if beyond:
        sentences.append(
            f"For {counted(beyond, 'box', 'boxes')} the range from inside reaches beyond the bounds. Where the mean is "
            "sampled (two or more hidden layers) its noise does that; where it is exact, report it as a fault of bnndp."
        )
    if outcome.claims is not None:
        found = Counter(outcome.claims.verdict)
        total, left = len(outcome.claims.verdict), found[Verdict.UNDECIDED]
        if left:
            sentences.append(
                f"Undecided: {counted(left, 'input')} ({percent(left, total, up=True)}). More effort may decide more."
            )
    return sentences
