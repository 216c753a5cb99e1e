"""The error codes of a campaign, part of the one table in ``contracts/codes.py``: code → (meaning, hint, retryable). Imports nothing."""

from __future__ import annotations

CAMPAIGN_CODES: dict[str, tuple[str, str, bool]] = {
    "campaign.plan_invalid": (
        "The campaign's plan does not cut the source into adjacent, complete, indexable ranges.",
        "Correct `sink.strategy.backfill.chunk`; `dpone-xmin campaign plan` shows the ranges without touching the target.",
        False,
    ),
    "campaign.rows_outside_range": (
        "The source has rows outside the authored range.",
        "Widen `from` and `to` so that they cover every row, or use `kind: ordered`.",
        False,
    ),
    "campaign.plan_changed": (
        "The campaign was opened with another plan, route or authority.",
        "Resume with the manifest it was opened with; if the change is meant, abandon it and start one with a new handoff_id.",
        False,
    ),
    "campaign.not_open": (
        "There is no open campaign for this handoff and target.",
        "Open it with `dpone-xmin campaign open`; after an abandoned one use a new handoff_id.",
        False,
    ),
    "campaign.target_fenced": (
        "A campaign is filling this target; nothing else may write or replace it.",
        "Let the campaign publish, or abandon it with its own manifest.",
        False,
    ),
    "campaign.target_not_empty": (
        "An in-place campaign needs an empty live table.",
        "Use `publication: {mode: shadow_swap}`, which retains the old table as a backup, or empty the table yourself.",
        False,
    ),
    "campaign.shadow_refused": (
        "Something of the live table does not follow a rename and cannot be replayed on the shadow.",
        "Remove what is named, or load in place.",
        False,
    ),
    "campaign.shadow_changed": (
        "The shadow table is missing, not marked as this campaign's, or differs from the live table.",
        "Abandon the campaign and start one with a new handoff_id.",
        False,
    ),
    "campaign.projection_changed": (
        "The source's columns, keys or partitions are no longer those of the anchor.",
        "Abandon the campaign and start one with a new handoff_id.",
        False,
    ),
    "campaign.source_lags": (
        "The source does not yet show everything that the campaign's anchor saw.",
        "Wait for the replica, or read from the server that the campaign began with.",
        True,
    ),
    "campaign.lease_lost": (
        "Another lane took the chunk over while this one worked; nothing was committed.",
        "Nothing is to be done: the lane goes on with another chunk.",
        True,
    ),
    "campaign.lane_failed": (
        "A lane ended without finishing.",
        "Run the lanes again: committed chunks are kept, and the rest are taken up.",
        True,
    ),
    "campaign.incomplete": ("Chunks are not committed yet.", "Run the lanes until `dpone-xmin campaign status` shows none left.", True),
    "campaign.stalled": (
        "Chunks remain, no lane holds a live lease, and nothing has moved for the stall limit.",
        "Look at the lanes' logs, then run them again: committed chunks are kept.",
        False,
    ),
    "campaign.count_mismatch": (
        "The filled table does not hold exactly the rows of the committed chunks.",
        "Somebody else wrote to it: abandon the campaign and start one with a new handoff_id.",
        False,
    ),
    "campaign.key_not_unique": (
        "The filled table holds a key twice.",
        "Correct the keys at the source, abandon the campaign and start one with a new handoff_id.",
        False,
    ),
}
