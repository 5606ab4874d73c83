"""``bnndp explore`` writes nothing, and says nothing of files when it is told to stop."""

from __future__ import annotations

import subprocess
import sys

from bnndp.data.demo import CLASSIFIER, network_path


def test_it_has_ended() -> None:
    with network_path(CLASSIFIER) as path:
        words = [sys.executable, "-m", "bnndp", "explore", str(path), "--domain", "-2", "3", "--no-browser"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout.readline().startswith("http://127.0.0.1:")
                assert process.stdout.readline() == "Ctrl-C ends it.\n"
                process.terminate()
                _, errors = process.communicate(timeout=30)
            finally:
                process.kill()
    assert (process.returncode, errors) == (143, "bnndp: ended.\n")
