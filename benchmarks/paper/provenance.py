"""The last line of every result: the command, the day, the program and the machine."""

from __future__ import annotations

import datetime as dt
import os
import platform
from importlib import metadata
from pathlib import Path

import torch

__all__ = ["made_by", "processor"]


def made_by(command: str) -> str:
    """One sentence that says how to make the result again and where it was made."""
    versions = f"bnndp {metadata.version('bnndp')}, torch {torch.__version__.split('+')[0]}"
    threads = torch.get_num_threads()
    used = "one thread" if threads == 1 else f"{threads} threads"
    day = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
    machine = f"{used} of a machine with {os.cpu_count()} cores ({processor()})"
    return f"Made by `{command}` on {day} with {versions}, {machine}."


def processor() -> str:
    """What the machine calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
