"""What SQL Server sets a limit to, known from declarations before anything moves: columns, row size, and names that it may call equal.

The embedded engine stands in for SQL Server, so its routes keep the same limits. Pure: imports contracts only.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from airflow_dpone_xmin.contracts.columns import ColumnPlan, Family
from airflow_dpone_xmin.contracts.route import DeleteMode

MAX_COLUMNS = 1024
#: Bytes of a row that cannot leave its page: fixed-size columns, 4 of a header, the NULL bitmap with 2 of its own.
MAX_ROW_BYTES = 8060
_BYTES = {
    Family.SMALLINT: 2,
    Family.INTEGER: 4,
    Family.BIGINT: 8,
    Family.REAL: 4,
    Family.DOUBLE: 8,
    Family.UUID: 16,
    Family.DATE: 3,
    Family.TIME: 5,
    Family.TIMESTAMP: 8,
    Family.TIMESTAMPTZ: 10,
}
#: Load id and two instants; the instant of a delete.
_LINEAGE_COLUMNS, _LINEAGE_BYTES, _DELETED_BYTES = 3, 16 + 8 + 8, 8


def limit_violations(columns: Sequence[ColumnPlan], mode: DeleteMode) -> Iterator[str]:
    """Limits of SQL Server that the target table of these columns would break, as sentences."""
    count = len(columns) + _LINEAGE_COLUMNS + mode.has_timestamp + mode.has_flag
    if count > MAX_COLUMNS:
        yield f"{count} columns, this product's among them, and SQL Server holds {MAX_COLUMNS:,}"
    bits = mode.has_flag + sum(plan.family is Family.BOOLEAN for plan in columns)
    fixed = sum(map(_fixed_bytes, columns)) + _LINEAGE_BYTES + _DELETED_BYTES * mode.has_timestamp + -(-bits // 8)
    size = 4 + fixed + 2 + -(-count // 8)
    if size > MAX_ROW_BYTES:
        yield f"a row takes {size} bytes in its fixed-size columns alone, and SQL Server holds {MAX_ROW_BYTES:,}"


def _fixed_bytes(plan: ColumnPlan) -> int:
    if plan.family is Family.DECIMAL:
        digits = plan.precision or 0
        return 5 if digits <= 9 else 9 if digits <= 19 else 13 if digits <= 28 else 17
    return _BYTES.get(plan.family, 0)


_LETTERS = str.maketrans({"ı": "i", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe"})
_KANA = {code: code - 0x60 for code in range(ord("ァ"), ord("ヶ") + 1)}


def folded(name: str) -> str:
    """Names with one folded form may be one column name on SQL Server, depending on the database's collation.

    Case, accents, width, kana type and trailing spaces fold, and characters without a weight (formats; in older collations everything
    beyond the basic plane) vanish. Coarser than any single collation: what differs here differs everywhere.
    """
    plain = unicodedata.normalize("NFKD", name.casefold()).casefold().translate(_LETTERS).translate(_KANA)
    return "".join(c for c in plain if c <= "\uffff" and unicodedata.category(c) not in ("Mn", "Cf", "Cc")).rstrip(" ")
