"""Re-exports the RecordIO reader at its original import path."""

from elasticdl.data.recordio_reader import RecordIODataReader

__all__ = ["RecordIODataReader"]
