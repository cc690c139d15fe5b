from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tensor(_message.Message):
    __slots__ = ("dtype", "tensor_shape", "tensor_content", "float_val")
    class Shape(_message.Message):
        __slots__ = ("dim", "unknown_rank")
        class Dim(_message.Message):
            __slots__ = ("size",)
            SIZE_FIELD_NUMBER: _ClassVar[int]
            size: int
            def __init__(self, size: _Optional[int] = ...) -> None: ...
        DIM_FIELD_NUMBER: _ClassVar[int]
        UNKNOWN_RANK_FIELD_NUMBER: _ClassVar[int]
        dim: _containers.RepeatedCompositeFieldContainer[Tensor.Shape.Dim]
        unknown_rank: bool
        def __init__(self, dim: _Optional[_Iterable[_Union[Tensor.Shape.Dim, _Mapping]]] = ..., unknown_rank: bool = ...) -> None: ...
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_SHAPE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_CONTENT_FIELD_NUMBER: _ClassVar[int]
    FLOAT_VAL_FIELD_NUMBER: _ClassVar[int]
    dtype: int
    tensor_shape: Tensor.Shape
    tensor_content: bytes
    float_val: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, dtype: _Optional[int] = ..., tensor_shape: _Optional[_Union[Tensor.Shape, _Mapping]] = ..., tensor_content: _Optional[bytes] = ..., float_val: _Optional[_Iterable[float]] = ...) -> None: ...

class IndexedSlices(_message.Message):
    __slots__ = ("concat_tensors", "ids")
    CONCAT_TENSORS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    concat_tensors: Tensor
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, concat_tensors: _Optional[_Union[Tensor, _Mapping]] = ..., ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("version", "dense_parameters", "embedding_tables")
    class DenseParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    class EmbeddingTablesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: IndexedSlices
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[IndexedSlices, _Mapping]] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DENSE_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_TABLES_FIELD_NUMBER: _ClassVar[int]
    version: int
    dense_parameters: _containers.MessageMap[str, Tensor]
    embedding_tables: _containers.MessageMap[str, IndexedSlices]
    def __init__(self, version: _Optional[int] = ..., dense_parameters: _Optional[_Mapping[str, Tensor]] = ..., embedding_tables: _Optional[_Mapping[str, IndexedSlices]] = ...) -> None: ...

class PullDenseParametersRequest(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class PullDenseParametersResponse(_message.Message):
    __slots__ = ("initialized", "dense_parameters")
    class DenseParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Tensor
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    DENSE_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    initialized: bool
    dense_parameters: _containers.MessageMap[str, Tensor]
    def __init__(self, initialized: bool = ..., dense_parameters: _Optional[_Mapping[str, Tensor]] = ...) -> None: ...

class PullEmbeddingTableRequest(_message.Message):
    __slots__ = ("name", "indices")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    name: str
    indices: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., indices: _Optional[_Iterable[int]] = ...) -> None: ...

class EmbeddingTableInfo(_message.Message):
    __slots__ = ("name", "dim", "initializer")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    name: str
    dim: int
    initializer: str
    def __init__(self, name: _Optional[str] = ..., dim: _Optional[int] = ..., initializer: _Optional[str] = ...) -> None: ...

class EmbeddingTableInfos(_message.Message):
    __slots__ = ("embedding_table_infos",)
    EMBEDDING_TABLE_INFOS_FIELD_NUMBER: _ClassVar[int]
    embedding_table_infos: _containers.RepeatedCompositeFieldContainer[EmbeddingTableInfo]
    def __init__(self, embedding_table_infos: _Optional[_Iterable[_Union[EmbeddingTableInfo, _Mapping]]] = ...) -> None: ...

class PushGradientsResponse(_message.Message):
    __slots__ = ("accepted", "version")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    version: int
    def __init__(self, accepted: bool = ..., version: _Optional[int] = ...) -> None: ...
