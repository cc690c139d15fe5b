"""The original project's datasets: samples by the indexes that a data shard service gives."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Sequence
from typing import Any

from torch.utils.data import Dataset

from elasticai_api.common.data_shard_service import RecordIndexService
from elasticdl_core.errors import InvalidInputError


class IndexedSamples(Dataset[Any]):
    """Samples of a list, one by one as the service says; without a service, by their numbers.

    Args:
        images: the samples.
        data_shard_service: says which one comes next.
    """

    def __init__(self, images: Sequence[Any], data_shard_service: RecordIndexService | None = None) -> None:
        self.data_shard_service = data_shard_service
        self._images = images

    def set_data_shard_service(self, data_shard_service: RecordIndexService) -> None:
        """Sets the service."""
        self.data_shard_service = data_shard_service

    def __len__(self) -> int:
        """Number of samples; with a service there is no saying."""
        return sys.maxsize if self.data_shard_service else len(self._images)

    def __getitem__(self, index: int) -> Any:
        if self.data_shard_service:
            index = self.data_shard_service.fetch_record_index()
        return self._images[index]


ElasticDataset = IndexedSamples
"""By the name that the original's example gives it."""


class _ServedSamples:
    """The attributes that ``ElasticImageFolder`` has before ``torchvision.datasets.ImageFolder``."""

    samples: Sequence[Any]
    _data_shard_service: RecordIndexService | None = None

    def set_data_shard_service(self, data_shard_service: RecordIndexService) -> None:
        """Sets the service that says which sample comes next."""
        self._data_shard_service = data_shard_service

    def __len__(self) -> int:
        """Number of samples; with a service there is no saying."""
        return sys.maxsize if self._data_shard_service else len(self.samples)

    def __getitem__(self, index: int) -> Any:
        if self._data_shard_service:
            index = self._data_shard_service.fetch_record_index()
        return super().__getitem__(index)  # type: ignore[misc]


@functools.cache
def _image_folder() -> type[Any]:
    try:
        datasets = importlib.import_module("torchvision.datasets")
    except ModuleNotFoundError as error:
        raise InvalidInputError("ElasticImageFolder needs torchvision", fix="pip install torchvision") from error
    names = {
        "__module__": __name__,
        "__doc__": "Images in folders named by their class; arguments as for ``torchvision.datasets.ImageFolder``.",
    }
    return type("ElasticImageFolder", (_ServedSamples, datasets.ImageFolder), names)


def __getattr__(name: str) -> Any:
    """``ElasticImageFolder``, which derives from a class of torchvision's, when a script asks for it.

    Raises:
        InvalidInputError: torchvision is not installed.
    """
    if name == "ElasticImageFolder":
        return _image_folder()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
