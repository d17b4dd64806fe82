"""The sizes of the public training sets, and the recipes that are made for them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownData:
    """A training set as its publishers count it."""

    title: str
    images: int
    people: int
    counted_by: str


_ARCFACE_TORCH = "arcface_torch"
KNOWN_DATA: dict[str, KnownData] = {
    "vggface2": KnownData("VGGFace2", 3_141_890, 8_631, "its authors, training part"),
    "ms1mv2": KnownData("MS1MV2", 5_822_653, 85_742, _ARCFACE_TORCH),
    "ms1mv3": KnownData("MS1MV3", 5_179_510, 93_431, _ARCFACE_TORCH),
    "webface4m": KnownData("WebFace4M", 4_235_242, 205_990, _ARCFACE_TORCH),
    "webface12m": KnownData("WebFace12M", 12_720_066, 617_970, _ARCFACE_TORCH),
    "webface42m": KnownData("WebFace42M", 42_474_557, 2_059_906, _ARCFACE_TORCH),
}

# What the built-in recipes are made for, where that is a public set; others that do come after it.
_OF_RECIPE: dict[str, tuple[str, ...]] = {
    "vggface2-sfnet20": ("vggface2",),
    "vggface2-sfnet64": ("vggface2",),
    "ms1mv3-iresnet100": ("ms1mv3",),
    "webface-iresnet100": ("webface12m", "webface4m", "webface42m"),
}


def known_data_of(recipe: str) -> tuple[str, ...]:
    """The keys in `KNOWN_DATA` of the sets for a built-in recipe, the one it is made for first.

    Empty if it is made for none of them.
    """
    return _OF_RECIPE.get(recipe, ())
