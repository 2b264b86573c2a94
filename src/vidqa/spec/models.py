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


class Spec(Table):
    """Specification of one run; each action has its own."""


class TrainSpec(Spec):
    """Supervised fine-tuning of a video question-answering model."""

    custom: Custom = table(Custom, "Data", "Annotations, media and how videos are read.")
    train: Train = table(Train, "Training", "Schedule, optimizer, precision, checkpoints.")
    policy: Policy = table(Policy, "Model", "The model, what of it trains, how it is spread.")
    validation: Validation = table(Validation, "Validation", "Measuring while training.")
    logging: Logging = table(Logging, "Logging", "Where metrics go.")
    engine: TrainEngine = table(TrainEngine, "Engine", "Keys of our own engine; left out for cosmos-rl.")
    results_dir: str = key("", "Results folder", "TAO's output key.", native="no effect", instead="train.output_dir")
    custom_script: str = key("", "Custom script", "Program of a cosmos-rl job.", native="no effect")
    redis: str | int = key("", "Redis", "Port of cosmos-rl's controller.", native="no effect")
    eth_ips: str = key("", "Addresses", "Network addresses of cosmos-rl's workers.", native="no effect")
    mode: Literal["disaggregated", "colocated", "colocated_separated"] = key(
        "disaggregated", "Mode", "How cosmos-rl's processes are laid out.", native="no effect"
    )


class GrpoSpec(TrainSpec):
    """Reinforcement learning by GRPO from rewarded completions of the model itself."""

    train: GrpoTrain = table(GrpoTrain, "Training", "Schedule, optimizer, objective, rewards, checkpoints.")
    rollout: Rollout = table(Rollout, "Rollout", "How completions are generated.")
    validation: GrpoValidation = table(GrpoValidation, "Validation", "Measuring while training.")
    engine: GrpoEngine = table(GrpoEngine, "Engine", "Keys of our own engine; left out for cosmos-rl.")

    @property
    def temperature(self) -> float:
        """The temperature of rollouts and of the trainer's softmax: the one that is set, else 1."""
        return self.train.train_policy.temperature or self.rollout.sampling_config.temperature or 1.0


class EvaluateSpec(Spec):
    """Evaluation: a model answers an annotated set of videos, and its answers are scored."""

    dataset: EvaluateDataset = table(EvaluateDataset, "Data", "What is evaluated.")
    model: Model = table(Model, "Model", "What answers.")
    task: Task = table(Task, "Task", "How answers are scored.")
    evaluation: Evaluation = table(Evaluation, "Evaluation", "How the set is worked through.")
    vision: Vision = table(Vision, "Vision", "How a video becomes frames. The same in training and evaluation.")
    generation: Generation = table(Generation, "Generation", "How answers are generated.")
    metrics: Metrics = table(Metrics, "Metrics", "Scores of free text.")
    results: Results = table(Results, "Results", "What is written.")
    engine: EvaluateEngine = table(EvaluateEngine, "Engine", "Keys of our own engine.")
    num_gpus: Gpus = key(1, "GPUs", "GPUs that share the work; each holds the whole model.")
    results_dir: str = key("results", "Results folder", "Folder in which the run makes its own folder.")


class InferenceSpec(Spec):
    """Inference: answers to questions about videos and images without annotated answers."""

    dataset: InferenceDataset = table(InferenceDataset, "Data", "What is asked about.")
    model: Model = table(Model, "Model", "What answers.")
    inference: Inference = table(Inference, "Inference", "How the set is worked through.")
    vision: Vision = table(Vision, "Vision", "How a video becomes frames. The same as in training.")
    generation: Generation = table(Generation, "Generation", "How answers are generated.")
    engine: InferenceEngine = table(InferenceEngine, "Engine", "Keys of our own engine.")
    num_gpus: Gpus = key(1, "GPUs", "GPUs that share the work; each holds the whole model.")
    results_dir: str = key("results", "Results folder", "Folder in which the run makes its own folder.")
    type: Literal["", "video", "image"] = key("", "Kind of media", "A file's own kind is used.", native="no effect")
    device_map: str = key("auto", "Device map", "A GPU is used where there is one.", native="no effect")
    torch_dtype: str = key("auto", "Precision", "TAO's precision.", native="no effect", instead="model.dtype")


class EmbedSpec(Spec):
    """Embeddings of videos and of the questions about them."""

    dataset: EmbedDataset = table(EmbedDataset, "Data", "What is embedded.")
    model: Model = table(Model, "Model", "What embeds.")
    embed: Embed = table(Embed, "Embedding", "How the set is worked through.")
    vision: Vision = table(Vision, "Vision", "How a video becomes frames. The same for all that is compared.")
    engine: EmbedEngine = table(EmbedEngine, "Engine", "Keys of our own engine.")
    num_gpus: Gpus = key(1, "GPUs", "GPUs that share the work; each holds the whole model.")
    results_dir: str = key("results", "Results folder", "Folder in which the run makes its own folder.")


class QuantizeSpec(Spec):
    """Quantization of a model to 8-bit or 4-bit numbers, compared with the original."""

    dataset: QuantizeDataset = table(QuantizeDataset, "Data", "Training records that calibrate and prove.")
    model: QuantizeModel = table(QuantizeModel, "Model", "What is quantized.")
    quantize: Quantize = table(Quantize, "Quantization", "How the model becomes smaller.")
    vision: Vision = table(Vision, "Vision", "How a video becomes frames. The same as in training.")
    engine: QuantizeEngine = table(QuantizeEngine, "Engine", "Keys of our own engine.")
    results_dir: str = key("results", "Results folder", "Folder in which the run makes its own folder.")
