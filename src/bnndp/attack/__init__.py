"""From inside: ranges of sampled means, inputs at which the posterior decides otherwise, and the radii of these."""

from bnndp.attack.budget import AttackBudget
from bnndp.attack.decision_rows import decision_rows
from bnndp.attack.evade import Evasion, evade
from bnndp.attack.inside import Inside, inside_range
from bnndp.attack.radius import AttackRadius, Reach, attack_radius

__all__ = [
    "AttackBudget",
    "AttackRadius",
    "Evasion",
    "Inside",
    "Reach",
    "attack_radius",
    "decision_rows",
    "evade",
    "inside_range",
]  # fmt: skip
