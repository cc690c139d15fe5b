"""The data of a job: its readers and the pipelines of minibatches, one for each mode, made when they are needed."""

from __future__ import annotations

from elasticdl.data import DataReader, create_data_reader, params_like
from elasticdl.modes import Mode
from elasticdl_core.job import JobSpec, JobType
from elasticdl_worker.trainers.framework import Framework, MinibatchSource
from elasticdl_worker.user_code import ModelModule

_MODES = {
    JobType.TRAINING: Mode.TRAINING,
    JobType.EVALUATION: Mode.EVALUATION,
    JobType.PREDICTION: Mode.PREDICTION,
}


class JobSources:
    """Readers and pipelines.

    Args:
        framework: of the job's model.
        spec: the job.
        module: the user's module.

    Attributes:
        main: the mode of the job itself.
    """

    def __init__(self, framework: Framework, spec: JobSpec, module: ModelModule) -> None:
        self._framework = framework
        self._spec = spec
        self._module = module
        self._readers: dict[Mode, DataReader] = {}
        self._sources: dict[Mode, MinibatchSource] = {}
        self.main = _MODES[spec.type]

    def reader(self, mode: Mode) -> DataReader:
        """The reader of a mode's data."""
        if mode not in self._readers:
            spec = self._spec
            origins = {
                Mode.TRAINING: spec.training_data,
                Mode.EVALUATION: spec.validation_data,
                Mode.PREDICTION: spec.prediction_data,
            }
            params = spec.data_reader_params
            if mode is not self.main:
                params = params_like(self.reader(self.main), params)
            with self._module.guard("custom_data_reader"):
                self._readers[mode] = create_data_reader(
                    origins[mode], spec.records_per_task, params, self._module.custom_data_reader,
                    predicting=mode is Mode.PREDICTION,
                )  # fmt: skip
        return self._readers[mode]

    def source(self, mode: Mode) -> MinibatchSource:
        """The minibatches of a mode."""
        if mode not in self._sources:
            self._sources[mode] = self.make_source(mode, self._spec.minibatch_size)
        return self._sources[mode]

    def make_source(self, mode: Mode, minibatch_size: int) -> MinibatchSource:
        """Makes another pipeline of a mode, with minibatches of its own size."""
        return self._framework.make_source(self.reader(mode), self._module, str(mode), minibatch_size)
