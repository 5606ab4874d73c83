"""Pickles are opened in a child process, for plain tensors only; what comes back is the network, bit for bit."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.foreign_states import RELUS, SAID
from support.hostile_files import malicious
from torch import Tensor

import bnndp
from bnndp.errors import InputError, ModelFileError
from bnndp.files.posterior import load, read_model, save
from bnndp.importers import child, pickles
from bnndp.importers.architecture import Architecture, read_architecture
from bnndp.importers.convert import ConvertOptions, convert
from bnndp.importers.foreign import Choices, Foreign
from bnndp.importers.pickles import open_in_child, open_pickle
from bnndp.importers.prescan import expect_plain
from bnndp.importers.registry import importer_for
from bnndp.layers import Conv2d, Linear
from bnndp.network import BayesianNetwork


def state() -> dict[str, Tensor]:
    """Of a chain of three dense layers, the second without a bias."""
    torch.manual_seed(5)
    modules = (torch.nn.Linear(3, 4), torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 2))
    return torch.nn.Sequential(modules[0], torch.nn.ReLU(), modules[1], torch.nn.ReLU(), modules[2]).state_dict()


def check_linears(network: object, found: dict[str, Tensor]) -> None:
    assert isinstance(network, BayesianNetwork)
    assert not network.random
    assert network.sizes == (3, 4, 4, 2)
    for layer, name in zip(network.linears, ("0", "2", "4"), strict=True):
        assert torch.equal(layer.weight_mean, found[f"{name}.weight"].double())
        bias = found.get(f"{name}.bias")
        assert torch.equal(layer.bias_mean, torch.zeros(4).double() if bias is None else bias.double())


# By the whole way

SAID_THERE = ("--task", "regression", "--activation", "relu")


@pytest.mark.usefixtures("no_child")
def test_a_checkpoint_through_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bnndp.cli.main import main

    source, out = tmp_path / "c.pt", tmp_path / "m.safetensors"
    torch.save({"epoch": 3, "model": state(), "losses": [0.1, 0.2]}, source)
    arguments = ["convert", str(source), "-o", str(out), "--task", "classification", "--activation", "relu"]
    arguments += ["--key", "model"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "BayesianNetwork(3-4-4-2, classification)" in printed
    assert "read by state_dict: weight_mean = weight" in printed
    assert "  2: linear 4 x 4, no variance in the weights" in printed
    found = read_model(out)
    check_linears(found.posterior, state())
    assert found.sha256 is not None
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert found.origin == {
        "sources": [{"file": "c.pt", "sha256": digest}],
        "importer": "state_dict",
        "formula": "weight_mean = weight, bias_mean = bias or 0, all std = 0",
        "layers": ["0", "2", "4"],
        "choices": {"key": "model"},
        "dtypes": ["float32"],
        "versions": {"bnndp": bnndp.__version__, "torch": metadata.version("torch")},
    }
    assert main(arguments[:-2]) == 0  # the only entry with tensors
    check_linears(load(out), state())


ACTIVATION = (
    "the activation between its layers (--activation KIND or --arch; in Python activation=KIND or an Architecture)"
)
TASK = "the task (--task regression or classification; in Python task=)"


def test_what_nobody_said_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line that names what to give; nothing is written."""
    from bnndp.cli.main import main

    source, out = tmp_path / "c.safetensors", tmp_path / "m.safetensors"
    save_file(state(), source)
    layers = '"layers": [{"type": "linear", "name": "0"}, {"type": "tanh"}, {"type": "linear", "name": "2"},'
    layers += ' {"type": "gelu"}, {"type": "linear", "name": "4"}]}'
    (tmp_path / "arch.json").write_text("{" + layers)
    (tmp_path / "whole.json").write_text('{"task": "classification", ' + layers)
    arch, whole = ("--arch", str(tmp_path / "arch.json")), ("--arch", str(tmp_path / "whole.json"))
    refused: dict[tuple[str, ...], str] = {
        (): f"{ACTIVATION} and {TASK}",
        ("--activation", "tanh"): TASK,
        ("--task", "classification"): ACTIVATION,
        arch: TASK,
    }
    for options, needed in refused.items():
        assert main(["convert", str(source), "-o", str(out), *options]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith(f"nothing is guessed: give {needed}.")
        assert not out.exists()
    said: dict[tuple[str, ...], str] = {
        SAID_THERE: "activation: relu",
        ("--activation", "tanh", "--task", "classification"): "activation: tanh",
        (*arch, "--task", "regression"): "activations: tanh, gelu",
        whole: "activations: tanh, gelu",
    }
    for options, printed in said.items():
        assert main(["convert", str(source), "-o", str(out), *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert printed in lines
        assert not any(line.startswith("note:") for line in lines)
        task = "classification" if "classification" in options or options == whole else "regression"
        assert load(out).task == task
    assert main(["convert", str(out), "-o", str(tmp_path / "again.safetensors")]) == 0  # ours says it by itself


def test_a_single_layer_needs_no_activation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bnndp.cli.main import main

    source, out = tmp_path / "c.safetensors", tmp_path / "m.safetensors"
    save_file({"0.weight": torch.ones(1, 2), "0.bias": torch.ones(1)}, source)
    assert main(["convert", str(source), "-o", str(out)]) == 2
    assert f"give {TASK}" in capsys.readouterr().err
    assert main(["convert", str(source), "-o", str(out), "--task", "regression"]) == 0
    assert "activation: none\n" in capsys.readouterr().out


@pytest.mark.usefixtures("no_child")
def test_several_entries_with_tensors_are_not_one_network(tmp_path: Path) -> None:
    torch.save({"model": state(), "ema": state()}, tmp_path / "c.pt")
    with pytest.raises(ModelFileError, match="several of its entries hold tensors; give --key model or ema"):
        convert(tmp_path / "c.pt", RELUS)


def test_an_old_file_of_16_bit_numbers(tmp_path: Path) -> None:
    halves = {name: tensor.bfloat16() for name, tensor in state().items()}
    torch.save(halves, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    check_linears(convert(tmp_path / "old.pt", RELUS).posterior, halves)


def test_the_child_alone_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    case = next(case for case in malicious(mark) if case.name == "torch file, os.system")
    case.write(tmp_path / "f")
    with pytest.raises(ModelFileError, match=r"^the file: cannot be converted: torch cannot open it.*posix.system"):
        open_in_child((tmp_path / "f").read_bytes(), "the file")
    assert not mark.exists()


@pytest.mark.usefixtures("no_child")
def test_views_that_claim_more_than_the_file_are_refused(tmp_path: Path) -> None:
    torch.save({"0.weight": torch.ones(1).expand(10**5, 10**5)}, tmp_path / "f.pt")
    with pytest.raises(ModelFileError, match="save plain tensors, not views"):
        convert(tmp_path / "f.pt", RELUS)


# The parent trusts nothing that the child says; a child of our own takes its place


def saved(tmp_path: Path) -> bytes:
    torch.save(state(), tmp_path / "s.pt")
    return (tmp_path / "s.pt").read_bytes()


LIES: dict[str, tuple[str, str]] = {
    "done, without a file": ("pass", "what was read of it is no model: .* No such file"),
    "garbage": ("open(sys.argv[2], 'wb').write(b'x' * 99)", "what was read of it is no model"),
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
def test_the_child_shuts_its_doors_and_keeps_its_limits(
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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules |= {alias.name for alias in node.names} | {getattr(node, "module", None)}
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "np.load", "numpy.load"):
                named = {word.arg: ast.unparse(word.value) for word in node.keywords}
                safe = {name: named.get(name) for name in ("weights_only", "allow_pickle")}
                calls.add((path.name if "torch" in ast.unparse(node.func) else "numpy", *safe.values()))
    assert calls == {("child.py", "True", None), ("numpy", None, "False")}
    assert modules & {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"} == set()


# The first look


def test_the_first_look_lets_state_dicts_through(tmp_path: Path) -> None:
    parameters = {"w": torch.nn.Parameter(torch.ones(2)), "b": torch.ones(1).bfloat16()}
    for found in (state(), parameters, {"model": state(), "rate": 0.1, "steps": [1, 2**40], "none": None, "on": True}):
        for zipped in (True, False):
            torch.save(found, tmp_path / "f", _use_new_zipfile_serialization=zipped)
            expect_plain((tmp_path / "f").read_bytes())


def test_the_first_look_refuses_whole_modules(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(1, 1), tmp_path / "f")
    with pytest.raises(
        ModelFileError,
        match=r"it names 'torch\.nn\.modules\.linear\.Linear', which is no part of a tensor; save the state_dict\(\)",
    ):
        expect_plain((tmp_path / "f").read_bytes())


# Tables and architectures, without pickles


def own_network() -> BayesianNetwork:
    layers = [Linear(torch.randn(n, m), torch.rand(n, m), torch.randn(n), torch.rand(n)) for m, n in ((2, 3), (3, 1))]
    return BayesianNetwork.from_linears(layers)


def own_tensors(network: BayesianNetwork) -> dict[str, Tensor]:
    pairs = zip(("first", "net.last"), network.linears, strict=True)
    return {f"{name}.{field}": getattr(layer, field) for name, layer in pairs for field in layer.tensors}


def test_our_own_names_in_a_safetensors_file(tmp_path: Path) -> None:
    network = own_network()
    save_file(own_tensors(network), tmp_path / "f.safetensors")
    found = convert(tmp_path / "f.safetensors", RELUS)
    assert found.posterior.digest() == network.digest()
    assert found.origin is not None
    assert found.origin["importer"] == "bnndp"
    assert "torch" not in found.origin["versions"]


def test_layers_of_a_safetensors_file_are_not_in_its_order(tmp_path: Path) -> None:
    """Its tensors are sorted by name, 10 before 2: of layers of one size nothing else would tell."""
    torch.manual_seed(0)
    modules = [module for _ in range(7) for module in (torch.nn.Linear(2, 2), torch.nn.ReLU())][:-1]
    tensors = torch.nn.Sequential(*modules).state_dict()
    save_file(tensors, tmp_path / "f.safetensors")
    found = convert(tmp_path / "f.safetensors", RELUS).posterior
    assert isinstance(found, BayesianNetwork)
    for layer, index in zip(found.linears, range(0, 14, 2), strict=True):
        assert torch.equal(layer.weight_mean, tensors[f"{index}.weight"].double())


def test_a_mapping_that_was_sorted_by_name_is_noticed(tmp_path: Path) -> None:
    tensors = {f"{index}.weight": torch.randn(2, 2) for index in range(12)}
    save_file(tensors, tmp_path / "f.safetensors")
    with pytest.raises(
        ModelFileError, match="come in the order 0, 1, 10, 11, 2, 3, which is not that of their numbers"
    ):
        bnndp.importers.from_tensors(load_file(tmp_path / "f.safetensors"), **SAID)
    assert (
        bnndp.importers.from_tensors(tensors, **SAID).digest()
        == convert(tmp_path / "f.safetensors", RELUS).posterior.digest()
    )


def test_an_order_that_is_not_sure_is_refused(tmp_path: Path) -> None:
    sizes = {"input": (3, 4), "hidden": (4, 4), "output": (4, 1)}
    tensors = {f"{name}.weight": torch.randn(n_out, n_in) for name, (n_in, n_out) in sizes.items()}
    save_file(tensors, tmp_path / "f.safetensors")
    found = convert(tmp_path / "f.safetensors", RELUS)
    assert found.posterior.digest() == bnndp.importers.from_tensors(tensors, **SAID).digest()
    assert found.origin is not None
    assert found.origin["layers"] == list(sizes)
    save_file(tensors | {"more.weight": torch.ones(4, 4)}, tmp_path / "f.safetensors")
    with pytest.raises(
        ModelFileError, match=r"keeps no order of its layers, .* fit in more than one order; give --arch"
    ):
        convert(tmp_path / "f.safetensors", RELUS)
    layers = [{"type": "linear", "name": name} for name in ("input", "more", "hidden", "output")]
    assert convert(tmp_path / "f.safetensors", Architecture("regression", layers=tuple(layers))).posterior.n_out == 1
    save_file(tensors | {"more.weight": torch.ones(5, 5)}, tmp_path / "f.safetensors")
    with pytest.raises(ModelFileError, match="fit in no order"):
        convert(tmp_path / "f.safetensors", RELUS)


DESCRIPTION: dict[str, Any] = {
    "task": "classification",
    "input_shape": [1, 4, 4],
    "layers": [
        {"type": "conv2d", "name": "conv", "stride": [1, 1], "padding": [0, 0]},
        {"type": "leaky_relu", "negative_slope": 0.1},
        {"type": "flatten"},
        {"type": "linear", "name": "head"},
    ],
}
TOML = """
task = "classification"
input_shape = [1, 4, 4]
layers = [
  {type = "conv2d", name = "conv", stride = [1, 1], padding = [0, 0]},
  {type = "leaky_relu", negative_slope = 0.1},
  {type = "flatten"},
  {type = "linear", name = "head"},
]
"""


@pytest.mark.parametrize("suffix", [".json", ".toml"])
def test_a_description_of_the_layers(suffix: str, tmp_path: Path) -> None:
    tensors = {"conv.weight": torch.randn(2, 1, 3, 3), "head.weight": torch.randn(3, 8), "head.bias": torch.randn(3)}
    save_file(tensors, tmp_path / "f.safetensors")
    (tmp_path / f"arch{suffix}").write_text(TOML if suffix == ".toml" else json.dumps(DESCRIPTION))
    found = convert(tmp_path / "f.safetensors", read_architecture(tmp_path / f"arch{suffix}")).posterior
    assert isinstance(found, BayesianNetwork)
    assert (found.task, found.input_shape) == ("classification", (1, 4, 4))
    assert [layer.kind for layer in found.layers] == ["conv2d", "leaky_relu", "flatten", "linear"]
    assert isinstance(found.layers[0], Conv2d)
    assert torch.equal(found.layers[0].weight_mean, tensors["conv.weight"].double())
    assert not found.random


BAD_DESCRIPTIONS: dict[str, tuple[str, str, str]] = {
    "not JSON": (".json", "{", "not JSON"),
    "not TOML": (".toml", "a = ", "not TOML"),
    "not UTF-8": (".toml", "\udcff", "not TOML"),
    "another suffix": (".yaml", "layers: []", "must end in .json or .toml"),
    "a list": (".json", "[]", "needs a list of layers"),
    "no layers": (".json", "{}", "needs a list of layers"),
    "unknown key": (".json", '{"layers": [], "hook": 1}', "unknown settings: 'hook'"),
    "a key twice": (".json", '{"layers": [], "layers": []}', "names 'layers' twice"),
    "unknown task": (".json", '{"layers": [], "task": "x"}', "task must be one of"),
    "odd shape": (".json", '{"layers": [], "input_shape": [1.5]}', "input_shape is"),
}


@pytest.mark.parametrize("case", BAD_DESCRIPTIONS)
def test_bad_descriptions_are_refused(case: str, tmp_path: Path) -> None:
    suffix, text, words = BAD_DESCRIPTIONS[case]
    path = tmp_path / f"arch{suffix}"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ModelFileError) as caught:
        read_architecture(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words in str(caught.value)


def _renamed(tensors: dict[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    return {name.replace(old, new): tensor for name, tensor in tensors.items()}


BAD_TENSORS: dict[str, tuple[Callable[[dict[str, Tensor]], dict[str, Tensor]], str]] = {
    "batch norm": (lambda t: t | {"bn.running_mean": torch.ones(4)}, "'bn.running_mean' is known to no importer"),
    "a bias alone": (lambda t: t | {"x.bias": torch.ones(4)}, "'x.bias' is a bias without a weight"),
    "both kinds": (lambda t: t | {"x.weight_mean": torch.ones(1, 2)}, "lacks the tensors"),
    "images": (lambda t: t | {"x.weight": torch.ones(1, 2, 3, 3)}, "no chain of dense layers; give --arch"),
    "sizes": (lambda t: t | {"x.weight": torch.ones(1, 7)}, "their sizes fit in no order; give --arch"),
    "integers": (lambda t: t | {"x.weight": torch.ones(1, 2, dtype=torch.int64)}, "has dtype torch.int64"),
    "not finite": (
        lambda t: t | {"0.bias": torch.full((4,), torch.nan)},
        "tensor '0.bias' is not finite: [0] is nan (4 of 4 are bad)",
    ),
    "bias of another size": (lambda t: t | {"0.bias": torch.ones(3)}, "bias_mean must have shape (4,)"),
    "nothing": (lambda _: {}, "it holds no tensors"),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_tensors_that_make_no_network_are_refused(case: str, tmp_path: Path) -> None:
    change, words = BAD_TENSORS[case]
    save_file(change(dict(state())), tmp_path / "f")
    with pytest.raises(ModelFileError) as caught:
        convert(tmp_path / "f", RELUS)
    assert str(caught.value).startswith(f"{tmp_path / 'f'}: cannot be converted: ")
    assert words in str(caught.value)


def test_a_single_layer_has_no_name(tmp_path: Path) -> None:
    save_file(dict(torch.nn.Linear(2, 1).state_dict()), tmp_path / "f")
    assert repr(convert(tmp_path / "f", Architecture("regression")).posterior) == "BayesianNetwork(2-1, regression)"


def test_other_activations_and_unknown_ones() -> None:
    foreign = Foreign(dict(state()))
    tensors = importer_for(foreign).read(foreign, Choices()).members[0]
    found = Architecture("regression", "tanh").network(tensors)
    assert [layer.kind for layer in found.layers] == ["linear", "tanh", "linear", "tanh", "linear"]
    with pytest.raises(InputError, match="activation must be one of"):
        Architecture(activation="leaky_relu")  # it has a setting


def test_our_own_files_are_sealed_anew(tmp_path: Path) -> None:
    network = own_network()
    save(network, tmp_path / "a", source="words", card={"seed": 1})
    found = convert(tmp_path / "a")
    assert (found.source, found.card, found.posterior.digest()) == ("words", {"seed": 1}, network.digest())
    save(found.posterior, tmp_path / "b", source=found.source, card=found.card, origin=found.origin)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with pytest.raises(InputError, match="describes its layers by itself"):
        convert(tmp_path / "a", Architecture())
    with pytest.raises(InputError, match="leave out --key"):
        convert(tmp_path / "a", options=ConvertOptions(key="model"))


@pytest.mark.parametrize("origin", [{}, {"layers": 5}, {"layers": ["\x1b[2J\n", 3]}, {"layers": []}], ids=str)
def test_the_command_prints_no_origin_as_it_stands(
    origin: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from bnndp.cli.main import main

    save(own_network(), tmp_path / "a", origin=origin)
    assert main(["convert", str(tmp_path / "a"), "-o", str(tmp_path / "b.safetensors")]) == 0
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())
    assert read_model(tmp_path / "b.safetensors").origin == origin


def test_the_command_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bnndp.cli.main import main

    (tmp_path / "f").write_bytes(b"")
    model, out = "m.safetensors", "out.safetensors"
    (tmp_path / "a.json").write_text('{"layers": [], "task": "regression"}')
    save(own_network(), tmp_path / model)
    before = (tmp_path / model).read_bytes()
    for arguments, words in {
        ("f", "-o", out): "no file that torch.save has written",
        ("absent", "-o", out): "No such file",
        (model, "-o", model): "would be overwritten",
        (model, "-o", out, "--arch", "a.json", "--task", "regression"): "--arch says",
        (model, "-o", out, "--activation", "mish"): "activation must be one of",
        (model, "-o", "no/such/folder.safetensors"): "cannot be written",
        (model, "-o", "out.pt"): "out.pt: a model file is written, whose name must end in .safetensors",
        (model, "-o", "out"): "must end in .safetensors",
    }.items():
        full = [
            str(tmp_path / part) if not part.startswith("-") and i in (0, 2, 4) and part != "mish" else part
            for i, part in enumerate(arguments)
        ]
        assert main(["convert", *full]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert words in line
    assert (tmp_path / model).read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "f", model]
    assert load(tmp_path / model).digest()
