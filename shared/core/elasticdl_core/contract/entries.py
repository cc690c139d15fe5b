"""Entries of the module, what a model class can define, and layers."""

from __future__ import annotations

from elasticdl_core.contract.row import Subject, Verdict, rows

_ENTRY, _MODEL, _LAYER = Subject.ENTRY, Subject.MODEL, Subject.LAYER
_YES, _AS, _NO = Verdict.HONOURED, Verdict.TRANSLATED, Verdict.REFUSED
_OWN_STEP = (
    "write `loss(labels, predictions)`, and call `self.add_loss` in the model for what depends on more than these"
)

ENTRIES = (
    rows(
        _ENTRY, _YES, "build_model", "is called without arguments, or with --model_params, in each process of a job"
    ),
    rows(_ENTRY, _YES, "loss", "is called on labels and predictions; of one value for each record the mean is taken"),
    rows(_ENTRY, _AS, "optimizer", "is carried out by the parameter servers; with --local by Keras itself"),
    rows(_ENTRY, _YES, "feed", "makes features and labels of raw records; `dataset_fn` is the same entry"),
    rows(
        _ENTRY,
        _YES,
        "eval_metrics_fn",
        "gives the metrics of each evaluation; their states are merged over workers, and those of some "
        "training minibatches are shown",
    ),
    rows(_ENTRY, _AS, "callbacks", "become what the section on callbacks says; each is applied or refused"),
    rows(_ENTRY, _YES, "custom_data_reader", "reads the records of tasks"),
    rows(_ENTRY, _YES, "prediction_outputs_processor", "takes the predictions of each minibatch"),
)

MODELS = (
    rows(_MODEL, _YES, "call build", "run as Keras runs them"),
    rows(
        _MODEL,
        _YES,
        "add_loss losses",
        "count: what a model or a layer adds is added to the loss in training, and left out of the evaluation's loss",
    ),
    rows(
        _MODEL,
        _YES,
        "add_weight add_variable trainable trainable_variables trainable_weights non_trainable_variables "
        "non_trainable_weights variables weights",
        "count: the optimizer changes what is trainable; other floating-point variables are shared as state",
    ),
    rows(
        _MODEL,
        _YES,
        "compute_mask compute_output_shape compute_output_spec compute_output_signature supports_masking input_spec "
        "activity_regularizer build_from_config get_build_config get_config from_config symbolic_call stateless_call "
        "rematerialized_call save_own_variables load_own_variables add_update",
        "are used by Keras as ever when the model is built, called and exported",
    ),
    rows(
        _MODEL,
        _YES,
        "compute_dtype dtype dtype_policy input_dtype variable_dtype",
        "hold; see the policies below",
    ),
    rows(
        _MODEL,
        _YES,
        "count_params get_layer get_weights set_weights load_weights get_state_tree set_state_tree get_weight_paths "
        "summary save save_weights save_spec export to_json to_yaml input output layers path name name_scope "
        "with_name_scope submodules inbound_nodes outbound_nodes input_mask input_shape output_mask output_shape "
        "get_input_at get_input_mask_at get_input_shape_at get_output_at get_output_mask_at get_output_shape_at "
        "dynamic stateful state_updates updates finalize_state quantize quantization_mode quantized_build "
        "quantized_call get_quantization_layer_structure",
        "are there for your own code, as Keras has them; weights that are set while the model is made are its first "
        "values",
    ),
    rows(
        _MODEL,
        _NO,
        "train_step compute_loss stateless_compute_loss train_on_batch fit fit_generator make_train_function",
        "is never called: the step is computed in pieces, so that workers can share its parameters",
        _OWN_STEP,
    ),
    rows(
        _MODEL,
        _NO,
        "test_step evaluate evaluate_generator test_on_batch make_test_function compute_metrics get_metrics_result "
        "reset_metrics metrics metrics_names metrics_variables compiled_metrics add_metric",
        "is never called: evaluations are spread over workers and their states merged",
        "give metrics in `eval_metrics_fn()`",
    ),
    rows(
        _MODEL,
        _NO,
        "predict_step predict predict_generator predict_on_batch make_predict_function",
        "is never called: predictions are what `call` gives",
        "put it into `call(self, inputs, training=False)`, or into a PredictionOutputsProcessor",
    ),
    rows(
        _MODEL,
        _NO,
        "compile compile_from_config get_compile_config compiled_loss loss jit_compile run_eagerly "
        "steps_per_execution autotune_steps_per_execution distribute_strategy distribute_reduction_method",
        "has no effect: what is compiled into a model is not what a job trains with",
        "leave out compile(); give `loss`, `optimizer()` and `eval_metrics_fn()`, and --xla or --eager where needed",
    ),
    rows(
        _MODEL,
        _NO,
        "reset_states",
        "is never called: a job's minibatches come in no fixed order",
        "leave stateful layers out",
    ),
)

LAYERS = (
    rows(
        _LAYER,
        _YES,
        "kernel_regularizer bias_regularizer activity_regularizer embeddings_regularizer",
        "are part of the loss in training; a layer `Embedding` with one keeps its weights in the model",
    ),
    rows(
        _LAYER,
        _AS,
        "NonNeg MaxNorm UnitNorm MinMaxNorm",
        "as constraint of a weight is carried out by the parameter servers after each update",
    ),
    rows(
        _LAYER,
        _NO,
        "constraint",
        "is not among those that parameter servers carry out after an update",
        "use one of NonNeg, MaxNorm, UnitNorm, MinMaxNorm of tf.keras.constraints, or constrain a copy of the weight "
        "in call",
    ),
    rows(
        _LAYER,
        _NO,
        "assign",
        "would be undone by the next pull, as the parameter servers own what is trained",
        "compute the changed weight without storing it, or keep it in a weight made with trainable=False; layers "
        "that store it, such as SpectralNormalization, cannot be trained here",
    ),
    rows(
        _LAYER,
        _NO,
        "random_ids",
        "would be drawn twice, once to fetch rows and once by the step, and differ: this holds for embeddings on "
        "parameter servers and for elasticdl.layers.Embedding",
        "draw in `feed`, and give what was drawn as a feature",
    ),
    rows(
        _LAYER,
        _NO,
        "trained_ids",
        "would be computed twice, from weights that change in between",
        "compute ids from the features alone, or keep the layer in the model by a higher --embedding_threshold_bytes",
    ),
    rows(_LAYER, _YES, "trainable=False", "keeps weights as they are; they are shared as state and exported"),
    rows(
        _LAYER,
        _YES,
        "float32 bfloat16 mixed_bfloat16",
        "as policy of a layer or of the module, set when the module is imported or when the model is made; weights "
        "are kept in float32",
    ),
    rows(
        _LAYER,
        _NO,
        "mixed_float16 float16",
        "needs loss scaling, which parameter servers do not do: small gradients would become 0",
        "use the policy mixed_bfloat16, or train in float32",
    ),
    rows(
        _LAYER,
        _NO,
        "tf.Variable",
        "is none of the model's weights in Keras (an attribute in Keras 3, a global or part of a closure in any): it "
        "would be neither trained nor shared nor exported",
        "make it with self.add_weight(...) in the layer that uses it, with trainable=False if it is not trained; use "
        "tf.constant for what never changes",
    ),
    rows(
        _LAYER,
        _NO,
        "stateful",
        "keeps what it saw of the records before, and a job's minibatches come from anywhere in the data",
        "leave stateful=True out, and give each record its whole sequence, as the reader's window=N does",
    ),
    rows(
        _LAYER,
        _NO,
        "metric_of_a_layer",
        "is not reported: evaluations are spread over workers, and a layer's own metric stays in one",
        "compute it from labels and predictions in `eval_metrics_fn()`",
    ),
)
