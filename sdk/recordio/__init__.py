"""Reads and writes RecordIO files: ``Writer``, ``Index``, ``Scanner``; the codec is ``elasticdl.data.recordio``."""

from elasticdl.data.recordio import Index, Scanner, Writer

__all__ = ["Index", "Scanner", "Writer"]
