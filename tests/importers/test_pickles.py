"""The process that opens pickles runs nothing of them, and nothing that it returns is trusted."""

from __future__ import annotations

import ast
import re
import sys
import time
from pathlib import Path

import pytest
import torch
from support.foreign_states import RELUS, check_linears, three_linears
from support.hostile_files import malicious

import bnndp
from bnndp.errors import ModelFileError
from bnndp.importers import child, pickles
from bnndp.importers.convert import convert
from bnndp.importers.pickles import open_in_child, open_pickle


def test_an_old_file_of_16_bit_numbers(tmp_path: Path) -> None:
    halves = {name: tensor.bfloat16() for name, tensor in three_linears().items()}
    torch.save(halves, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    check_linears(convert(tmp_path / "old.pt", RELUS).posterior, halves)


def test_the_child_alone_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    case = next(case for case in malicious(mark) if case.name == "torch file, os.system")
    case.write(tmp_path / "f")
    with pytest.raises(ModelFileError, match=r"^the file: cannot be converted: torch cannot open it.*posix.system"):
        open_in_child((tmp_path / "f").read_bytes(), "the file")
    assert not mark.exists()


def saved(tmp_path: Path) -> bytes:
    torch.save(three_linears(), tmp_path / "s.pt")
    return (tmp_path / "s.pt").read_bytes()


LIES: dict[str, tuple[str, str]] = {
    "done, without a file": ("pass", "its content is not a model: .* No such file"),
    "garbage": ("open(sys.argv[2], 'wb').write(b'x' * 99)", "its content is not a model"),
    "an empty model": ("open(sys.argv[2], 'wb').write(b'\\x02' + bytes(7) + b'{}')", "not complete"),
    "names that are none": (
        """
import json
entry = {"dtype": "F64", "shape": [0], "data_offsets": [0, 0]}
header = json.dumps({"__metadata__": {"order": "[5]"}, "5": entry}).encode()
open(sys.argv[2], "wb").write(len(header).to_bytes(8, "little") + header)
""",
        "not complete",
    ),
    "a pipe": ("import os; os.mkfifo(sys.argv[2])", "not a regular file"),
    "talk": ("print('certified'); print('a\\nb' * 10**5, file=sys.stderr); sys.exit(3)", "cannot be converted: a"),
    "a signal": ("import os; os.kill(os.getpid(), 11)", "ended by signal 11"),
    "an odd status": ("sys.exit(77)", "failed with status 77"),
    "nothing, for ever": ("import time; time.sleep(60)", "not done after 0.3 s"),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_the_child_may_do(lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, words = LIES[lie]
    monkeypatch.setattr(pickles, "_PROGRAM", f"import sys\n{program}")
    start = time.perf_counter()
    with pytest.raises(ModelFileError, match=words) as caught:
        open_pickle(saved(tmp_path), "s.pt", seconds=0.3 if "ever" in lie else 30)
    assert str(caught.value).startswith("s.pt: cannot be converted: ")
    assert str(caught.value).isprintable()
    assert time.perf_counter() - start < 5


def test_a_process_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no python"))
    with pytest.raises(ModelFileError, match="no process can be started to open it: No such file"):
        open_pickle(saved(tmp_path), "s.pt")
    with pytest.raises(ModelFileError, match="no process can be started to open it: embedded null"):
        open_pickle(saved(tmp_path), "s.pt", key="a\0b")


def test_the_child_gets_little_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    program = "import os, sys\nsys.stderr.write(' '.join(sorted(os.environ))); sys.exit(3)"
    monkeypatch.setattr(pickles, "_PROGRAM", program)
    with pytest.raises(ModelFileError) as caught:
        open_pickle(saved(tmp_path), "s.pt")
    assert "OMP_NUM_THREADS" in str(caught.value)
    assert "TORCH" not in str(caught.value)
    assert "SECRET" not in str(caught.value)


DOORS = """
import os, socket, subprocess, sys
sys.path.insert(0, sys.argv[1])
from bnndp.importers import child
child._install_audit_hook()
for act in (
    lambda: os.system("touch mark"),
    lambda: open("mark", "w"),
    lambda: os.remove(sys.argv[2]),
    lambda: __import__("tarfile"),
    lambda: socket.socket(),
    lambda: subprocess.Popen(["true"]),
    lambda: os.fork(),
    lambda: eval("1"),
):
    try:
        act()
    except child._Refused:
        continue
    sys.exit(9)
sys.exit(77)
"""


LIMITS = """
import sys
sys.path.insert(0, sys.argv[1])
from bnndp.importers import child
child._limit(2**20, 5)
try:
    bytearray(300 * 2**20)
except MemoryError:
    bytearray(100 * 2**20)
    sys.exit(77)
sys.exit(9)
"""


@pytest.mark.parametrize("program", [DOORS, LIMITS], ids=["doors", "limits"])
def test_the_child_keeps_its_audit_hook_and_its_limits(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickles, "_PROGRAM", program)
    with pytest.raises(ModelFileError, match="failed with status 77"):
        open_pickle(saved(tmp_path), "s.pt")


@pytest.mark.parametrize("version", ["2.9.1", "2.5.1+cu121", "1.13.0", "2.10.0a0", "2.10.0rc1", "two", ""])
def test_an_unsafe_torch_is_refused(version: str) -> None:
    with pytest.raises(child._Refused, match=r"install torch 2\.10 or newer"):
        child.expect_torch(version)


@pytest.mark.parametrize(
    "version", ["2.10.0", "2.10.1+cpu", "2.13.0+cu130", "2.14.0.dev20261101", "3.0.0", torch.__version__]
)
def test_a_safe_torch_is_not(version: str) -> None:
    child.expect_torch(version)


PICKLERS = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}


def test_no_code_of_the_package_opens_pickles_otherwise() -> None:
    """The only call of ``torch.load`` is that of the child, and safe; numpy never reads objects.

    Workers of a cluster get the job of a command as a pickle that the same command made: it comes from no file.
    """
    calls, modules = set(), set()
    package = Path(bnndp.__file__).parent
    worker = package / "runs" / "ray_cluster" / "worker.py"
    uses = re.findall(r"pickle\.\w+\([^)]*\)", worker.read_text(encoding="utf-8"))
    assert uses == ["pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL)", "pickle.loads(self.content)"]
    for path in set(package.rglob("*.py")) - {worker}:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text if re.search(rf"\bload\b|{'|'.join(PICKLERS)}", text) else "")
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules |= {alias.name for alias in node.names} | {getattr(node, "module", None)}
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "np.load", "numpy.load"):
                named = {word.arg: ast.unparse(word.value) for word in node.keywords}
                safe = {name: named.get(name) for name in ("weights_only", "allow_pickle")}
                calls.add((path.name if "torch" in ast.unparse(node.func) else "numpy", *safe.values()))
    assert calls == {("child.py", "True", None), ("numpy", None, "False")}
    assert modules & PICKLERS == set()
