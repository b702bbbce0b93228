"""Several record batches decoded at once, into one set of columns: one call of the compiled loops however small the batches are."""

from __future__ import annotations

from collections.abc import Sequence

from chaffinch.records.batch_codec import decode
from chaffinch.records.batch_header import BatchView
from chaffinch.records.columns import RecordColumns
from chaffinch.records.old_formats import OldBatch


def decode_batches(batches: Sequence[BatchView]) -> RecordColumns:
    """The records of all batches, in order, copied. Otherwise as `batch_codec.decode`."""
    return RecordColumns.concat([view.columns if isinstance(view, OldBatch) else decode(view) for view in batches])
