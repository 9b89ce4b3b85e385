"""Rows of a table picked, grouped and read out, with the types that pandas leaves open."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pandas as pd


def where(rows: pd.DataFrame, condition: Any) -> pd.DataFrame:
    """The rows for which a boolean column holds."""
    return cast(pd.DataFrame, rows.loc[condition])


def having(rows: pd.DataFrame, **values: object) -> pd.DataFrame:
    """The rows whose columns equal these values."""
    for column, value in values.items():
        rows = where(rows, rows[column] == value)
    return rows


def groups(rows: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Rows that agree in all of these columns, in order of appearance; an absent value is a value as well."""
    for key, group in rows.groupby(list(by), sort=False, dropna=False):
        yield cast(tuple[Any, ...], key), group


def unique(rows: pd.DataFrame, column: str) -> list[Any]:
    return list(dict.fromkeys(rows[column]))


def records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], rows.to_dict("records"))
