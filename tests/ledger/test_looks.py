"""What an example looks like: thumbnails against block means computed one by one, texts, and what cannot be shown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Subset, TensorDataset

import learnscope as ls
from learnscope.ledger.looks import How, Look, look_at, look_of
from learnscope.ledger.show import SECONDS
from learnscope.ledger.thumbnails import MOST_NUMBERS

random = np.random.default_rng(0)
GREY = random.random((70, 100))
COLOUR = random.integers(0, 256, (96, 50, 3), dtype=np.uint8)


def by_hand(image: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Block by block, in plain Python."""
    height, width = image.shape[:2]
    share = min(1.0, 48 / max(height, width))
    rows, columns = max(1, round(height * share)), max(1, round(width * share))
    out = np.zeros((rows, columns, 3), np.uint8)
    for i in range(rows):
        for j in range(columns):
            block = image[
                i * height // rows : (i + 1) * height // rows, j * width // columns : (j + 1) * width // columns
            ]
            mean = block.reshape(-1, *image.shape[2:]).astype(np.float64).mean(0)
            out[i, j] = np.round(255 * (mean - low) / (high - low))
    return out


def image_of(example: Any, **how: Any) -> NDArray[np.uint8]:
    image = look_of(example, How(**how)).image
    assert image is not None
    assert image.dtype == np.uint8
    assert max(image.shape[:2]) <= 48
    return image


@pytest.mark.parametrize(
    ("example", "plain", "low", "high"),
    [
        (GREY, GREY, 0, 1),
        (GREY[None], GREY, 0, 1),
        (GREY[..., None], GREY, 0, 1),
        (torch.tensor(GREY), GREY, 0, 1),
        (torch.tensor(GREY, requires_grad=True), GREY, 0, 1),
        (COLOUR, COLOUR, 0, 255),
        (COLOUR.transpose(2, 0, 1), COLOUR, 0, 255),
        (torch.tensor(COLOUR).permute(2, 0, 1), COLOUR, 0, 255),
        (COLOUR.astype(np.int64), COLOUR, 0, 255),
        (8 * GREY - 3, 8 * GREY - 3, float((8 * GREY - 3).min()), float((8 * GREY - 3).max())),
        (GREY > 0.5, GREY > 0.5, 0, 1),
        ((GREY, 3), GREY, 0, 1),
        ({"label": 3, "image": GREY}, GREY, 0, 1),
        (GREY[:1, :5], GREY[:1, :5], 0, 1),
    ],
)  # fmt: skip
def test_a_thumbnail_is_the_means_of_blocks(example: Any, plain: NDArray[Any], low: float, high: float) -> None:
    found, expected = image_of(example).astype(int), by_hand(plain, low, high).astype(int)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1  # a sum in another order may round the other way
    assert (found == expected).mean() > 0.99


def test_small_images_keep_every_pixel() -> None:
    assert image_of(np.array([[0, 128], [255, 3]], np.uint8))[..., 1].tolist() == [[0, 128], [255, 3]]
    assert image_of(np.array([[-1.0, 0.0, 3.0]]))[..., 2].tolist() == [[0, 64, 255]]
    assert image_of(np.full((2, 2), 7.0))[0, 0, 0] == 128  # no lowest and highest
    flat = np.arange(6) / 5
    assert image_of(flat, shape=(2, 3))[..., 0].tolist() == [[0, 51, 102], [153, 204, 255]]
    assert image_of(torch.rand(3, 4, 5).bfloat16()).shape == (4, 5, 3)


def test_pictures_of_pillow() -> None:
    image = pytest.importorskip("PIL.Image")
    np.testing.assert_array_equal(image_of(image.fromarray(COLOUR)), image_of(COLOUR))
    assert image_of(image.new("L", (200, 100), 99)).shape == (24, 48, 3)
    assert image_of(image.new("P", (3, 3))).shape == (3, 3, 3)


def test_numbers_that_are_not_finite_are_said() -> None:
    broken = np.array([[np.nan, 0.5], [1.0, np.inf]])
    look = look_of(broken, How())
    assert look.note == "2 of 4 numbers are not finite: drawn as the lowest"
    assert look.image is not None
    assert look.image[..., 0].tolist() == [[128, 128], [255, 128]]


def test_texts() -> None:
    assert look_of("short", How()).text == "short"
    long = look_of({"text": "ab" * 1000, "label": 1}, How())
    assert (long.text, long.note) == ("ab" * 250, "the first 500 of 2,000 characters")
    hostile = look_of("<b>\x1b[31m\u202eevil\ud800\n", How()).text
    assert hostile == "<b>\\u001b[31m\\u202eevil\\ud800\n"
    assert len(look_of("\x00" * 500, How()).text or "") == 500
    assert look_of({"a": 1, "words": "here"}, How(field="words")).text == "here"
    assert look_of(("x", "y"), How(field=1)).text == "y"


class Tokenizer:
    pad_token_id = 0

    def decode(self, ids: list[int]) -> str:
        return " ".join(f"w{each}" for each in ids)


@pytest.mark.parametrize("ids", [[0, 5, 6], (0, 5, 6), torch.tensor([0, 5, 6]), np.array([[0, 5, 6]])])
def test_tokens(ids: Any) -> None:
    show = ls.ShowExamples([{"input_ids": ids}, (ids, 3)], tokenizer=Tokenizer())
    assert [show.look(id).text for id in (0, 1)] == ["w5 w6"] * 2
    assert ls.ShowExamples([ids], tokenizer=lambda tokens: str(len(tokens))).look(0).text == "3"


class Broken:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


@pytest.mark.parametrize(
    ("example", "reason"),
    [
        (np.zeros(64), "a vector of 64 numbers: if it is an image, ls.ShowExamples(data, shape=…)"),
        (torch.arange(9), "9 whole numbers: if they are tokens, ls.ShowExamples(data, tokenizer=…)"),
        ([1, 2, 3], "3 whole numbers: if they are tokens, ls.ShowExamples(data, tokenizer=…)"),
        ((0.5, 1), "a vector of 2 numbers: if it is an image, ls.ShowExamples(data, shape=…)"),
        (np.zeros((5, 6, 7)), "an array of 5 × 6 × 7 is no image of one or three channels"),
        (np.zeros((1, 3, 4, 4)), "an array of 1 × 3 × 4 × 4 is no image of one or three channels"),
        (torch.tensor(3.0), "an array of one number is no image of one or three channels"),
        (np.zeros((0, 4)), "the array is empty (0 × 4)"),
        (np.zeros((4, 4), np.complex64), "an array of complex64 is no image"),
        (np.array([["a", "b"]]), "an array of <U1 is no image"),
        (np.full((2, 2), np.nan), "no number of the image is finite"),
        (np.full((2, 2), -1e305), "numbers up to 1e+305 are too large to be drawn"),
        (np.broadcast_to(np.uint8(0), (MOST_NUMBERS, 2)), "an image of 134,217,728 numbers is too large to be read"),
        ({"a": 1, "b": 2}, "a dictionary with a, b: say which, ls.ShowExamples(data, field=…)"),
        ({}, "a dictionary with nothing: say which"),
        (3, "a int is neither a text nor an image"),
        (None, "a NoneType is neither a text nor an image"),
        (b"bytes", "a bytes is neither a text nor an image"),
        ((), "a tuple is neither a text nor an image"),
        ([[[[["deep"]]]]], "it is a list of lists of lists"),
        (torch.zeros(2, 2, device="meta"), "NotImplementedError: "),
        (torch.eye(3).to_sparse(), "TypeError: "),
        (Broken(), "RuntimeError: no getbands"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_what_cannot_be_shown_has_a_reason(example: Any, reason: str) -> None:
    look = look_at(lambda: example, How())
    assert look.text is None
    assert look.image is None
    assert look.reason.startswith(reason)
    assert len(look.reason) <= 200


def test_reasons_of_a_wrong_shape_or_field() -> None:
    assert look_at(lambda: np.zeros(64), How(shape=(9, 9))).reason == "64 numbers cannot have the shape (9, 9)"
    assert look_at(lambda: {"a": 1}, How(field="b")).reason == "a dict with a has no 'b'"
    assert look_at(lambda: 3, How(field="b")).reason == "a int has no 'b'"


def test_another_label_is_said() -> None:
    show = ls.ShowExamples([("a", 1), {"text": "b", "label": np.int64(2)}, ("c", torch.tensor(3)), ("d", 0.5), "ef"])
    assert [show.look(id, target=1).note for id in range(5)] == [
        "", "label 2 in the data set, 1 in the training", "label 3 in the data set, 1 in the training", "", "",
    ]  # fmt: skip


def test_examples_are_found_by_their_ids() -> None:
    texts = [(f"text {i}", i) for i in range(10)]
    indexed = ls.IndexedDataset(texts, start=100)
    subset = Subset(indexed, [3, 5])
    assert ls.ShowExamples(indexed).look(103).text == "text 3"
    assert ls.ShowExamples(subset).look(105).text == "text 5"  # not what stands at place 105, or 5, of the subset
    assert ls.ShowExamples(DataLoader(subset)).look(104).text == "text 4"
    assert ls.ShowExamples(indexed).look(99).reason == "IndexError: index 99: the items have 100..109"
    assert ls.ShowExamples(DataLoader(texts)).look(7).text == "text 7"  # type: ignore[arg-type]
    assert ls.ShowExamples(texts).look(-1).reason.startswith("IndexError: id -1")
    assert ls.ShowExamples({-1: "minus"}).look(-1).text == "minus"
    assert ls.ShowExamples(lambda id: f"{id}!").look(-1).text == "-1!"
    assert ls.ShowExamples(texts).look(10).reason == "IndexError: list index out of range"
    assert ls.ShowExamples(TensorDataset(torch.rand(4, 8, 8), torch.arange(4))).look(2).image is not None
    assert ls.ShowExamples(texts).look(1, view=lambda example: example[0].upper()).text == "TEXT 1"


@pytest.mark.parametrize("data", [3, None, "text", b"x", {1, 2}, (torch.rand(3, 2), torch.rand(3)), iter([1])])
def test_data_without_ids_are_refused_by_name(data: Any) -> None:
    with pytest.raises(TypeError, match="show="):
        ls.ShowExamples(data)
    if data is not None:
        with pytest.raises(TypeError, match="show="):
            ls.ExampleLedger(show=data)


def test_wrong_options_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="shape="):
        ls.ShowExamples([1], shape=(0, 3))
    with pytest.raises(TypeError, match="tokenizer="):
        ls.ShowExamples([1], tokenizer=5)


def test_the_manifest_has_no_data() -> None:
    from learnscope.core.probe import describe

    ledger = ls.ExampleLedger(show=[torch.rand(100, 100)] * 50)
    assert describe(ledger)["show"] == "ShowExamples(list)"
    assert repr(ls.ShowExamples(len, field="text", shape=[2, 3])) == "ShowExamples(len, field='text', shape=(2, 3))"


def test_slow_data_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("learnscope.ledger.show.time.monotonic", lambda: now[0])

    def slow(id: int) -> str:
        now[0] += SECONDS / 2 + 1
        return f"text {id}"

    looks: dict[int, Look] = dict(ls.ShowExamples(slow).looks(dict.fromkeys(range(4))))
    assert [look.text for look in looks.values()] == ["text 0", "text 1", None, None]
    assert looks[3].reason == "not read: others took 30 s"
