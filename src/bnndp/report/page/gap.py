"""How much is left between what is proved and what is broken, in words."""

from __future__ import annotations

from collections import Counter

import numpy as np

from bnndp.questions.verdict import Verdict
from bnndp.report.page.outcome import Intervals, Outcome, Radii
from bnndp.report.page.scales import at_least, counted, percent, short

__all__ = ["gap_words"]


def gap_words(outcome: Outcome) -> list[str]:
    """How much is left between what is proved and what is broken."""
    if isinstance(outcome, Radii):
        return _radii_gap(outcome)
    return _interval_gap(outcome)


def _radii_gap(outcome: Radii) -> list[str]:
    ratio = outcome.ratio[~np.isnan(outcome.ratio)]
    wrong, unbroken = int((~outcome.correct).sum()), int(np.isinf(outcome.attack).sum())
    all_tried = int(outcome.capped.sum())
    nothing = int((outcome.correct & np.isnan(outcome.radius)).sum())
    said = []
    if ratio.size == 1:
        said.append(
            f"The certified radius is {at_least(float(ratio[0]))} of the radius of the attack, for the one input that "
            "has both. At 1 nothing would be left to win."
        )
    elif ratio.size:
        said.append(
            f"The certified radius is {short(float(np.median(ratio)))} of the radius of the attack in the median, "
            f"{at_least(float(ratio.min()))} at worst and {short(float(ratio.max()))} at best, over "
            f"{counted(ratio.size, 'input')}. At 1 nothing would be left to win."
        )
    if all_tried:
        said.append(
            f"For {counted(all_tried, 'input')} the decision is proved up to the largest radius that was tried."
        )
    if unbroken:
        said.append(f"For {counted(unbroken, 'input')} no attack succeeded up to the largest radius that was tried.")
    if nothing:
        said.append(f"For {counted(nothing, 'input')} nothing is proved, not even at the input itself.")
    if wrong:
        said.append(f"For {counted(wrong, 'input')} the network decides for another class than the label at the input.")
    if not outcome.attacked:
        said.append("No attack was asked for, so that nothing is known of how tight the radii are.")
    return said


def _interval_gap(outcome: Intervals) -> list[str]:
    inside, said = outcome.inside, []
    if inside is not None and inside.sum() > 0:
        ratio = float(outcome.width.sum() / inside.sum())
        said.append(
            f"Summed over all boxes the certified intervals are {short(ratio)} times as wide as the ranges that an "
            "attack found inside. At 1 nothing would be left to win."
        )
    elif inside is None and outcome.claims is None:
        said.append(
            "No range from inside was asked for (--attack), so that nothing is known of how tight the bounds are."
        )
    beyond = int(outcome.beyond.sum())
    if beyond:
        said.append(
            f"For {counted(beyond, 'box', 'boxes')} the range from inside reaches beyond the bounds. Where the mean is "
            "sampled (two or more hidden layers) its noise does that; where it is exact, report it as a fault of bnndp."
        )
    if outcome.claims is not None:
        found = Counter(outcome.claims.verdict)
        total, left = len(outcome.claims.verdict), found[Verdict.UNDECIDED]
        if left:
            said.append(
                f"Undecided: {counted(left, 'input')} ({percent(left, total, up=True)}). More effort may decide more."
            )
    return said
