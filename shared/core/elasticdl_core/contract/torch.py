"""Rules for PyTorch modules: entries, layers, optimizers, schedulers, callbacks, metrics."""

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
        _LAYER,
        _NO,
        "sparse_scaled_or_max",
        "PyTorch refuses in the first step: sparse gradients are neither scaled by frequency nor those of a maximum",
        "leave sparse=True out; larger than --embedding_threshold_bytes, the layer becomes a table all the same",
    ),
    rows(
        _LAYER,
        _NO,
        "changed_parameter",
        "is changed in forward or by a hook, not by the optimizer: the next pull would undo that, and members of a "
        "group would differ",
        "use a changed copy in forward (torch.nn.utils.parametrize does that), or keep the tensor in a buffer or "
        "with requires_grad=False",
    ),
    rows(
        _LAYER,
        _NO,
        "replaced_parameter",
        "is another object than at the start, which nobody would train",
        "keep the parameter, and use a changed copy in forward",
    ),
    rows(
        _LAYER,
        _NO,
        "unfrozen",
        "gets requires_grad=True while the model trains, when it is no longer known to be trained",
        "leave requires_grad as it is after the model function; train in two jobs, the second one beginning with "
        "--checkpoint_filename_for_init and the parameter unfrozen",
    ),
    rows(
        _LAYER,
        _NO,
        "made_later",
        "is made while the model trains: it would be neither trained nor shared nor saved",
        "make it in __init__, or when forward runs for the first time; register_buffer(..., persistent=False) keeps "
        "a buffer to each process",
    ),
    rows(
        _LAYER,
        _NO,
        "untracked",
        "is used by the model or its loss and is none of the model's parameters (PyTorch does not look into lists, "
        "dicts, globals and losses): it would be neither trained nor shared nor exported",
        "keep layers in nn.ModuleList or nn.ModuleDict and parameters as attributes of the model; let forward return "
        "what the loss needs of them; or give it requires_grad=False",
    ),
    rows(
        _LAYER,
        _NO,
        "ScriptModule",
        "is compiled by torch.jit, which hides what it is made of",
        "return the module as it is; --torch_compile on compiles it",
    ),
    rows(
        _LAYER,
        _NO,
        "torch.compile",
        "is compiled already, for shapes of which the job would not know",
        "return the module as it is, and give --torch_compile on",
    ),
    rows(
        _LAYER,
        _NO,
        "DataParallel",
        "spreads a model over devices or processes by itself",
        "return the module that it wraps; --num_workers says how many processes train it",
    ),
    rows(
        _LAYER,
        _NO,
        "SyncBatchNorm",
        "needs a process group of PyTorch: statistics are of a minibatch here, and running ones are averages over "
        "all workers",
        "use BatchNorm, or GroupNorm where a minibatch is small",
    ),
    rows(
        _LAYER,
        _NO,
        "device",
        "the model function is not to choose: a worker moves the model to the device that it was given",
        "leave the model on the CPU: no .cuda() and no .to(device) but of the CPU in the model function; ask for a "
        "device with --worker_resource_request gpu=1",
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
    rows(_OPTIMIZER, _YES, "foreach fused", "changes no result"),
    rows(_OPTIMIZER, _YES, "capturable", "changes no result, on devices whose work can be captured as a graph"),
    rows(
        _OPTIMIZER,
        _NO,
        "capturable_on_cpus",
        "is what PyTorch refuses in the first step of a model on a CPU: there is no graph to capture",
        "leave capturable=True out, or ask for a device with --worker_resource_request gpu=1",
    ),
    rows(
        _OPTIMIZER,
        _NO,
        "differentiable",
        "is what PyTorch refuses in the first step of a model: its parameters are changed in place",
        "leave differentiable=True out",
    ),
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
        _OPTIMIZER,
        _NO,
        "replaced_step",
        "would have it called in no process: parameter servers make the updates",
        "leave the methods of the optimizer as they are; callbacks() can clip gradients and set learning rates",
    ),
    rows(
        _OPTIMIZER,
        _NO,
        "state",
        "would begin with moments that no parameter server knows of",
        "return a new optimizer; --checkpoint_dir_for_init goes on with a checkpoint's moments",
    ),
    rows(
        _OPTIMIZER,
        _NO,
        "sparse_gradients",
        "is what PyTorch refuses in the first step: only SGD, Adagrad and SparseAdam take sparse gradients",
        "leave sparse=True out, as a layer larger than --embedding_threshold_bytes becomes a table without it; or "
        "use SGD, Adagrad or, where the model is embeddings alone, SparseAdam",
    ),
    rows(
        _OPTIMIZER,
        _NO,
        "sparse_weight_decay",
        "is what PyTorch refuses in the first step: sparse gradients have no decay",
        "put the embedding into a parameter group with weight_decay=0, or leave sparse=True out",
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
        "made_already",
        "nobody would step: it was made in optimizer(), and only the optimizer was returned",
        "return a function that makes it beside the optimizer: return optimizer, "
        "functools.partial(torch.optim.lr_scheduler.StepLR, step_size=100)",
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
        _SCHEDULER,
        _NO,
        "other_option",
        "would be asked for learning rates alone",
        "let it change lr alone; parameter groups can have options of their own",
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
        "gives for a minibatch what is no mean over its records, so that it depends on how records are divided",
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
