"""What a PyTorch module can bring: entries, layers, optimizers, schedulers, callbacks, metrics."""

from __future__ import annotations

from elasticdl_core.contract.row import Subject, Verdict, rows

_ENTRY, _LAYER = Subject.TORCH_ENTRY, Subject.TORCH_LAYER
_OPTIMIZER, _SCHEDULER = Subject.TORCH_OPTIMIZER, Subject.TORCH_SCHEDULER
_CALLBACK, _METRIC = Subject.TORCH_CALLBACK, Subject.TORCH_METRIC
_YES, _AS, _NO = Verdict.HONOURED, Verdict.TRANSLATED, Verdict.REFUSED
TORCH_SUPPORTED = "SGD Adam AdamW Adagrad RMSprop Adadelta Adamax NAdam RAdam SparseAdam"
_USE = f"use one of {', '.join(TORCH_SUPPORTED.split())} of torch.optim"

TORCH = (
    rows(
        _ENTRY,
        _AS,
        "optimizer",
        "returns a function of the parameters, takes them (or the model) itself, or returns an optimizer of the "
        "model's parameters; the parameter servers carry it out, with --local PyTorch itself",
    ),
    rows(
        _ENTRY,
        _YES,
        "feed",
        "gets the records of a task and returns samples, a torch Dataset, a DataLoader, or "
        "elasticdl.torch.Minibatches",
    ),
    rows(_ENTRY, _YES, "collate", "makes a minibatch of a list of samples; without it they are stacked"),
    rows(
        _LAYER,
        _AS,
        "Embedding EmbeddingBag",
        "becomes a table on the parameter servers where it is larger than --embedding_threshold_bytes or sparse; "
        "padding_idx, scale_grad_by_freq, per_sample_weights, offsets and all modes hold",
    ),
    rows(
        _LAYER,
        _NO,
        "max_norm",
        "changes the weight of an embedding in forward, which would be undone by the next pull",
        "leave it out, and scale the looked-up vectors in forward where that is needed",
    ),
    rows(
        _LAYER, _AS, "BatchNorm1d BatchNorm2d BatchNorm3d", "shares its running statistics over workers as averages"
    ),
    rows(_LAYER, _YES, "register_buffer", "shares the buffer as state, unless it is made with persistent=False"),
    rows(_LAYER, _YES, "requires_grad=False", "keeps a parameter as it is; it is shared as state and exported"),
    rows(_OPTIMIZER, _AS, TORCH_SUPPORTED, "is computed by the parameter servers as PyTorch does it"),
    rows(
        _OPTIMIZER,
        _AS,
        "param_groups",
        "have hyper-parameters of their own; parameters in none of them are not trained, and shared as state",
    ),
    rows(_OPTIMIZER, _YES, "foreach fused capturable differentiable", "changes no result"),
    rows(
        _OPTIMIZER,
        _NO,
        "LBFGS ASGD Rprop Adafactor Muon",
        "is not among the optimizers of the parameter servers",
        _USE,
    ),
    rows(
        _OPTIMIZER,
        _NO,
        "Optimizer",
        "has an update of its own, which the parameter servers do not know",
        f"{_USE}, and not a class that derives from it",
    ),
    rows(
        _OPTIMIZER,
        _NO,
        "step_hooks",
        "would have them called in no process",
        "leave the hooks out; callbacks() can clip gradients and set learning rates",
    ),
    rows(
        _SCHEDULER,
        _AS,
        "LRScheduler",
        "gives the learning rates by model version (updates applied so far), each update being one step of it",
    ),
    rows(
        _SCHEDULER,
        _NO,
        "ReduceLROnPlateau",
        "would change the rate by evaluations, of which workers do not know",
        "use a scheduler that counts steps, such as StepLR or CosineAnnealingLR",
    ),
    rows(
        _SCHEDULER,
        _NO,
        "cycle_momentum",
        "changes the momentum with the learning rate, which the parameter servers do not do",
        "give it cycle_momentum=False",
    ),
    rows(
        _CALLBACK,
        _YES,
        "elasticdl.callbacks.LearningRateScheduler elasticdl.callbacks.MaxStepsStopping "
        "elasticdl.callbacks.EarlyStopping elasticdl.callbacks.GradientClipping",
        "does what its documentation says",
    ),
    rows(
        _CALLBACK,
        _AS,
        "torch.optim.lr_scheduler",
        "as a class or a partial of one (functools.partial(StepLR, step_size=100)) schedules the learning rates",
    ),
    rows(
        _CALLBACK,
        _NO,
        "Callback",
        "is none that ElasticDL acts upon for PyTorch models",
        "use EarlyStopping, MaxStepsStopping, LearningRateScheduler or GradientClipping of elasticdl.callbacks, or a "
        "scheduler of torch.optim.lr_scheduler",
    ),
    rows(
        _METRIC,
        _YES,
        "function",
        "of (labels, predictions) gives one value for each record, and the mean is taken; of one value for a "
        "minibatch that is a mean over its records, likewise",
    ),
    rows(
        _METRIC,
        _YES,
        "update_compute",
        "as torchmetrics has them (`update(predictions, labels)`, `compute()`): their states are merged over workers "
        "by the sum, or by the largest or smallest where the metric says so",
    ),
    rows(
        _METRIC,
        _NO,
        "function_of_no_mean",
        "gives a number for a minibatch that is no mean over its records, so that it depends on how records are "
        "divided",
        "give one value for each record, or an object with update and compute",
    ),
    rows(
        _METRIC,
        _NO,
        "state_that_does_not_merge",
        "keeps a state that cannot be merged over minibatches and workers",
        "keep sums and counts; give torchmetrics' curves thresholds=200, so that they count instead of keeping all "
        "predictions",
    ),
)
