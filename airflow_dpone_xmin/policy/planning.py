"""Columns by the type table: what each column of a relation becomes, and whether the key as a whole may be one.

``policy/types.py`` decides the type; here come declared lengths and precisions, contracts, overrides and keys. Pure: imports contracts
and its sibling modules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from airflow_dpone_xmin.contracts.columns import ColumnPlan, Family, SourceColumn
from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.policy.limits import folded
from airflow_dpone_xmin.policy.overrides import widen
from airflow_dpone_xmin.policy.types import CANONICAL, TYPES, TypeRule, Verdict, decide, kind_of

#: Clustered index key of SQL Server, bytes (SQL Server, "Maximum capacity specifications").
MAX_KEY_BYTES = 900
#: ``nvarchar(n)`` counts UTF-16 code units; over this it must be ``nvarchar(max)``.
MAX_NVARCHAR = 4000
MAX_DECIMAL = 38
RESERVED_PREFIX = "__dpone__"


def plan_column(column: SourceColumn, *, key: bool, text_contract: bool, override: str | None, ordinal: int) -> ColumnPlan:
    """Decide how *column* is carried.

    :param key: whether it belongs to the unique key.
    :param text_contract: whether ``schema_contract.columns.<name>.type: string`` authorises PostgreSQL's text form.
    :param override: ``physical_design.columns.<name>.target_type.mssql``; must hold every value that the column can.
    :param ordinal: 0-based position in the projection.
    :raises XminError: ``DPONE_TYPE_UNSUPPORTED``, ``DPONE_TYPE_LOSSY``, ``DPONE_KEY_INVALID`` or ``DPONE_COLUMN_RESERVED``.
    """
    if folded(column.name).startswith(RESERVED_PREFIX):
        raise XminError(
            "DPONE_COLUMN_RESERVED",
            f"Column {column.name!r} starts with the reserved {RESERVED_PREFIX!r}.",
            details={"column": column.name},
        )
    rule = _rule(column)
    if key:
        plan = _plan_key(column, rule, text_contract=text_contract, ordinal=ordinal)
    elif text_contract and not _natural_text(rule):
        plan = _base_plan(column, CANONICAL, key=False, ordinal=ordinal)
    else:
        plan = _plan_value(column, rule, ordinal=ordinal)
    if override is not None:
        plan = widen(plan, override)
    if key and plan.family is Family.TEXT and plan.max_units is None:
        _refuse_key(column, "unbounded text needs a target type override nvarchar(n)")
    return plan


def plan_columns(
    columns: Sequence[SourceColumn], *, key: Sequence[str], string_columns: Collection[str] = (), overrides: Mapping[str, str] | None = None
) -> tuple[ColumnPlan, ...]:
    """Plan all columns of a relation in source order and check the key as a whole.

    :param key: unique key columns in authored order.
    :param string_columns: columns authorised as canonical text.
    :param overrides: column → SQL Server type.
    :raises XminError: as :func:`plan_column` and :func:`check_key`; ``DPONE_COLUMN_AMBIGUOUS``; ``postgres_source.projection_invalid``
        when a contract or an override names no column.
    """
    overrides = overrides or {}
    names = [column.name for column in columns]
    _refuse_twins(names)
    for kind, wanted in (("schema_contract", set(string_columns)), ("physical_design", set(overrides))):
        unknown = sorted(wanted - set(names))
        if unknown:
            raise XminError(
                "postgres_source.projection_invalid",
                f"{kind} names {', '.join(map(repr, unknown))}, which the source relation does not have.",
                hint="Remove it from the manifest, or create the column at the source first. Where a manifest names several tables, "
                "what is meant for one of them belongs into its entry under `schemas`.",
                details={"columns": unknown},
            )
    plans: list[ColumnPlan] = []
    refusals: list[XminError] = []
    for ordinal, column in enumerate(columns):
        contract, override = column.name in string_columns, overrides.get(column.name)
        try:
            plans.append(plan_column(column, key=column.name in key, text_contract=contract, override=override, ordinal=ordinal))
        except XminError as refusal:
            refusals.append(refusal)
    if refusals:
        raise _all_of(refusals)
    check_key(plans, key)
    return tuple(plans)


def check_key(plans: Sequence[ColumnPlan], key: Sequence[str]) -> int:
    """Check that *key* names distinct, existing, non-null columns whose total width fits a SQL Server index key.

    :param plans: planned columns of the relation.
    :param key: key columns in authored order.
    :returns: width of the key in bytes, two per UTF-16 unit.
    :raises XminError: ``DPONE_KEY_INVALID``.
    """
    by_name = {plan.name: plan for plan in plans}
    if not key or len(set(key)) != len(key):
        raise XminError("DPONE_KEY_INVALID", "The unique key is empty or repeats a column.", details={"key": list(key)})
    for name in key:
        if name not in by_name:
            raise XminError("DPONE_KEY_INVALID", f"Key column {name!r} does not exist at the source.", details={"column": name})
        if by_name[name].nullable:
            raise XminError(
                "DPONE_KEY_INVALID",
                f"Key column {name!r} ({by_name[name].source_type}) may be NULL at the source.",
                hint="Declare it NOT NULL at the source, or choose another key.",
                details={"column": name, "type": by_name[name].source_type},
            )
    widths = {name: _key_width(by_name[name]) for name in key}
    total = sum(widths.values())
    if total > MAX_KEY_BYTES:
        raise XminError(
            "DPONE_KEY_INVALID",
            f"The key takes {total} bytes on SQL Server; an index key holds {MAX_KEY_BYTES}.",
            details={"bytes": widths, "limit": MAX_KEY_BYTES},
        )
    return total


def _all_of(refusals: Sequence[XminError]) -> XminError:
    """Every refused column in one error, under the code of the first: nobody has to come back once per column."""
    first, *others = refusals
    if not others:
        return first
    return XminError(
        first.code,
        " ".join(refusal.message for refusal in refusals),
        hint=" ".join(dict.fromkeys(refusal.hint for refusal in refusals)),
        details={"columns": [{"code": refusal.code, **refusal.details} for refusal in refusals]},
    )


def _rule(column: SourceColumn) -> TypeRule:
    rule = decide(column)
    if rule is None:
        _refuse_type(column, "this version does not know the type", contract=False)
    if rule.verdict is Verdict.REFUSED:
        _refuse_type(column, rule.why, contract=False)
    return rule


def _natural_text(rule: TypeRule) -> bool:
    """A text type under a text contract is what it is; a cast would take the padding from ``char``."""
    return rule.verdict is Verdict.CARRIED and rule.family is Family.TEXT


def _plan_value(column: SourceColumn, rule: TypeRule, *, ordinal: int) -> ColumnPlan:
    if rule.verdict is Verdict.TEXT:
        _refuse_type(column, rule.why)
    if rule.family is Family.DECIMAL:
        return _plan_decimal(column, rule, ordinal=ordinal)
    plan = _base_plan(column, rule, key=False, ordinal=ordinal)
    length = _declared_length(column)
    if plan.family is not Family.TEXT:
        return plan
    # Every character may need two UTF-16 units, so that twice the declared length never fails to fit.
    if length is not None and 2 * length <= MAX_NVARCHAR:
        return replace(plan, mssql_type=f"nvarchar({2 * length})", max_units=2 * length)
    return replace(plan, mssql_type="nvarchar(max)")


def _plan_key(column: SourceColumn, rule: TypeRule, *, text_contract: bool, ordinal: int) -> ColumnPlan:
    if rule.key_bytes is None:
        _refuse_key(column, "the type cannot be a key")
    if text_contract and rule.family is not Family.TEXT:
        _refuse_key(column, "canonical text cannot be a key")
    if not column.deterministic:
        _refuse_key(column, "its collation calls different texts equal, the target's does not")
    plan = _base_plan(column, rule, key=True, ordinal=ordinal)
    if plan.family is not Family.TEXT:
        return plan
    length = _declared_length(column)
    # A key keeps its declared length, which a value guard holds it to in UTF-16 units: twice the length would not fit the index.
    if length is not None and length <= MAX_NVARCHAR:
        return replace(plan, mssql_type=f"nvarchar({length})", max_units=length)
    return replace(plan, mssql_type="nvarchar(max)")


def _plan_decimal(column: SourceColumn, rule: TypeRule, *, ordinal: int) -> ColumnPlan:
    size = _numeric_size(column)
    if size is None:
        _refuse_type(column, "it has no declared precision")
    precision, scale = size
    if precision > MAX_DECIMAL:
        _refuse_type(column, f"it needs {precision} digits and SQL Server holds {MAX_DECIMAL}")
    plan = _base_plan(column, rule, key=False, ordinal=ordinal)
    suffix = f"({precision},{scale})"
    return replace(plan, mssql_type=f"decimal{suffix}", embedded_type=f"numeric{suffix}", precision=precision, scale=scale)


def _base_plan(column: SourceColumn, rule: TypeRule, *, key: bool, ordinal: int) -> ColumnPlan:
    assert rule.family is not None  # refused types were refused
    return ColumnPlan(
        name=column.name,
        family=rule.family,
        source_type=column.type_name,
        nullable=column.nullable,
        key=key,
        cast_to_text=rule.cast,
        mssql_type=rule.mssql,
        embedded_type=rule.embedded,
        ordinal=ordinal,
        built_in=kind_of(column) is None,
    )


def _declared_length(column: SourceColumn) -> int | None:
    """Declared characters of ``varchar(n)`` and ``char(n)``; typmod is n plus the 4 bytes of a varlena header."""
    return column.typmod - 4 if column.base_type in ("varchar", "bpchar") and column.typmod > 4 else None


def _numeric_size(column: SourceColumn) -> tuple[int, int] | None:
    """Precision and scale that hold every value of ``numeric(p,s)``; None when undeclared.

    Since PostgreSQL 15 the scale is an 11-bit signed number: it may be negative (more digits before the point) or exceed the precision.
    """
    if column.typmod < 4:
        return None
    modifier = column.typmod - 4
    precision, scale = (modifier >> 16) & 0xFFFF, ((modifier & 0x7FF) ^ 1024) - 1024
    if scale < 0:
        return precision - scale, 0
    return max(precision, scale), scale


def _key_width(plan: ColumnPlan) -> int:
    if plan.family is Family.TEXT:
        return 2 * (plan.max_units or 0)
    fixed = {rule.family: rule.key_bytes for rule in TYPES.values() if rule.key_bytes}
    return fixed[plan.family] or 0


def _refuse_twins(names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        twin = seen.setdefault(folded(name), name)
        if twin != name:
            raise XminError(
                "DPONE_COLUMN_AMBIGUOUS",
                f"Columns {twin!r} and {name!r} may be one name under a collation of SQL Server.",
                details={"columns": [twin, name]},
            )


def _refuse_type(column: SourceColumn, why: str, *, contract: bool = True) -> NoReturn:
    hint = (
        f"Authorise canonical text with `schema_contract.columns.{column.name}.type: string`, or drop the column from the source table."
        if contract
        else "No contract admits the type; change the column at the source."
    )
    raise XminError(
        "DPONE_TYPE_UNSUPPORTED",
        f"Column {column.name!r} has type {column.type_name}: {why}.",
        hint=hint,
        details={"column": column.name, "type": column.type_name, "kind": kind_of(column) or "built-in"},
    )


def _refuse_key(column: SourceColumn, why: str) -> NoReturn:
    raise XminError(
        "DPONE_KEY_INVALID",
        f"Key column {column.name!r} has type {column.type_name}: {why}.",
        details={"column": column.name, "type": column.type_name},
    )
