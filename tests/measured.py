"""What a run costs its process, and the wide table that it is measured on."""

from __future__ import annotations


def wide_table(rows: int) -> tuple[str, ...]:
    """``orders``: 20 columns of every common type, about 250 bytes a row."""
    return (
        "CREATE TABLE orders (id bigint PRIMARY KEY, a integer, b integer, c numeric(12,2), d double precision, e text, f text,"
        " g varchar(30), h date,"
        " i timestamp, j timestamptz, k boolean, l uuid, m bytea, n smallint, o real, p text, q bigint, r numeric(20,4), s time)",
        "INSERT INTO orders SELECT g, g, g % 7, g * 1.01, g / 3.0, 'text of row ' || g,"
        " md5(g::text), 'c' || g, date '2024-01-01' + g % 300, now(), now(),"
        " g % 2 = 0, '00000000-0000-4000-8000-000000000000',"
        " decode(md5(g::text), 'hex'), g % 100, g, repeat('x', 40), g * 1000, g * 0.0001, '12:00:00'"
        f" FROM generate_series(1, {rows}) g",
    )


def resident(process: int | str = "self") -> tuple[int, int]:
    """Resident and greatest resident bytes of a process, this one unless its id is given."""
    with open(f"/proc/{process}/status") as status:
        found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in status if line.startswith(("VmRSS", "VmHWM"))}
    return found["VmRSS"], found["VmHWM"]


def idle() -> int:
    """Resident bytes now; the greatest resident size starts anew."""
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    return resident()[0]
