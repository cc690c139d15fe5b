"""The fields of a specification: what they mean, the words and the ranges of numbers that they may be."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from elasticdl_core.pods import PULL_POLICIES, PodRequest, RoleRequest, parse_resources


class JobType(enum.StrEnum):
    """Types of jobs."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"

    @property
    def in_words(self) -> str:
        """With its article, for messages."""
        return f"{'an' if self is JobType.EVALUATION else 'a'} {self} job"


ALL_REDUCE = "AllReduceStrategy"
PARAMETER_SERVERS = "ParameterServerStrategy"
STRATEGIES = ("auto", PARAMETER_SERVERS, ALL_REDUCE)
FRAMEWORKS = ("auto", "tensorflow", "torch")
KERAS_FLAVOURS = ("default", "legacy")
AUTOCASTS = ("off", "bfloat16")
COMPILE_MODES = ("off", "on")
EXPORT_FORMATS = ("auto", "keras", "saved_model", "safetensors", "pt2")
XLA_MODES = ("auto", "on", "off")
WIRE_DTYPES = ("float32", "bfloat16")
OUTPUT_FORMATS = ("npz", "csv", "parquet")
NAN_POLICIES = ("fail", "skip")
NCCL = "nccl"
COLLECTIVES = ("auto", NCCL)
SCRIPT = "__main__"
"""The object of ``model_def`` that stands for the whole file, run as a script."""

WORDS: Mapping[str, tuple[str, ...]] = {
    "framework": FRAMEWORKS,
    "keras": KERAS_FLAVOURS,
    "xla": XLA_MODES,
    "torch_compile": COMPILE_MODES,
    "autocast": AUTOCASTS,
    "on_nan": NAN_POLICIES,
    "wire_dtype": WIRE_DTYPES,
    "distribution_strategy": STRATEGIES,
    "collective": COLLECTIVES,
    "image_pull_policy": PULL_POLICIES,
}
"""Fields that take one of a few words."""
AT_LEAST = {
    "minibatch_size": 1,
    "num_minibatches_per_task": 1,
    "num_epochs": 1,
    "max_steps": 0,
    "shuffle_block": 0,
    "evaluation_steps": 0,
    "log_loss_steps": 1,
    "microbatches": 0,
    "num_ps": 1,
    "grads_to_wait": 1,
    "sync_version_tolerance": 0,
    "get_model_steps": 1,
    "max_staleness": 0,
    "table_admission": 1,
    "table_eviction": 0,
    "table_max_rows": 0,
    "hot_rows_staleness": 0,
    "embedding_threshold_bytes": 0,
    "checkpoint_steps": 0,
    "keep_checkpoint_max": 0,
    "min_workers": 1,
    "max_workers": 1,
    "progress_timeout_s": 1,
    "worker_threads": 0,
    "worker_memory_mib": 0,
    "ps_memory_mib": 0,
    "seed": 0,
}
LEAST_RECORDS = 8
"""An update is not cut into smaller parts unless that is asked for: batch normalisation has little to go by there."""
INT32 = 2**31 - 1
AT_MOST = {
    "minibatch_size": 2**24,
    "num_minibatches_per_task": 2**24,
    "num_epochs": 1_000_000,
    "progress_timeout_s": 30 * 24 * 3600,
    "worker_threads": 1024,
    "worker_memory_mib": 2**24,
    "ps_memory_mib": 2**24,
    "microbatches": 1024,
    "num_ps": 1000,
    "max_staleness": 16,
    "table_admission": 255,
    "table_max_rows": 2**40,
    "hot_rows_staleness": 1000,
    "min_workers": 10_000,
    "max_workers": 10_000,
    "embedding_threshold_bytes": 2**62,
}
OF_UPDATES = (
    "use_async",
    "grads_to_wait",
    "sync_version_tolerance",
    "lr_staleness_modulation",
    "delay_compensation",
    "get_model_steps",
    "max_staleness",
    "wire_dtype",
    "table_admission",
    "table_eviction",
    "table_max_rows",
    "hot_rows_staleness",
)
"""Fields that say how gradients and rows come to parameter servers in training."""
OF_SERVERS = ("num_ps", "embedding_threshold_bytes", *OF_UPDATES, "ps_memory_mib", "ps_resource_request")
"""Fields that mean nothing without parameter servers."""


@dataclass(frozen=True)
class JobFields:
    """Everything that a user says about a job; each field is a flag of the CLI and a field of ``POST /jobs``.

    The model code is either ``model_bundle`` (``sha256:<hex>`` of a zip uploaded to ``PUT /bundles/{digest}``) or
    ``model_zoo`` (a directory that every process of the job can read).

    Attributes:
        model_def: ``file.object`` of the model function or class in the zoo (dots are folders); ``file.__main__``
            runs the file as a script with a training loop of its own.
        name: lower-case letters, digits and dashes; the job's id starts with it.
        type: training, evaluation or prediction.
        model_zoo: directory of model modules on a shared file system.
        model_bundle: digest of the uploaded zip of the zoo.
        script_args: arguments of a script, as a shell would split them.
        model_params: keyword arguments for the model function.
        feed: name of the function that turns raw records into features and labels (``feed`` or ``dataset_fn``).
        loss: name of the loss function.
        optimizer: name of the optimizer function.
        optimizer_params: keyword arguments for the optimizer function, e.g. ``{"lr": 0.01}``.
        eval_metrics_fn: name of the metrics function.
        callbacks: name of the callbacks function.
        custom_data_reader: name of the reader function; empty for a built-in reader, unless the module has one.
        prediction_outputs_processor: name of the processor class.
        framework: ``auto`` (by what the module imports), ``tensorflow`` or ``torch``.
        collate: name of the function that makes a minibatch of samples (PyTorch); without one they are stacked.
        keras: ``default`` (Keras 3) or ``legacy`` (tf_keras).
        training_data: path, directory, glob or URL of the training records.
        validation_data: the same for evaluation.
        prediction_data: the same for prediction.
        data_reader_params: parameters for the data reader.
        minibatch_size: records of one model update, whatever the strategy and the number of workers; with use_async
            off and grads_to_wait N, N workers bring so many each.
        num_minibatches_per_task: minibatches in a task.
        num_epochs: passes over the training data.
        max_steps: stop after exactly that many model updates of this job, whatever it started from; 0 for no limit.
        shuffle: whether the records of an epoch come in random order.
        shuffle_block: records that lie together and stay together when they are shuffled; 0 mixes single ones, as
            well as a full shuffle does. Blocks are for sources where it is expensive to begin reading. They cost
            quality where neighbours are alike: in data sorted by class, the shares of the classes in 256 records vary
            4 times as much with blocks of 32, and 15 times with blocks of 512.
        seed: seeds the order of records and the initial values.
        evaluation_steps: evaluate every N updates; 0 for the end of each epoch only (with validation data).
        log_loss_steps: report the mean loss of every N minibatches of a worker.
        distribution_strategy: ``ParameterServerStrategy``; ``AllReduceStrategy``: every worker holds the model, and
            in training they sum their gradients; or ``auto``: the one that suits the model. Who gives options of
            parameter servers (num_ps, use_async, ...) and no strategy gets parameter servers.
        microbatches: parts of equal size into which ``AllReduceStrategy`` cuts the records of an update for its
            workers, whatever their number: so many can compute, and batch normalisation sees one part at a time; 0 is
            max_workers rounded up to a power of two, but for parts of less than 8 records.
        deterministic: whether the model of ``AllReduceStrategy`` is the same to the last bit whoever did the work;
            if not, a worker computes all its microbatches of an update in one pass, which takes less time.
        collective: what adds the gradients of ``AllReduceStrategy``: ``auto`` does it in the host's memory; ``nccl``
            on CUDA devices, a whole one for each worker, of a model in PyTorch that need not be deterministic.
        num_ps: number of parameter servers.
        use_async: asynchronous SGD, else synchronous.
        grads_to_wait: gradients of a minibatch each that make one synchronous update; with ``AllReduceStrategy`` it
            means a minibatch_size that is so many times larger.
        sync_version_tolerance: how many versions old a gradient may be in synchronous mode.
        lr_staleness_modulation: divide the learning rate by the staleness of the gradient (asynchronous).
        delay_compensation: correct each asynchronous gradient by so many times its size and how far the parameters
            have moved since they were pulled, at most by the gradient itself; 0 is off, 30 to 100 a start.
        get_model_steps: minibatches with one pull and one push for all of them, and local updates in between; their
            summed gradient is one model update (asynchronous).
        max_staleness: how many of its worker's own last updates the parameters of a minibatch may miss, so that pulls
            and pushes overlap with compute; 0 is strictly in order.
        wire_dtype: how embedding rows and their gradients travel, ``float32`` or ``bfloat16``; PS keep float32.
        table_admission: an id gets its embedding row at its N-th gradient; before, it reads as its first value and
            its gradients are dropped. 1 gives every id a row. Counts fade after some million gradients.
        table_eviction: an embedding row without a gradient for N updates leaves (its id may come back and begins
            anew); 0 keeps rows for ever.
        table_max_rows: the rows of an embedding table, over all PS, of which those without a gradient for longest
            leave; 0 for no limit.
        hot_rows_staleness: a worker keeps embedding rows that it sees often, and uses them for at most N of its own
            updates before it pulls them again; 0 pulls every row each time. It saves traffic, not gradients.
        embedding_threshold_bytes: an ``Embedding`` layer larger than this becomes PS-backed.
        eager: run the model eagerly and print every layer's output.
        xla: ``auto`` tries the training step with XLA too and keeps the faster one, ``on`` uses XLA, ``off`` never.
        torch_compile: ``on`` compiles a PyTorch model with torch.compile, and goes on without it, with the reason in
            the log, where that cannot be; ``off`` never.
        autocast: ``bfloat16`` runs a PyTorch model and its loss under torch.autocast; parameters stay float32.
        on_nan: what to do with a minibatch whose loss or gradients are NaN or infinite: ``fail`` ends the job and
            names the records, ``skip`` leaves it out of training and counts its records.
        checkpoint_steps: checkpoint every N updates; 0 for the end of the job only.
        checkpoint_dir: where checkpoints go, also s3://bucket/folder; empty for the job's own directory.
        keep_checkpoint_max: keep the last N; 0 keeps all.
        keep_best: ``METRIC:max`` or ``METRIC:min``, such as ``auc:max``: keep the checkpoint of the evaluation in
            which it was best, whatever keep_checkpoint_max says, and export it beside the last one, as ``best``.
            Training waits for each evaluation. Names like loss and auc say themselves which is better.
        checkpoint_dir_for_init: a checkpoint to start from, or a directory of them: the one that was saved last. May
            be a URL of a store.
        output: where the exported model, or predictions, go, also s3://bucket/folder; empty for the job's artifacts.
        output_format: format of predictions, ``npz``, ``csv`` or ``parquet``; empty to go by the ending of the
            output, else npz.
        export_formats: comma separated: ``auto`` (all of the framework), ``keras``, ``saved_model``, ``safetensors``,
            ``pt2``; empty for no export.
        min_workers: the job starts only when this many fit.
        max_workers: the job never has more.
        priority: higher goes first; -1000 to 1000.
        progress_timeout_s: a worker that holds a task and processes no record of it for so many seconds, or ten times
            its slowest usual minibatch if that is longer, is replaced; a task that holds up three fails the job.
        worker_threads: threads that one operation of the framework may use in a worker; 0 takes the worker's share of
            the machine's cores, and one thread for small PyTorch models where that share is two cores and parameter
            servers want one of them.
        worker_memory_mib: memory limit of a worker in MiB, which the scheduler keeps for it; 0 for none.
        ps_memory_mib: the same of a PS.
        worker_resource_request: what one worker takes. Of an accelerator: ``gpu=0.5`` is a half of one device,
            ``gpu=1`` a whole one; without it a worker sees none. ``memory=4Gi`` is worker_memory_mib. On Kubernetes
            also ``cpu=2`` and ``disk=10Gi``, which its pod requests and may use; all with commas between them.
        ps_resource_request: the same of a parameter server: ``cpu=1,memory=2Gi``. No GPU.
        master_resource_request: the same of the job's master.
        image: on Kubernetes, the image that workers run in, where the cluster's administrator lets jobs name it; it
            has Python and ``elasticdl-train[worker]``.
        image_pull_policy: of that image: ``Always``, ``IfNotPresent`` or ``Never``; empty for the cluster's.
        volume: on Kubernetes, what all processes of the job see besides: ``claim_name=data,mount_path=/mnt/data``,
            and if you like ``sub_path=PATH`` and ``read_only=true``; several with ``;`` between them.
        node_selector: on Kubernetes, labels of the nodes that the job's pods may run on.
        envs: environment variables for the workers.
        labels: free key-value pairs to find the job by.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    model_def: str
    name: str = "job"
    type: JobType = JobType.TRAINING
    model_zoo: str = ""
    model_bundle: str = ""
    script_args: str = ""
    model_params: dict[str, Any] = field(default_factory=dict)
    feed: str = ""
    loss: str = "loss"
    optimizer: str = "optimizer"
    optimizer_params: dict[str, Any] = field(default_factory=dict)
    eval_metrics_fn: str = "eval_metrics_fn"
    callbacks: str = "callbacks"
    custom_data_reader: str = ""
    prediction_outputs_processor: str = "PredictionOutputsProcessor"
    framework: str = "auto"
    collate: str = "collate"
    keras: str = "default"
    training_data: str = ""
    validation_data: str = ""
    prediction_data: str = ""
    data_reader_params: dict[str, Any] = field(default_factory=dict)
    minibatch_size: int = 64
    num_minibatches_per_task: int = 8
    num_epochs: int = 1
    max_steps: int = 0
    shuffle: bool = True
    shuffle_block: int = 0
    seed: int = 0
    evaluation_steps: int = 0
    log_loss_steps: int = 100
    distribution_strategy: str = "auto"
    microbatches: int = 0
    deterministic: bool = True
    collective: str = "auto"
    num_ps: int = 1
    use_async: bool = True
    grads_to_wait: int = 1
    sync_version_tolerance: int = 0
    lr_staleness_modulation: bool = False
    delay_compensation: float = 0.0
    get_model_steps: int = 1
    max_staleness: int = 0
    wire_dtype: str = "float32"
    table_admission: int = 1
    table_eviction: int = 0
    table_max_rows: int = 0
    hot_rows_staleness: int = 0
    embedding_threshold_bytes: int = 2 * 1024 * 1024
    eager: bool = False
    xla: str = "auto"
    torch_compile: str = "off"
    autocast: str = "off"
    on_nan: str = "fail"
    checkpoint_steps: int = 0
    checkpoint_dir: str = ""
    keep_checkpoint_max: int = 3
    keep_best: str = ""
    checkpoint_dir_for_init: str = ""
    output: str = ""
    output_format: str = ""
    export_formats: str = "auto"
    min_workers: int = 1
    max_workers: int = 1
    priority: int = 0
    progress_timeout_s: int = 60
    worker_threads: int = 0
    worker_memory_mib: int = 0
    ps_memory_mib: int = 0
    worker_resource_request: str = ""
    ps_resource_request: str = ""
    master_resource_request: str = ""
    image: str = ""
    image_pull_policy: str = ""
    volume: str = ""
    node_selector: dict[str, str] = field(default_factory=dict)
    envs: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def prediction_format(self) -> str:
        """The format of predictions that was asked for, by name or by the ending of ``output``; empty if none was."""
        return self.output_format or self.output_ending

    @property
    def output_ending(self) -> str:
        """The format that the ending of ``output`` says; empty if it says none."""
        ending = self.output.rstrip("/").rpartition("/")[2].rpartition(".")
        return ending[2].lower() if ending[0] and ending[2].lower() in OUTPUT_FORMATS else ""

    @property
    def has_servers(self) -> bool:
        """Whether there are PS; while the strategy is to be chosen, whether there may be some."""
        return self.distribution_strategy != ALL_REDUCE

    @property
    def by_group(self) -> bool:
        """Whether workers train as a group: each holds the model, and they sum their gradients."""
        return not self.has_servers and self.type is JobType.TRAINING

    @property
    def runs_script(self) -> bool:
        """Whether the model's file is run as a script, which has a training loop of its own."""
        return self.model_def.endswith(f".{SCRIPT}")

    @property
    def microbatches_per_step(self) -> int:
        """Parts that an update of a group is cut into, whatever the number of workers; 1 without a group."""
        if not self.by_group:
            return 1
        records = self.minibatch_size
        parts = self.microbatches or min(1 << (self.max_workers - 1).bit_length(), records // LEAST_RECORDS) or 1
        if self.runs_script and not self.microbatches:  # whose loader has batches of one size
            parts = next(one for one in range(parts, 0, -1) if not records % one)
        return -(-records // -(-records // parts))  # none of which is without records

    @property
    def rounds_of_several(self) -> bool:
        """Whether parameter servers make an update of the gradients of several minibatches."""
        return not (self.by_group or self.use_async) and self.grads_to_wait > 1 and self.type is JobType.TRAINING

    @property
    def microbatch_size(self) -> int:
        """Records in a full part of an update of a group; without a group those of a minibatch."""
        return -(-self.minibatch_size // self.microbatches_per_step)

    @property
    def most_computing(self) -> int:
        """The number of workers that can have a part in the work: of a group no more than an update has parts."""
        return min(self.max_workers, self.microbatches_per_step) if self.by_group else self.max_workers

    @property
    def device_share(self) -> int:
        """Hundredths of a device that one worker takes; 0 for none."""
        return parse_resources(self.worker_resource_request).device_share

    def asked_of(self, role: str) -> RoleRequest:
        """The resources that one process of a role asks for, but for the memory of workers and servers."""
        return parse_resources(getattr(self, f"{role}_resource_request"))

    def pod_of(self, role: str) -> PodRequest:
        """The parts of a process of a role that only a pod has. Its image is the workers', who run the job's code."""
        asked, works = self.asked_of(role), role == "worker"
        return PodRequest(
            self.image if works else "",
            self.image_pull_policy if works else "",
            asked.cpu,
            asked.disk,
            self.volume,
            self.node_selector,
        )

    def memory_of(self, role: str) -> int:
        """The MiB that a process of a role asks for; 0 for none."""
        limits = {"worker": self.worker_memory_mib, "ps": self.ps_memory_mib}
        return limits[role] if role in limits else self.asked_of(role).memory_mib

    @property
    def fuses(self) -> bool:
        """Whether a member of a group computes all its microbatches of an update in one pass."""
        return self.by_group and not self.deterministic

    @property
    def records_per_task(self) -> int:
        """Number of records in a full task, which is whole updates."""
        return self.minibatch_size * self.num_minibatches_per_task


_DEFAULTS = {
    one.name: one.default_factory() if callable(one.default_factory) else one.default
    for one in dataclasses.fields(JobFields)
}


def default_of(name: str) -> Any:
    """The default of a field."""
    return _DEFAULTS[name]


def range_of(name: str) -> tuple[int, int] | None:
    """The least and the greatest value of a field, if it is a whole number."""
    if name == "priority":
        return -1000, 1000
    return (AT_LEAST[name], AT_MOST.get(name, INT32)) if name in AT_LEAST else None
