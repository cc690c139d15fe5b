"""Optimizers, their options, and callbacks."""

from __future__ import annotations

from elasticdl_core.contract.row import Subject, Verdict, rows

_OPTIMIZER, _OPTION, _CALLBACK = Subject.OPTIMIZER, Subject.OPTION, Subject.CALLBACK
_YES, _AS, _NO = Verdict.HONOURED, Verdict.TRANSLATED, Verdict.REFUSED
SUPPORTED = "SGD Adam AdamW Adagrad RMSprop Adadelta Adamax Ftrl"
_USE = f"use one of {', '.join(SUPPORTED.split())}"
_RATE = "give the optimizer a LearningRateSchedule, or use LearningRateScheduler"

OPTIMIZERS = (
    rows(_OPTIMIZER, _AS, SUPPORTED, "is computed by the parameter servers as Keras does it"),
    rows(
        _OPTIMIZER,
        _NO,
        "Nadam Lion Lamb Adafactor Muon ScheduleFreeAdamW",
        "is not among the optimizers of the parameter servers",
        _USE,
    ),
    rows(
        _OPTIMIZER,
        _NO,
        "LossScaleOptimizer",
        "scales the loss, which parameter servers do not do",
        "use the policy mixed_bfloat16, which needs no scaling, and the inner optimizer",
    ),
    rows(_OPTIMIZER, _NO, "MultiOptimizer OptimizerMap", "has several optimizers for one model", _USE),
    rows(
        _OPTIMIZER,
        _NO,
        "Optimizer",
        "has an update of its own, which the parameter servers do not know",
        f"{_USE}; a subclass that changes nothing but the defaults of its arguments works",
    ),
)

OPTIONS = (
    rows(
        _OPTION,
        _AS,
        "learning_rate",
        "as a number or a LearningRateSchedule, which is asked by model version (updates applied so far)",
    ),
    rows(
        _OPTION,
        _AS,
        "momentum nesterov beta_1 beta_2 epsilon amsgrad rho centered initial_accumulator_value learning_rate_power "
        "l1_regularization_strength l2_regularization_strength l2_shrinkage_regularization_strength beta "
        "weight_decay",
        "is an option of the same name of the parameter servers' optimizer",
    ),
    rows(
        _OPTION,
        _AS,
        "clipnorm clipvalue global_clipnorm",
        "is done for each update: by the worker, of rounds of several minibatches by the parameter server (one for "
        "norms)",
    ),
    rows(_OPTION, _YES, "name jit_compile is_legacy_optimizer", "changes no result"),
    rows(
        _OPTION,
        _NO,
        "use_ema ema_momentum ema_overwrite_frequency",
        "asks for moving averages of the weights, which parameter servers do not keep",
        "leave out use_ema; average the weights of several exports where that is needed",
    ),
    rows(
        _OPTION,
        _NO,
        "loss_scale_factor",
        "asks for loss scaling, which parameter servers do not do",
        "leave it out, and use the policy mixed_bfloat16 instead of mixed_float16",
    ),
    rows(
        _OPTION,
        _NO,
        "gradient_accumulation_steps",
        "asks for gradient accumulation",
        "leave it out; use --use_async=false with --grads_to_wait N, or a larger --minibatch_size",
    ),
    rows(
        _OPTION,
        _NO,
        "adaptive_epsilon",
        "asks for an epsilon that grows, which the parameter servers do not know",
        "leave it out",
    ),
    rows(
        _OPTION,
        _NO,
        "decay",
        "is an option that Keras gave up",
        "use tf.keras.optimizers.schedules.InverseTimeDecay as the learning rate",
    ),
    rows(
        _OPTION, _NO, "learning_rate=callable", "is a function without an argument, which would be asked once", _RATE
    ),
)

CALLBACKS = (
    rows(
        _CALLBACK,
        _YES,
        "elasticdl.callbacks.LearningRateScheduler elasticdl.callbacks.MaxStepsStopping "
        "elasticdl.callbacks.EarlyStopping elasticdl.callbacks.KeepBest elasticdl.callbacks.SavedModelExporter",
        "does what its documentation says",
    ),
    rows(
        _CALLBACK,
        _AS,
        "EarlyStopping",
        "becomes elasticdl.callbacks.EarlyStopping: it counts evaluations, one for each epoch unless "
        "--evaluation_steps is given; `val_loss` is the loss of the evaluation. With restore_best_weights the model "
        "of the best evaluation is exported beside the last one, as `best`",
    ),
    rows(
        _CALLBACK,
        _AS,
        "ModelCheckpoint",
        "becomes elasticdl.callbacks.KeepBest where it has save_best_only: the checkpoint of the best evaluation is "
        "kept and exported as `best`, in the job's formats, and nothing is written to its path. Without "
        "save_best_only, or with save_weights_only, save_freq or initial_value_threshold, it is refused",
    ),
    rows(
        _CALLBACK,
        _AS,
        "LearningRateScheduler",
        "sets the rate of each epoch: `schedule(epoch)` or `schedule(epoch, rate)`; a worker asks it with the epoch "
        "of its minibatch, so that it may be called often, and must depend on its arguments alone",
    ),
    rows(
        _CALLBACK,
        _AS,
        "TerminateOnNaN",
        "is what --on_nan fail does, the default: a loss or a gradient that is no number ends the job",
    ),
    rows(_CALLBACK, _AS, "History ProgbarLogger BaseLogger", "is what every job records and shows by itself"),
    rows(
        _CALLBACK,
        _NO,
        "ReduceLROnPlateau",
        "would change the rate by evaluations, of which workers do not know",
        _RATE,
    ),
    rows(
        _CALLBACK,
        _NO,
        "BackupAndRestore OrbaxCheckpoint",
        "would save one worker's copy of the model",
        "use --checkpoint_steps, --checkpoint_dir and --keep_checkpoint_max; the trained model is exported by itself",
    ),
    rows(
        _CALLBACK,
        _NO,
        "CSVLogger TensorBoard RemoteMonitor",
        "would log what one worker sees",
        "`elasticdl jobs metrics` gives the job's losses and evaluations, `--json` as data",
    ),
    rows(
        _CALLBACK,
        _NO,
        "SwapEMAWeights",
        "needs moving averages of the weights, which parameter servers do not keep",
        "leave it out",
    ),
    rows(
        _CALLBACK,
        _NO,
        "Callback LambdaCallback CallbackList SidecarEvaluatorModelExport",
        "would run in one process of many, on a copy of the model",
        "use what elasticdl.callbacks has; code that must run for each minibatch belongs into `feed` or the model",
    ),
)
