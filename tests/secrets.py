"""Planted secrets: distinctive values wherever a secret or a business value may live, and one place where every output is searched."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.world import World

PASSWORDS = {name: f"pw-{name}-Zq7Xw" for name in ("reader", "writer", "owner", "wrong")}
TOKEN = "tok-Ab9Kd2Vn"
VALUE = "val-Qm4Rt8"
NUMBER = 730941286557123
SECRETS = (*PASSWORDS.values(), TOKEN, VALUE, str(NUMBER))

#: A text key, a text and a number, all planted; the first value of each row is unique, ``note`` is not.
TABLE = (
    "CREATE TABLE orders (code varchar(60) PRIMARY KEY, note text, amount bigint NOT NULL, at timestamp)",
    f"INSERT INTO orders SELECT '{VALUE}-' || g, '{VALUE} note ' || g, {NUMBER}000 + g, now() FROM generate_series(1, 20) g",
)


def unique_amount(world: World) -> str:
    """A unique index of the target's own: the server refuses a second row of one amount, and quotes it."""
    return f"CREATE UNIQUE INDEX ux_amount ON {world.target_name} (amount) WHERE __dpone__deleted_at IS NULL"


@dataclass
class Sink:
    """Everything that anybody could read afterwards."""

    caplog: pytest.LogCaptureFixture
    secrets: list[str] = field(default_factory=lambda: list(SECRETS))
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.caplog.set_level(logging.DEBUG)  # the root: whatever any library logs

    def key(self, private: Path) -> None:
        """The private key's material is a secret: its file's lines, but for the PEM frame."""
        self.secrets += [line for line in private.read_text().split() if len(line) > 20]

    def take(self, *texts: Any) -> None:
        self.texts += [str(text) for text in texts]

    def fault(self, error: BaseException) -> None:
        """An exception as every printer sees it: chain, context, arguments."""
        self.take(repr(error), error.args, "".join(traceback.format_exception(error)))
        if hasattr(error, "to_dict"):
            self.take(error.to_dict())

    def rows(self, world: World) -> None:
        """All catalog tables: evidence, audit and state hold no value and no credential."""
        schemas = (world.target.layout(world.table).state.schema, "dbo")
        for schema in schemas:
            names = world.target.rows(f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{schema}'")
            assert names
            for (name,) in names:
                self.take(*world.target.rows(f'SELECT * FROM "{schema}"."{name}"'))

    def files(self, directories: Iterable[Path], *, but: Iterable[Path] = ()) -> None:
        """Every file that the product wrote and kept, except those that are secret by purpose."""
        for directory in directories:
            for path in directory.rglob("*"):
                if path.is_file() and path not in but:
                    self.take(path.name, path.read_bytes().decode("utf-8", "replace"))

    def search(self, *, expected: Iterable[str]) -> None:
        """No secret anywhere; but what was expected to be told was told, so that the search was not of nothing."""
        text = "\n".join([*self.texts, self.caplog.text])
        for word in expected:
            assert word in text, f"{word} was never told"
        found = [secret for secret in self.secrets if secret in text]
        assert not found, [text[max(0, text.index(secret) - 300) : text.index(secret) + 60] for secret in found]
