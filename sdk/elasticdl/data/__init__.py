"""Data: readers that list shards from an index and read the records of a range, and the codecs beneath them."""

from __future__ import annotations

from elasticdl.data.csv_reader import CSVDataReader
from elasticdl.data.custom_reader import CustomDataReader, TaskView
from elasticdl.data.errors import CorruptDataError, DataError, ReaderParamsError
from elasticdl.data.example import decode_example
from elasticdl.data.factory import columns_of, create_data_reader, params_like, with_columns
from elasticdl.data.images import decode_image
from elasticdl.data.params import TRAINED_COLUMNS, parse_reader_params
from elasticdl.data.reader import DataReader, Metadata, RecordSpec, Shard, ShardLike
from elasticdl.data.recordio_reader import RecordIODataReader
from elasticdl.data.tables import write
from elasticdl.data.tfrecord_reader import TFRecordDataReader

__all__ = [
    "TRAINED_COLUMNS",
    "CSVDataReader",
    "CorruptDataError",
    "CustomDataReader",
    "DataError",
    "DataReader",
    "Metadata",
    "ReaderParamsError",
    "RecordIODataReader",
    "RecordSpec",
    "Shard",
    "ShardLike",
    "TFRecordDataReader",
    "TaskView",
    "columns_of",
    "create_data_reader",
    "decode_example",
    "decode_image",
    "params_like",
    "parse_reader_params",
    "with_columns",
    "write",
]
