"""The features of a call and their values: what a covering array combines, and how a row of it becomes a Problem.

A value has a name and alternatives that are as hard in the same way: "one query, many keys" is 520 keys once and 5000
another time. Coverage counts the names; the alternatives take turns.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from verification.problems import LAYOUTS, MASKS

# Some fields of a Problem and what they are.
Alternative = dict[str, Any]


def _fields(names: Sequence[str], values: Mapping[str, Sequence[Sequence[Any]]]) -> dict[str, list[Alternative]]:
    return {
        label: [dict(zip(names, value, strict=True)) for value in alternatives]
        for label, alternatives in values.items()
    }


def _single(name: str, values: Mapping[str, Sequence[Any]]) -> dict[str, list[Alternative]]:
    return _fields((name,), {label: [(value,) for value in alternatives] for label, alternatives in values.items()})


_LENGTHS = _fields(
    ("queries", "keys"),
    {
        "one key": [(1, 1), (2, 1), (3, 1)],
        "one query": [(1, 2), (1, 65), (1, 129), (1, 300)],
        "half a block": [(64, 64), (1, 64), (192, 192)],
        "whole blocks": [(128, 128), (1, 128), (256, 128), (128, 256)],
        "few": [(2, 2), (3, 5), (2, 3), (5, 9)],
        "fewer keys": [(3, 2), (5, 3), (129, 65), (40, 20)],
        "past a block": [(129, 129), (193, 193), (257, 257)],
        "more keys": [(65, 130), (17, 40), (2, 130), (33, 97)],
        "many queries": [(300, 2), (1100, 3), (520, 17)],
        "one query, many keys": [(1, 1024), (1, 520), (1, 5000), (1, 2048)],
        "few queries, many keys": [(3, 1100), (2, 4200), (5, 520)],
        "long": [(130, 300), (132, 520), (260, 140)],
        "longest": [(513, 4097), (520, 4200)],
    },
)
# Its problems take a tenth of a second and more: its pairs are covered, and its triples left to chance.
LONGEST = "longest"

_HEADS = _fields(
    ("heads", "kv_heads"),
    {
        "one": [(1, 1)],
        "several": [(2, 2), (3, 3)],
        "grouped": [(4, 2), (6, 2), (6, 3)],
        "one kv head": [(2, 1), (3, 1), (5, 1)],
        "many": [(8, 2), (9, 9), (12, 4)],
    },
)


# value_dim 0 is head_dim.
_WIDTHS = _fields(
    ("dim", "value_dim"),
    {
        "1": [(1, 0)],
        "odd": [(3, 0), (5, 0), (27, 0)],
        "power of two": [(64, 0), (16, 0), (128, 0), (32, 0)],
        "no power of two": [(72, 0), (65, 0), (96, 0)],
        "up to 256": [(256, 0), (192, 0), (160, 0)],
        "over 256": [(257, 0), (320, 0)],
        "values of another width": [(8, 3), (2, 5), (64, 32), (32, 64), (192, 128)],
    },
)

NOT_SHARED = "along no axis"

FEATURES: dict[str, dict[str, list[Alternative]]] = {
    "lengths": _LENGTHS,
    "widths": _WIDTHS,
    "heads": _HEADS,
    "batch": _single("batch", {"one": [1], "several": [2, 3, 5]}),
    "dtype": _single("dtype", {name: [name] for name in ("float32", "float16", "bfloat16")}),
    "causal": _single("causal", {"no": [False], "yes": [True]}),
    "mask": _single("mask", {"none": [None], **{name: [name] for name in MASKS}}),
    "mask shared": _single(
        "mask_shared",
        {
            NOT_SHARED: [""],
            "by samples": ["b"],
            "by heads": ["h"],
            "by queries": ["q"],
            "along two axes": ["hq", "bh", "bq"],
            "by all": ["bhq"],
        },
    ),
    "scores": _single(
        "scores",
        {
            "normal": ["normal"],
            "equal": ["zero", "ties"],
            "large": ["large"],
            "in steps": ["falling", "rising", "alternating"],
            "very negative": ["very negative"],
            "very positive": ["very positive"],
            "at the limit of float16": ["over 65504", "far below"],
        },
    ),
    "scale": _single("scale", {"default": [None], "1": [1.0], "0.25": [0.25], "negative": [-0.5], "0": [0.0]}),
    "layout": _single("layout", {name: [name] for name in LAYOUTS}),
}
# Which fields each feature has.
FIELDS = {feature: tuple(next(iter(values.values()))[0]) for feature, values in FEATURES.items()}
