"""Sites of a probabilistic program as layers: which of them is the weight or the bias of which layer, in which layout.

A name such as ``fc1.weight``, ``nn/Dense_0.kernel`` or ``w1`` says it; others are table by a table (``--table``) with

    layout = "in_out"                      # of weights: (inputs, outputs); or "out_in", as in torch
    ignore = ["sigma"]                     # sites that the network has no use for, such as the noise of the data
    sites = [{site = "a", layer = "first", part = "weight", shape = [3, 8]}, ...]

where ``sites`` is the order of the layers and, of a guide that has one vector for all, the order in that vector.
Nothing is guessed: a layout or an order that the names do not say must be the only one in which the shapes of the
layers fit one another, and is refused otherwise.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from bnndp.errors import InputError, ModelFileError
from bnndp.files.container import expect_known
from bnndp.importers.foreign import Choices, quoted
from bnndp.importers.tables import LAYOUTS

_KEYS, _SETTINGS = ("layout", "ignore", "sites"), ("site", "layer", "part", "shape", "layout")
_PARTS = ("weight", "bias")
_LAST = re.compile(r"(?:(?P<layer>.+)[./])?(?P<leaf>weight|kernel|w|bias|b)")
_NUMBERED = re.compile(r"(?P<leaf>weight|kernel|w|bias|b)_?(?P<layer>\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"[_./]?(\d+)")
_FEW = 6  # layers whose order is found by trying all


@dataclass(frozen=True, slots=True)
class Site:
    """One site that the network uses."""

    name: str
    layer: str
    part: str  # "weight" or "bias"
    leaf: str = ""  # how the name ends, where that is the name of a parameter: "kernel"
    layout: str | None = None  # None: unknown
    shape: tuple[int, ...] | None = None  # None: unknown


@dataclass(frozen=True, slots=True)
class SiteTable:
    """What a table says of sites."""

    sites: tuple[Site, ...] = ()  # none: their order is that of the file
    layout: str | None = None
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """The sites of a layer."""

    name: str
    weight: str
    bias: str | None
    layout: str  # one of LAYOUTS
    shape: tuple[int, ...]  # of the weight, as it lies in the file

    @property
    def sizes(self) -> tuple[int, int]:
        """Inputs and outputs; of a kernel, its channels."""
        first, second = self.shape[0], self.shape[1]
        return (second, first) if self.layout == "out_in" else (first, second)

    @property
    def sites(self) -> tuple[str, ...]:
        """Weight, and bias if there is one."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def oriented(self, weight: Tensor) -> Tensor:
        """A weight as torch has it: outputs first. Axes after those of the weight stay where they are."""
        return weight.transpose(0, 1).contiguous() if self.layout == "in_out" else weight


def site_of(name: str) -> Site | None:
    """The layer and the part that a name says, None if it says none.

    >>> site_of("nn/Dense_0.kernel")
    Site(name='nn/Dense_0.kernel', layer='nn/Dense_0', part='weight', leaf='kernel', layout=None, shape=None)
    >>> site_of("B2").layer, site_of("B2").part, site_of("sigma")
    ('2', 'bias', None)
    """
    found = _LAST.fullmatch(name)
    numbered = _NUMBERED.fullmatch(name)
    if found is not None:
        return Site(name, found["layer"] or "layer", _part(found["leaf"]), found["leaf"])
    return None if numbered is None else Site(name, numbered["layer"], _part(numbered["leaf"]))


def _part(leaf: str) -> str:
    return "bias" if leaf.lower().startswith("b") else "weight"


def site_table(choices: Choices) -> SiteTable:
    """What ``--table`` and ``--ignore`` say, checked."""
    given = {} if choices.table is None else dict(choices.table)
    expect_known(given, _KEYS, f"the table must have {', '.join(_KEYS)} alone; it has")
    layout, ignore, sites = given.get("layout"), given.get("ignore", []), given.get("sites", [])
    if layout is not None and layout not in LAYOUTS:
        raise ModelFileError(f"the table has layout {layout!r:.40}; known: {', '.join(LAYOUTS)}")
    if not isinstance(ignore, list) or not all(isinstance(name, str) for name in ignore):
        raise ModelFileError(f"the table has ignore = {ignore!r:.80}; expected a list of names of sites")
    if not isinstance(sites, list):
        raise ModelFileError(f"the table has sites = {sites!r:.80}; expected a list of rows with 'site' and 'shape'")
    aside = tuple(dict.fromkeys((*ignore, *choices.ignore)))
    found = tuple(_row(index, row, aside) for index, row in enumerate(sites))
    if len({site.name for site in found}) < len(found):
        raise ModelFileError("the table names a site twice")
    return SiteTable(found, str(layout) if layout is not None else None, aside)


def ignored_names(ignore: object) -> tuple[str, ...]:
    """The argument ``ignore`` of the functions ``from_...``, a name or a list of them, checked."""
    names = (ignore,) if isinstance(ignore, str) else ignore
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InputError(f"ignore must be a list of names of sites, got {ignore!r:.80}.")
    return tuple(names)


def _row(index: int, given: object, ignore: Sequence[str]) -> Site:
    """One row of ``sites``; layer and part are those that the name says, unless the row does."""
    if not isinstance(given, dict) or not isinstance(given.get("site"), str) or set(given) - set(_SETTINGS):
        raise ModelFileError(f"row {index} of sites needs a 'site' and may have {_SETTINGS[1:]}, got {given!r:.80}")
    name, shape = given["site"], given.get("shape")
    usual = site_of(name) or Site(name, "", "")
    layer, part, layout = given.get("layer", usual.layer), given.get("part", usual.part), given.get("layout")
    if name in ignore:
        layer, part = layer or name, part or "weight"
    if not isinstance(layer, str) or not layer or part not in _PARTS or layout not in (None, *LAYOUTS):
        raise ModelFileError(f"row {index} of sites must say layer and part (weight or bias) of {name!r:.80}")
    if shape is not None and not (isinstance(shape, list) and all(type(n) is int and n > 0 for n in shape)):
        raise ModelFileError(f"row {index} of sites has shape {shape!r:.80}; expected a list of whole numbers")
    explicit = any(key in given for key in ("layer", "part", "layout"))
    return Site(name, layer, part, "" if explicit else usual.leaf, layout, None if shape is None else tuple(shape))


def layers_of(
    shapes: Mapping[str, tuple[int, ...]], table: SiteTable, certain: Mapping[str, str], *, ordered: bool
) -> tuple[Layer, ...]:
    """The layers of these sites, in their order.

    ``certain`` is the layout that weights of a certain last name have; ``ordered`` says whether the order of the sites
    is that of the layers, else it is that of the numbers in their names, or the one that fits.
    """
    sites = _sites(shapes, table)
    groups: dict[str, dict[str, Site]] = {}
    for site in sites:
        parts = groups.setdefault(site.layer, {})
        if site.part in parts:
            raise ModelFileError(
                f"layer {site.layer!r:.80} has two sites for its {site.part}, one is {site.name!r:.80}"
            )
        parts[site.part] = site
    layers = [_layer(name, parts, shapes, table, certain) for name, parts in groups.items()]
    open_layout = any(layout is None for _, layout in layers)
    in_table = bool(table.sites) and {site.name for site in sites} <= {site.name for site in table.sites}
    orders = _orders([layer for layer, _ in layers], ordered=ordered or in_table)
    if not open_layout and len(orders) == 1:
        found = orders[0]
        _expect_biases(found, shapes)
        return tuple(found)
    return _only_fit(orders, {layer.name for layer, layout in layers if layout is None}, shapes)


def _sites(shapes: Mapping[str, tuple[int, ...]], table: SiteTable) -> list[Site]:
    """Every site but those to be ignored, in the order of the table if that has one."""
    lacking = [site.name for site in table.sites if site.name not in shapes]
    lacking += [name for name in table.ignore if name not in shapes]
    if lacking:
        raise ModelFileError(
            f"{lacking[0]!r:.80} of --table or --ignore is not a site of the file; its sites are {quoted(shapes)}"
        )
    rows = {site.name: site for site in table.sites}
    found = []
    for name in dict.fromkeys((*rows, *shapes)):
        site = rows.get(name) or site_of(name)
        if name in table.ignore:
            continue
        if site is None:
            raise ModelFileError(
                f"site {name!r:.80} is not known to be a weight or a bias: say so by a row of sites in --table, or, if "
                f"the network has no use for it, leave it out with --ignore {name:.80}, in Python by "
                f"ignore=[{name!r:.80}]"
            )
        if site.shape is not None and site.shape != shapes[name]:
            raise ModelFileError(f"site {name!r:.80} has shape {shapes[name]}, the table says {site.shape}")
        found.append(site)
    if not found:
        raise ModelFileError("it has no site that is a weight or a bias")
    return found


def _layer(
    name: str,
    parts: Mapping[str, Site],
    shapes: Mapping[str, tuple[int, ...]],
    table: SiteTable,
    certain: Mapping[str, str],
) -> tuple[Layer, str | None]:
    """A layer, and its layout if that is known."""
    weight, bias = parts.get("weight"), parts.get("bias")
    if weight is None:
        raise ModelFileError(f"layer {name!r:.80} has a bias, {next(iter(parts.values())).name!r:.80}, but no weight")
    shape = shapes[weight.name]
    layout = weight.layout or certain.get(weight.leaf) or table.layout
    if len(shape) != 2 and (len(shape) != 4 or layout != "out_in"):
        raise ModelFileError(
            f"the weight {weight.name!r:.80} has shape {shape}; expected two axes, or the four of a kernel of torch "
            "(channels last make another order of a flattened image, and are not read)"
        )
    return Layer(name, weight.name, None if bias is None else bias.name, layout or LAYOUTS[0], shape), layout


def _orders(layers: Sequence[Layer], *, ordered: bool) -> list[list[Layer]]:
    """The orders in which the layers may stand: one if it is known, given by numbers, or irrelevant; else all."""
    if ordered or len(layers) == 1 or any(len(layer.shape) != 2 for layer in layers):
        return [list(layers)]
    if len({_NUMBER.sub("", layer.name) for layer in layers}) == 1:
        return [sorted(layers, key=lambda layer: [int(n) for n in _NUMBER.findall(layer.name)])]
    if len(layers) > _FEW:
        raise ModelFileError(
            f"the order of its {len(layers)} layers is not said by their names; give their sites in order by --table"
        )
    return [list(order) for order in itertools.permutations(layers)]


def _expect_biases(layers: Iterable[Layer], shapes: Mapping[str, tuple[int, ...]]) -> None:
    for layer in layers:
        if layer.bias is not None and shapes[layer.bias] != (layer.sizes[1],):
            other = LAYOUTS[LAYOUTS.index(layer.layout) - 1]
            fits = shapes[layer.bias] == (replace(layer, layout=other).sizes[1],)
            advice = f'; they would as {_words(other)}: say layout = "{other}" by --table' if fits else ""
            raise ModelFileError(
                f"layer {layer.name!r:.80} has a weight of shape {layer.shape}, read as {_words(layer.layout)}, and a "
                f"bias of shape {shapes[layer.bias]}: they do not fit{advice}"
            )


def _only_fit(
    orders: Sequence[Sequence[Layer]], free: set[str], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Layer, ...]:
    """The only order and layout in which each layer takes the outputs of the one before."""
    found: list[tuple[Layer, ...]] = []
    for order, layout in itertools.product(orders, LAYOUTS if free else LAYOUTS[:1]):
        layers = tuple(replace(each, layout=layout) if each.name in free else each for each in order)
        fit = all(a.sizes[1] == b.sizes[0] for a, b in itertools.pairwise(layers))
        if fit and all(each.bias is None or shapes[each.bias] == (each.sizes[1],) for each in layers):
            found.append(layers)
    if len(found) == 1:
        return found[0]
    weights = ", ".join(f"{layer.weight} {layer.shape}" for layer in orders[0])
    if not found:
        raise ModelFileError(
            f"its weights ({weights}) fit one another in no order and layout; say which site is what by --table"
        )
    what = "layouts" if len({tuple(each.name for each in layers) for layers in found}) == 1 else "orders"
    advice = 'layout = "in_out" or "out_in"' if what == "layouts" else "their sites in order"
    raise ModelFileError(f"its weights ({weights}) fit one another in several {what}; give {advice} by --table")


def _words(layout: str) -> str:
    return "(outputs, inputs)" if layout == "out_in" else "(inputs, outputs)"


def by_role(
    layers: Iterable[Layer], means: Mapping[str, Tensor], stds: Mapping[str, Tensor]
) -> dict[str, dict[str, Tensor]]:
    """Means and stds of sites by layer and role; a site that is not in ``stds`` has no variance."""
    found: dict[str, dict[str, Tensor]] = {}
    for layer in layers:
        parts = found.setdefault(layer.name, {})
        for part, site in zip(_PARTS, layer.sites, strict=False):
            mean = layer.oriented(means[site]) if part == "weight" else means[site]
            if site not in stds:
                parts[part] = mean
                continue
            parts |= {f"{part}_mean": mean}
            parts |= {f"{part}_std": layer.oriented(stds[site]) if part == "weight" else stds[site]}
    return found
