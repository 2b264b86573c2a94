"""The specs of our own actions. Their defaults are the template."""

from __future__ import annotations

from typing import Literal

from vidqa.spec._field import Gpus, Table, key, table
from vidqa.spec.evaluate_tables import (
    Embed,
    EmbedDataset,
    EmbedEngine,
    EvaluateDataset,
    EvaluateEngine,
    Evaluation,
    Generation,
    Inference,
    InferenceDataset,
    InferenceEngine,
    Metrics,
    Model,
    Results,
    Task,
)
from vidqa.spec.grpo_tables import GrpoEngine, GrpoTrain, GrpoValidation, Rollout
from vidqa.spec.policy_tables import Policy
from vidqa.spec.quantize_tables import Quantize, QuantizeDataset, QuantizeEngine, QuantizeModel
from vidqa.spec.run_tables import Custom, Logging, TrainEngine, Validation, Vision
from vidqa.spec.train_tables import Train

# Keys of several actions.
NUM_GPUS = key(1, "GPUs", "Data-parallel GPUs; each holds the whole model.")
RESULTS_DIR = key("results", "Results folder", "Parent folder of the run folder.")


class Spec(Table):
    """Specification of one run; each action has its own."""


class TrainSpec(Spec):
    """Supervised fine-tuning of a video question-answering model."""

    custom: Custom = table(Custom, "Data", "Annotations, media and frame sampling.")
    train: Train = table(Train, "Training", "Schedule, optimizer, precision, checkpoints.")
    policy: Policy = table(Policy, "Model", "Model, trained parameters, parallelism.")
    validation: Validation = table(Validation, "Validation", "Validation during training.")
    logging: Logging = table(Logging, "Logging", "Metric trackers.")
    engine: TrainEngine = table(TrainEngine, "Engine", "Keys of the native engine; left out for cosmos-rl.")
    results_dir: str = key("", "Results folder", "TAO's output key.", native="no effect", instead="train.output_dir")
    custom_script: str = key("", "Custom script", "Script of a cosmos-rl job.", native="no effect")
    redis: str | int = key("", "Redis", "Port of cosmos-rl's controller.", native="no effect")
    eth_ips: str = key("", "Addresses", "Network addresses of cosmos-rl's workers.", native="no effect")
    mode: Literal["disaggregated", "colocated", "colocated_separated"] = key(
        "disaggregated", "Mode", "Process layout of cosmos-rl.", native="no effect"
    )


class GrpoSpec(TrainSpec):
    """Reinforcement learning by GRPO on rewarded completions of the model."""

    train: GrpoTrain = table(GrpoTrain, "Training", "Schedule, optimizer, objective, rewards, checkpoints.")
    rollout: Rollout = table(Rollout, "Rollout", "Generation of completions.")
    validation: GrpoValidation = table(GrpoValidation, "Validation", "Validation during training.")
    engine: GrpoEngine = table(GrpoEngine, "Engine", "Keys of the native engine; left out for cosmos-rl.")

    @property
    def temperature(self) -> float:
        """The temperature of rollouts and of the trainer's softmax: the one that is set, else 1."""
        return self.train.train_policy.temperature or self.rollout.sampling_config.temperature or 1.0


class EvaluateSpec(Spec):
    """Evaluation: a model answers an annotated set of videos, and its answers are scored."""

    dataset: EvaluateDataset = table(EvaluateDataset, "Data", "Evaluation data.")
    model: Model = table(Model, "Model", "The model.")
    task: Task = table(Task, "Task", "Task type, for scoring.")
    evaluation: Evaluation = table(Evaluation, "Evaluation", "Batching, limits, resuming.")
    vision: Vision = table(Vision, "Vision", "Frame sampling and resizing. Equal in training and evaluation.")
    generation: Generation = table(Generation, "Generation", "Answer generation.")
    metrics: Metrics = table(Metrics, "Metrics", "Scores of free text.")
    results: Results = table(Results, "Results", "Output files.")
    engine: EvaluateEngine = table(EvaluateEngine, "Engine", "Keys of the native engine.")
    num_gpus: Gpus = NUM_GPUS
    results_dir: str = RESULTS_DIR


class InferenceSpec(Spec):
    """Inference: answers to questions about videos and images without annotated answers."""

    dataset: InferenceDataset = table(InferenceDataset, "Data", "Records, videos or images.")
    model: Model = table(Model, "Model", "The model.")
    inference: Inference = table(Inference, "Inference", "Batching, limits, resuming.")
    vision: Vision = table(Vision, "Vision", "Frame sampling and resizing. The same as in training.")
    generation: Generation = table(Generation, "Generation", "Answer generation.")
    engine: InferenceEngine = table(InferenceEngine, "Engine", "Keys of the native engine.")
    num_gpus: Gpus = NUM_GPUS
    results_dir: str = RESULTS_DIR
    type: Literal["", "video", "image"] = key("", "Media type", "Detected for each file.", native="no effect")
    device_map: str = key("auto", "Device map", "A GPU is used if there is one.", native="no effect")
    torch_dtype: str = key("auto", "Precision", "TAO's precision.", native="no effect", instead="model.dtype")


class EmbedSpec(Spec):
    """Embeddings of videos and of the questions about them."""

    dataset: EmbedDataset = table(EmbedDataset, "Data", "Records, videos or images.")
    model: Model = table(Model, "Model", "The model.")
    embed: Embed = table(Embed, "Embedding", "Batching, limits, resuming.")
    vision: Vision = table(Vision, "Vision", "Frame sampling and resizing. Equal for all compared sets.")
    engine: EmbedEngine = table(EmbedEngine, "Engine", "Keys of the native engine.")
    num_gpus: Gpus = NUM_GPUS
    results_dir: str = RESULTS_DIR


class QuantizeSpec(Spec):
    """Quantization of a model to 8-bit or 4-bit numbers, compared with the original."""

    dataset: QuantizeDataset = table(QuantizeDataset, "Data", "Training records for calibration and verification.")
    model: QuantizeModel = table(QuantizeModel, "Model", "The model.")
    quantize: Quantize = table(Quantize, "Quantization", "Scheme, method, calibration.")
    vision: Vision = table(Vision, "Vision", "Frame sampling and resizing. The same as in training.")
    engine: QuantizeEngine = table(QuantizeEngine, "Engine", "Keys of the native engine.")
    results_dir: str = RESULTS_DIR
