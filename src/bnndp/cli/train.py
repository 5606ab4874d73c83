"""``bnndp train``: from the name of a data set to a network that the other commands certify."""

from __future__ import annotations

import contextlib
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bnndp.cli.parameters import CLASSES, TARGETS, DataFolder, Json, Quiet, positive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bnndp.cli.invocation import Invocation
    from bnndp.cli.messages import Messages
    from bnndp.errors import CertError
    from bnndp.training.fit import Fitted, Plan, Watcher

_LAYERS = re.compile(r"([1-9][0-9]?)x([1-9][0-9]{0,5})")
_NONE = "none"
# Those of bnndp.activations, which loads torch.
_ACTIVATIONS = ["relu", "leaky-relu", "identity", "hard-tanh", "tanh", "sigmoid", "softplus", "elu", "gelu", "silu"]


def _hidden(value: str | None) -> str | None:
    if value not in (None, _NONE) and _LAYERS.fullmatch(value) is None:
        raise typer.BadParameter(f"{value!r} is not a number of layers, an x and their width, such as 2x64, nor none.")
    return value


def _rate(value: float | None) -> float | None:
    if value is not None and not 0 <= value < 1:
        raise typer.BadParameter(f"{value} is not a rate of dropout: at least 0 and below 1.")
    return value


def train(  # noqa: PLR0913 (the options of the command)
    context: typer.Context,
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help=f"One of {', '.join((*CLASSES, *TARGETS))}.")],
    out: Annotated[Path, typer.Option(metavar="MODEL", help="Where the network goes.", show_default=False)],
    hidden: Annotated[
        str | None,
        typer.Option(
            callback=_hidden,
            metavar="KxW",
            help="K hidden layers of W neurons each, or none; 2x64 by default, none after convolutions.",
        ),
    ] = None,
    activation: Annotated[
        str, typer.Option(metavar="NAME", help=f"After every hidden layer: {', '.join(_ACTIVATIONS)}.")
    ] = "relu",
    conv: Annotated[
        str,
        typer.Option(
            metavar="LAYERS",
            help="Convolutions first: 6x5s2p2 is 6 channels, kernels 5 x 5, stride 2, padding 2; pool2 averages, "
            "max2 takes the largest of 2 x 2. For example 6x5p2,pool2,16x5,pool2.",
            show_default=False,
        ),
    ] = "",
    inference: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="bbb, vogn, noisy-adam, or map: weights without variances. vogn by default; map with dropout, "
            "ensemble and laplace.",
        ),
    ] = None,
    dropout: Annotated[
        float | None, typer.Option(callback=_rate, help="Rate of dropout, which is then part of the posterior.")
    ] = None,
    dropout_law: Annotated[str, typer.Option(metavar="LAW", help="bernoulli or gaussian.")] = "bernoulli",
    dropout_where: Annotated[
        Literal["units", "channels", "last"],
        typer.Option(
            help="What is dropped: units, channels of convolutions, or units after the last such layer alone."
        ),
    ] = "units",
    ensemble: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Train N networks, with seeds from --seed on.")
    ] = None,
    laplace: Annotated[
        str | None, typer.Option(metavar="WHICH", help="last-layer: a Gaussian of its weights, by Laplace.")
    ] = None,
    robust: Annotated[
        float | None,
        typer.Option(callback=positive, metavar="EPS", help="Train against the worst case in balls of this radius."),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of training steps.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Points per step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(callback=positive, help="Largest learning rate.")] = None,
    prior: Annotated[
        str | None, typer.Option(metavar="KIND", help="unit, or fan_in: narrower for layers with more inputs.")
    ] = None,
    prior_std: Annotated[
        float | None, typer.Option(callback=positive, help="Standard deviation of the prior of the weights.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(callback=positive, help="Weight of the KL term; below 1: a cold posterior.")
    ] = None,
    init_std: Annotated[
        float | None, typer.Option(callback=positive, help="Initial standard deviation of the weights.")
    ] = None,
    noise_std: Annotated[
        float | None,
        typer.Option(callback=positive, help="Noise of the targets, in their units; estimated by default."),
    ] = None,
    stop_early: Annotated[
        bool,
        typer.Option("--stop-early", help="Hold out a tenth of the points and keep the posterior that fits them best."),
    ] = False,
    fold: Annotated[int, typer.Option(min=0, help="Which published split into training and test part.")] = 0,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the training.")] = 0,
    data_dir: DataFolder = None,
    restart: Annotated[bool, typer.Option("--restart", help="Start over even if there is a checkpoint.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a Bayesian network on a data set and write it, in the units of the data set, with its training card.

    What the options leave open has defaults of the method and the task; docs/training.md lists them. A data set that is
    neither in --data-dir nor in the folder that BNNDP_DATA names is downloaded. Beside the network lies, as long as the
    training lasts, MODEL.checkpoint: the same command continues from there after an interruption, to the same file, bit
    for bit. The table has the figures of the test part, which was not used before; calibration is the mean error of the
    stated probabilities.
    """
    from bnndp.cli.inputs import data_store
    from bnndp.cli.invocation import Invocation
    from bnndp.cli.messages import Messages, row_table
    from bnndp.errors import CertError, InputError
    from bnndp.files.posterior import save
    from bnndp.layers import Dropout
    from bnndp.training.fit import Parts, Plan, checkpoint_paths, fit
    from bnndp.training.options import Robust

    calm = dropout is not None or ensemble is not None or laplace is not None
    layers, width = _sizes(hidden or (_NONE if conv else "2x64"))
    plan = Plan(
        dataset,
        inference or ("map" if calm else "vogn"),
        (width,) * layers,
        steps=steps,
        batch=batch,
        learning_rate=learning_rate,
        prior=prior,
        prior_std=prior_std,
        temperature=temperature,
        noise_std=noise_std,
        stop_early=stop_early,
        fold=fold,
        seed=seed,
        activation=activation.replace("-", "_"),
        conv=conv,
        dropout=None if dropout is None else Dropout(dropout, dropout_law, dropout_where == "channels"),
        dropout_last=dropout_where == "last",
        robust=None if robust is None else Robust(robust),
        ensemble=ensemble,
        laplace=laplace,
        init_std=init_std,
    )
    messages = Messages(json, quiet)
    _check_writable(out)
    with data_store(data_dir, messages) as store:
        parts = Parts.load(plan, store)
    checkpoint = out.with_name(f"{out.name}.checkpoint")
    with _named_when_stopped(checkpoint, context.find_object(Invocation), restart=restart):
        try:
            with _watched(plan, messages) as watcher:
                fitted = fit(plan, parts, watcher=watcher, checkpoint=checkpoint, resume=not restart)
        except CertError as error:
            if not str(error).startswith(str(checkpoint)):
                raise
            raise InputError(_advice(error)) from error
        save(fitted.network, out, source=f"bnndp train {dataset}", card=fitted.record())
    for path in checkpoint_paths(plan, checkpoint):
        path.unlink(missing_ok=True)
    summary = _summary(fitted, out)
    messages.table(row_table(_cells(summary)))
    messages.summary(summary)


def _sizes(hidden: str) -> tuple[int, int]:
    """Number and width of the hidden layers."""
    if hidden == _NONE:
        return 0, 0
    layers, width = map(int, hidden.split("x"))
    return layers, width


@contextlib.contextmanager
def _watched(plan: Plan, messages: Messages) -> Iterator[Watcher]:
    """A bar over the steps of both passes, and a line on stderr if the training does not start at its beginning."""
    with messages.progress("train", plan.all_steps) as advance:
        done = {"noise": 0, "train": 0}

        def watch(stage: str, step: int) -> None:
            if stage == "train" and not done["train"] and step > 1:
                messages.tell(f"resumed at step {step - 1}.")
            advance(step - done[stage])
            done[stage] = step

        yield watch
    if not done["train"]:
        messages.tell("resumed after the last step.")


@contextlib.contextmanager
def _named_when_stopped(checkpoint: Path, invocation: Invocation | None, *, restart: bool) -> Iterator[None]:
    """Of a training that is told to stop, say how to go on with it.

    A checkpoint that --restart was to replace, and that is still the old one, is not of this training.
    """
    before = _stamp(checkpoint) if restart else None
    try:
        yield
    except BaseException:
        if invocation is not None and _stamp(checkpoint) not in (None, before):
            command = "the same command without --restart" if restart else "the same command"
            invocation.remarks.append(f"{command} continues from {checkpoint}")
        raise


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is replaced; None if there is none."""
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns
    return None


def _advice(error: CertError) -> str:
    """What is wrong with a checkpoint, with advice for the command line in place of that for Python."""
    fault = str(error).rpartition(";")[0] or str(error).rstrip(".")
    return f"{fault}; begin again with --restart, or change --out."


def _check_writable(out: Path) -> None:
    """Find out before the training, not after it."""
    from bnndp.errors import InputError

    place = out.absolute()
    try:
        if str(out) == "-" or place.parts[1:2] in (("dev",), ("proc",)) or (out.exists() and not out.is_file()):
            raise InputError(f"{out}: is not a regular file and cannot be replaced; change --out.")
        if not place.parent.is_dir():
            raise InputError(f"{out}: the folder {place.parent} does not exist; make it or change --out.")
        scratch = place.with_name(f".{out.name}.checkpoint.{secrets.token_hex(8)}")  # the longest name that is used
        scratch.touch(exist_ok=False)
        scratch.unlink()
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}; change --out.") from error


def _summary(fitted: Fitted, out: Path) -> dict[str, Any]:
    """What was trained and how good it is on the test part, for programs."""
    from bnndp.training.cards import Scores

    test, trained = fitted.test, fitted.trained
    figure = {"accuracy": test.accuracy} if isinstance(test, Scores) else {"rmse": test.rmse}
    record: dict[str, Any] = {
        "command": "train",
        "model": str(out),
        "digest": fitted.network.digest(),
        "data": fitted.plan.data,
    }
    record |= {"method": _method(fitted.plan), "steps": trained.steps, "seconds": trained.card.seconds}
    return record | {"test": figure | {"nll": test.nll, "calibration_error": test.calibration_error}}


def _cells(summary: dict[str, Any]) -> dict[str, str]:
    """The same for people."""
    test = summary["test"]
    cells = {"data": summary["data"], "method": summary["method"], "steps": str(summary["steps"])}
    cells |= {"accuracy": f"{100 * test['accuracy']:.1f} %"} if "accuracy" in test else {"RMSE": f"{test['rmse']:.4g}"}
    cells |= {"NLL": f"{test['nll']:.4g}", "calibration": f"{test['calibration_error']:.4f}"}
    return cells | {"seconds": f"{summary['seconds']:.3g}"}


def _method(plan: Plan) -> str:
    """The method with what goes with it."""
    parts = [plan.inference]
    parts += ["dropout"] if plan.dropout is not None else []
    parts += [f"{plan.laplace} laplace"] if plan.laplace is not None else []
    parts += [f"ensemble of {plan.ensemble}"] if plan.ensemble is not None else []
    return ", ".join(parts)
