"""Live modules of PyTorch as networks: layers of torch, and Bayesian layers known by the names of their parameters.

No library of Bayesian layers is imported. How the parts of a module follow one another is not taken from the order of
its children but watched (:mod:`bnndp.importers.trace`); what is not understood is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from bnndp.activations import ACTIVATIONS, Elu, Gelu, HardTanh, LeakyRelu, Relu, Sigmoid, Silu, Softplus, Tanh
from bnndp.errors import CertError, InputError, UnsupportedLayerError
from bnndp.importers.libraries import LIBRARIES
from bnndp.importers.tables import Table, layer_tensors
from bnndp.importers.trace import FLATTEN, Call, Functions, chain_of_calls, repeated
from bnndp.layers import WEIGHTED, AveragePool, BatchNorm, Conv2d, Dropout, Flatten, Linear, MaxPool, Record
from bnndp.network import TASKS, BayesianNetwork

_BATCH = 4  # inputs to run the module on
_Settings = Mapping[str, tuple[object, ...]]
FUNCTIONS: Functions = {
    "relu": functional.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": functional.softplus,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "hard_tanh": functional.hardtanh,
}


def from_module(
    module: nn.Module,
    *,
    task: str | None = None,
    input_shape: tuple[int, ...] | None = None,
    activation: str | None = None,
    mc_dropout: bool | None = None,
) -> BayesianNetwork:
    """Read the network of a module that runs its layers one after the other.

    Layers of torch have no variance. Batch norms are folded, as in evaluation mode.

    Args:
        module: Layers of torch and Bayesian layers of known libraries.
        task: ``"regression"`` or ``"classification"``, which a module does not say.
        input_shape: The shape (channels, height, width) of images.
        activation: The function that ``forward`` calls between layers, if it is not a module.
        mc_dropout: True if dropout masks are drawn at prediction, False if dropout was for training alone.

    Returns:
        The network; an error names what cannot be read.

    Examples:
        >>> from_module(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), task="regression")
        BayesianNetwork(2-8-1, regression, linear tanh linear)
    """
    if task is None:
        raise InputError(f"a module does not say its task; give {' or '.join(f'task={each!r}' for each in TASKS)}.")
    if activation is not None and activation not in FUNCTIONS:
        raise InputError(f"activation must be one of {', '.join(FUNCTIONS)}, got {activation!r:.40}.")
    parts = leaf_modules(module)
    functions = {} if activation is None else {activation: FUNCTIONS[activation]}
    calls = chain_of_calls(module, parts, probe(parts, input_shape), functions)
    layers: list[Record] = []
    for call in calls:
        layers += [Flatten() if what == FLATTEN else ACTIVATIONS[what]() for what in call.before]
        try:
            layers = _appended(layers, to_record(call.part, type(call.part), mc_dropout))
        except CertError as error:
            raise type(error)(f"{call.name!r:.80}: {error}") from error
    _expect_drawn_once(calls)
    expect_not_other(activation, calls, [layer.kind for layer in layers])
    return BayesianNetwork(tuple(layers), task, None, None if input_shape is None else tuple(input_shape))


def expect_not_other(activation: str | None, calls: Sequence[Call], kinds: Sequence[str]) -> None:
    """Refuse the name of an activation that is called nowhere where the module has others."""
    called = any(what != FLATTEN for call in calls for what in call.before)
    found = [kind for kind in kinds if kind in ACTIVATIONS]
    if activation is not None and not called and any(kind != activation for kind in found):
        raise InputError(
            f"activation={activation!r} is not what the module has between its layers: {', '.join(found)}; leave "
            "activation= out, the module says it."
        )


def leaf_modules(module: nn.Module, name: str = "") -> dict[str, nn.Module]:
    """The parts that are layers of a module of that name, by their names, each once."""
    return {own: part for part, own in {part: own for own, part in _parts(module, name)}.items()}


def _parts(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """The parts that are layers: what has no children, or tensors of its own."""
    children = list(module.named_children())
    own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    if not children or own or _table(module) is not None:
        yield name or type(module).__name__, module
        return
    for child, part in children:
        yield from _parts(part, f"{name}.{child}" if name else child)


def probe(parts: Mapping[str, nn.Module], input_shape: tuple[int, ...] | None) -> Tensor:
    """Inputs to run the module on: (batch, *input_shape)."""
    shape = input_shape
    if shape is None:
        first = next((part for part in parts.values() if list(part.parameters())), None)
        n_in = getattr(first, "in_features", None)
        if type(n_in) is not int:
            raise InputError(
                "input_shape must be given: the first layer with weights does not say its number of inputs."
            )
        shape = (n_in,)
    like = next((value for part in parts.values() for value in part.parameters()), torch.empty(0))
    generator = torch.Generator().manual_seed(0)
    return torch.randn(_BATCH, *shape, generator=generator, dtype=torch.float64).to(like)


def _expect_drawn_once(calls: list[Call]) -> None:
    """Refuse a layer with variance that is run twice: it would have the same weights in both places."""
    for name in repeated(calls):
        part = next(call.part for call in calls if call.name == name)
        if _table(part) is not None:
            raise UnsupportedLayerError(
                f"{name!r:.80} is run more than once: layers must be independent of one another."
            )


@dataclass(frozen=True, slots=True)
class _Folded:
    """A part that becomes one with the layer before it."""

    norm: BatchNorm


def _appended(layers: list[Record], new: Record | _Folded | None) -> list[Record]:
    if new is None:
        return layers
    if not isinstance(new, _Folded):
        return [*layers, new]
    if not layers or not isinstance(layers[-1], WEIGHTED):
        raise UnsupportedLayerError("a batch norm can be folded only right after a layer with weights.")
    return [*layers[:-1], new.norm.after(layers[-1])]


def to_record(part: nn.Module, kind: type[nn.Module], mc_dropout: bool | None) -> Record | _Folded | None:
    """The part, whose class of torch is ``kind``, as one of our layers; None if it does nothing."""
    table = _table(part)
    if table is not None:
        return _bayesian(part, table)
    if kind in CONVERTERS:
        convert, settings = CONVERTERS[kind]
        _expect(part, settings)
        return convert(part)
    if isinstance(part, nn.Dropout | nn.Dropout2d):
        return _dropout(part, mc_dropout)
    if isinstance(part, nn.Softmax | nn.LogSoftmax):
        raise UnsupportedLayerError(
            f"{type(part).__name__} is not a layer here: leave it out and give task='classification', which "
            "includes it."
        )
    known = ", ".join(sorted(kind.__name__ for kind in (*CONVERTERS, nn.Dropout, nn.Dropout2d)))
    libraries = ", ".join(each.name for each in LIBRARIES)
    raise UnsupportedLayerError(
        f"there is no rule for {type(part).__name__}. Known: {known}, and layers with Gaussian weights of {libraries}."
    )


def _expect(part: nn.Module, wanted: _Settings) -> None:
    """Refuse settings that our layers do not have."""
    for name, values in wanted.items():
        found = getattr(part, name, values[0])
        if found not in values:
            raise UnsupportedLayerError(f"{name} is {found!r:.40}; only {values[0]!r} can be used.")


def stride_and_padding(part: nn.Module) -> tuple[tuple[int, int], tuple[int, int]]:
    """The settings of a convolution; unsupported ones are refused."""
    _expect(part, {"dilation": (1, (1, 1)), "groups": (1,), "padding_mode": ("zeros",)})
    return _pair(part, "stride"), _pair(part, "padding")


def _bayesian(part: nn.Module, table: Table) -> Record:
    """A layer with independent Gaussian weights."""
    has_draw = getattr(part, "weight_eps", None) is not None and hasattr(part, "weight_log_sigma")  # of torchbnn
    if getattr(part, "frozen", False) or getattr(part, "freeze", False) is True or has_draw:
        raise UnsupportedLayerError("it is frozen, so its weights are not drawn; unfreeze it.")
    layers, _ = table.layers({f"layer.{name}": value for name, value in part.state_dict().items()})
    tensors = layer_tensors(layers, bias=getattr(part, "bias", True) is not False)
    if list(layers) != ["layer"]:
        raise UnsupportedLayerError(f"it is {type(part).__name__}, which holds the layers {', '.join(layers)}.")
    fields = {name.removeprefix("layer."): value for name, value in tensors.items()}
    axes = fields["weight_mean"].ndim
    if axes == 2 and isinstance(getattr(part, "in_features", None), int):
        return Linear(**fields)
    if axes != 4 or "Transpose" in type(part).__name__ or not hasattr(part, "stride"):
        raise UnsupportedLayerError(f"there is no rule for {type(part).__name__} with weights of {axes} axes.")
    stride, padding = stride_and_padding(part)
    return Conv2d(**fields, stride=stride, padding=padding)


def _pair(part: nn.Module, name: str) -> tuple[int, int]:
    value = getattr(part, name)
    found = (value, value) if type(value) is int else tuple(value) if isinstance(value, tuple | list) else ()
    if len(found) != 2 or not all(type(each) is int for each in found):
        raise UnsupportedLayerError(f"{name} is {value!r:.40}; expected one or two whole numbers.")
    return found


def _table(part: nn.Module) -> Table | None:
    """The library whose layer this is, by the names of its tensors."""
    names = [name for name, _ in (*part.named_parameters(), *part.named_buffers())]
    own = {name for name, _ in part.named_parameters(recurse=False)}
    found = (table for table in LIBRARIES if table.knows(names))
    return next(found, None) if own and not own <= {"weight", "bias"} else None


def _linear(part: nn.Linear) -> Record:
    return Linear.fixed(part.weight.detach(), None if part.bias is None else part.bias.detach())


def _convolution(part: nn.Conv2d) -> Record:
    bias = None if part.bias is None else part.bias.detach()
    return Conv2d.fixed(part.weight.detach(), bias, *stride_and_padding(part))


def _norm(part: nn.BatchNorm1d | nn.BatchNorm2d) -> _Folded:
    mean, variance = part.running_mean, part.running_var
    if mean is None or variance is None:
        raise UnsupportedLayerError("a batch norm without running statistics depends on the whole batch.")
    weight = torch.ones_like(mean) if part.weight is None else part.weight.detach()
    bias = torch.zeros_like(mean) if part.bias is None else part.bias.detach()
    return _Folded(BatchNorm(mean, variance, weight, bias, part.eps))


def _dropout(part: nn.Dropout | nn.Dropout2d, mc_dropout: bool | None) -> Record | None:
    if part.p == 0 or mc_dropout is False:
        return None
    if mc_dropout is None:
        raise InputError("say whether masks are drawn at prediction too: mc_dropout=True, or False for training alone.")
    return Dropout(part.p, channels=isinstance(part, nn.Dropout2d))


_POOL: _Settings = {"padding": (0, (0, 0)), "ceil_mode": (False,)}

CONVERTERS: Mapping[type[nn.Module], tuple[Callable[..., Record | _Folded | None], _Settings]] = {
    nn.Linear: (_linear, {}),
    nn.Conv2d: (_convolution, {}),
    nn.BatchNorm1d: (_norm, {}),
    nn.BatchNorm2d: (_norm, {}),
    nn.Flatten: (lambda _: Flatten(), {"start_dim": (1,), "end_dim": (-1,)}),
    nn.MaxPool2d: (
        lambda part: MaxPool(_pair(part, "kernel_size"), _pair(part, "stride")),
        {**_POOL, "dilation": (1, (1, 1)), "return_indices": (False,)},
    ),
    nn.AvgPool2d: (
        lambda part: AveragePool(_pair(part, "kernel_size"), _pair(part, "stride")),
        {**_POOL, "divisor_override": (None,)},
    ),
    nn.Identity: (lambda _: None, {}),
    nn.ReLU: (lambda _: Relu(), {}),
    nn.LeakyReLU: (lambda part: LeakyRelu(part.negative_slope), {}),
    nn.Tanh: (lambda _: Tanh(), {}),
    nn.Sigmoid: (lambda _: Sigmoid(), {}),
    nn.SiLU: (lambda _: Silu(), {}),
    nn.ELU: (lambda part: Elu(part.alpha), {}),
    nn.Hardtanh: (lambda _: HardTanh(), {"min_val": (-1.0,), "max_val": (1.0,)}),
    # beyond its threshold, 20, it differs from the identity by less than 3e-9
    nn.Softplus: (lambda _: Softplus(), {"beta": (1.0,), "threshold": (20.0,)}),
    nn.GELU: (lambda _: Gelu(), {"approximate": ("none",)}),
}
"""How a layer of torch becomes one of ours, and the settings that it must have: the values of each that are allowed."""
