"""Arrays, tensors and pictures as small images of bytes. Torch and Pillow are not imported: methods tell what it is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

EDGE = 48
"""Pixels of a thumbnail's longer side, at most."""
MOST_NUMBERS = 2**26
"""Numbers of an image above which it is not read: several copies of it would take gigabytes."""
_LARGEST = 1e300


class NotShown(ValueError):
    """Why an example cannot be shown, in a sentence that its reader sees."""


def as_array(value: Any) -> NDArray[Any] | None:
    """A tensor, an array or a picture of Pillow as an array; None for anything else."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if hasattr(value, "getbands") and hasattr(value, "convert"):
        _check_size(math.prod(value.size))
        of_one_number = value.mode[0] in "IF"  # 16 or 32 bits each, which RGB would cut off
        return np.asarray(value if of_one_number else value.convert("RGB"))
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        tensor = value.detach().cpu()
        try:
            return np.asarray(tensor.numpy())
        except TypeError:  # bfloat16 and the like, which NumPy does not have
            return np.asarray(tensor.float().numpy())
    return None


def thumbnail(array: NDArray[Any]) -> tuple[NDArray[np.uint8], str]:
    """The image as [H, W, 3] bytes with a longer side of at most `EDGE`, and a note on what is not seen in it.

    Each pixel is the mean of a block of the image. Bytes are shown as they are, floats from 0 to 1 as black to white,
    and so are whole numbers from 0 to 255; other numbers from the lowest to the highest of the image.

    >>> image, _ = thumbnail(np.array([[0.0, 1.0], [0.5, 0.25]]))
    >>> image[..., 0].tolist()
    [[0, 255], [128, 64]]
    """
    if array.dtype.kind not in "biuf":
        raise NotShown(f"an array of {array.dtype} is no image")
    _check_size(array.size)
    image = _channels_last(array)
    note = ""
    if array.dtype.kind == "f" and not (finite := np.isfinite(image)).all():
        if not finite.any():
            raise NotShown("no number of the image is finite")
        note = f"{int((~finite).sum()):,} of {image.size:,} numbers are not finite: drawn as the lowest"
        image = np.where(finite, image, image[finite].min())
    low, high = _range(image)
    share = (_smaller(image) - low) / (high - low)
    pixels = np.rint(255 * np.clip(share, 0, 1)).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3))), note


def _check_size(numbers: int) -> None:
    if numbers > MOST_NUMBERS:
        raise NotShown(f"an image of {numbers:,} numbers is too large to be read for a thumbnail")


def _channels_last(array: NDArray[Any]) -> NDArray[Any]:
    """[H, W, 1 or 3]; where both ends could be the channels they are the first, as torch has them."""
    shape = " × ".join(map(str, array.shape))
    if not array.size:
        raise NotShown(f"the array is empty ({shape})")
    if array.ndim == 2:
        return array[..., None]
    if array.ndim == 3 and array.shape[0] in (1, 3):
        return np.moveaxis(array, 0, -1)
    if array.ndim == 3 and array.shape[2] in (1, 3):
        return array
    raise NotShown(f"an array of {shape or 'one number'} is no image of one or three channels")


def _range(image: NDArray[Any]) -> tuple[float, float]:
    """The numbers that are black and white."""
    if image.dtype == np.uint8:
        return 0.0, 255.0
    low, high = float(image.min()), float(image.max())
    if max(-low, high) > _LARGEST:
        raise NotShown(f"numbers up to {max(-low, high):.3g} are too large to be drawn")
    top = 255.0 if image.dtype.kind in "iu" else 1.0
    if low >= 0 and high <= top:
        return 0.0, top
    return (low, high) if high > low else (low - 1, high + 1)


def _smaller(image: NDArray[Any]) -> NDArray[np.float64]:
    """Means over blocks that differ by at most one row and one column in size."""
    height, width = image.shape[:2]
    share = min(1.0, EDGE / max(height, width))
    means: NDArray[Any] = image
    for axis, length in enumerate((height, width)):
        starts = np.arange(n := max(1, round(length * share))) * length // n
        sizes = np.diff([*starts.tolist(), length])
        sums = np.add.reduceat(means, starts, axis=axis, dtype=np.float64)
        means = sums / sizes.reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    return means
