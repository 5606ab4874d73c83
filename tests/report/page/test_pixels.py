"""Pictures of inputs show their values."""

from __future__ import annotations

import base64
import io

import numpy as np
from matplotlib import image as matplotlib_image

from bnndp.report.page.pixels import difference_uri, field_uri, image_shape, image_uri


def pixels(uri: str) -> np.ndarray:
    payload = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    return np.round(255 * matplotlib_image.imread(io.BytesIO(payload), format="png")[..., :3]).astype(int)


def test_a_picture_is_that_of_the_input() -> None:
    values = np.linspace(0, 1, 64)
    found = pixels(image_uri(values, (1, 8, 8), 0.0, 1.0))
    assert found.shape == (8, 8, 3)
    assert (found[..., 0].ravel() == np.round(255 * values)).all()


def test_the_channels_of_a_picture_are_its_colours() -> None:
    values = np.zeros((3, 8, 9))
    values[1, 2, 3] = 1.0
    found = pixels(image_uri(values.ravel(), (3, 8, 9), 0.0, 1.0))
    assert np.argwhere(found).tolist() == [[2, 3, 1]]


def test_a_change_is_white_where_there_is_none_and_coloured_by_its_sign() -> None:
    change = np.zeros(64)
    change[0], change[1] = 0.2, -0.2
    found = pixels(difference_uri(change, (1, 8, 8)))
    assert (found[1:] == 255).all()
    assert found[0, 0, 0] > found[0, 0, 2]  # rises: orange
    assert found[0, 1, 2] > found[0, 1, 0]  # falls: blue


def test_a_field_has_its_colours_at_its_ends() -> None:
    found = pixels(field_uri(np.array([[0.0, 0.5, 1.0]])))[0]
    assert (found[1] == 255).all()
    assert found[0, 2] > found[0, 0]
    assert found[2, 0] > found[2, 2]


def test_shapes_of_pictures() -> None:
    pictures = {(784,): (1, 28, 28), (3072,): (3, 32, 32), (1, 8, 12): (1, 8, 12)}
    none = dict.fromkeys([(4,), (2, 9, 9), (8,)])
    assert {shape: image_shape(shape) for shape in (*pictures, *none)} == pictures | none
