"""Attacks on a decision: inputs at which the posterior decides otherwise, and the smallest radius that has one."""

from bnndp.evasion.decision import decision_rows
from bnndp.evasion.radius import AttackRadius, Reach, attack_radius
from bnndp.evasion.region import Evasion, evade
from bnndp.evasion.search import Effort

__all__ = ["AttackRadius", "Effort", "Evasion", "Reach", "attack_radius", "decision_rows", "evade"]
