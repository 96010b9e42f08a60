"""The files in the folder of train."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from trainyard.contract.document import Document, FrozenModel
from trainyard.spec.networks import TREES
from trainyard.spec.selection import BY_LOSS, Selection

TARGET_UNIT = "target_unit"
"""The name of the layer of model.keras that gives a regression's answers in the units of the learned targets."""

TARGET_INVERSE = ("target_exponential", "target_offset")
"""The names of the last layers of model.keras, in order, if a regression learned on a logarithmic scale."""


class Epoch(FrozenModel):
    """Evidence of one epoch. `metric` is the eval split's main metric, `spec.gates.MAIN_METRIC`.

    The losses count by class weights, the metric does not. top5_accuracy: of the eval split too, None unless there are
    more than five classes. selected: the metric that chooses the epoch to keep, None if the eval loss does.
    elapsed_seconds: on the clock from the first byte of the examples to the end of this epoch's evaluation, with all
    that came between, such as compiling, checkpoints, and the pause before a resume; None if a program of the recipe's
    own trained.
    """

    epoch: int
    step: int
    learning_rate: float
    train_loss: float
    eval_loss: float
    metric: float
    examples_per_second: float
    seconds: float
    top5_accuracy: float | None = None
    selected: float | None = None
    elapsed_seconds: float | None = None

    @property
    def compared(self) -> float:
        """The metric by which a search compares trainings."""
        return self.metric if self.selected is None else self.selected


def best_first(history: Iterable[Epoch], selection: Selection) -> list[Epoch]:
    """Return the epochs by what `selection` names, then by the eval loss, the first of ties first."""
    return sorted(history, key=lambda epoch: (selection.sign * (epoch.selected or 0.0), epoch.eval_loss))


class Rollback(FrozenModel):
    """One time that `what` was not finite at `step`: training resumed from the checkpoint of step back_to."""

    what: str
    step: int
    back_to: int
    learning_rate_scale: float


class Restart(FrozenModel):
    """One time that a gang was started again: what broke it, and what that cost.

    step: the last step before it. resumed_at: the checkpoint's step that it resumed from, so lost_steps are done
    again. seconds: from the break's discovery to the first new steps.
    """

    reason: str
    step: int
    resumed_at: int
    lost_steps: int
    seconds: float


class WorkerCount(FrozenModel):
    """The number of workers of an elastic gang from `step` on, `maximum` at most.

    seconds: from the gang's start to the first new step with them.
    """

    workers: int
    maximum: int
    step: int
    seconds: float


class Straggler(FrozenModel):
    """A worker of a gang on `node` that the others waited for, found at `step`.

    until: the step at which it was as fast as the others again, None if it never was. own_ms: its milliseconds a step
    outside the all-reduces when it was found; others_ms: the median of the others'.
    """

    worker: int
    node: str
    step: int
    until: int | None = None
    own_ms: float
    others_ms: float
    advice: ClassVar[str] = "See what else runs on its node, or replace the node"

    def __str__(self) -> str:
        """Say who it is, and how slow."""
        who = f"worker {self.worker} on {self.node}" if self.node else f"worker {self.worker}"
        return f"{who} takes {self.own_ms:,.1f} ms a step, the others {self.others_ms:,.1f} ms, and they wait for it"


class Device(FrozenModel):
    """One device that trained and what it delivered, measured on its own before the training.

    product: its name by its driver; memory_bytes: 0 if unknown; tflops: of a matrix product in the precision that
    the device is made for (float32 on a CPU); gb_per_second: read and written in its memory.
    """

    name: str
    product: str
    memory_bytes: int
    tflops: float
    gb_per_second: float


class InputSpeed(FrozenModel):
    """Examples/s of the input pipeline without training: the mean, and the ends of its interval.

    source: where the examples are read. used: True if the training of the recipe reads them there.
    """

    source: str
    examples_per_second: float
    low: float
    high: float
    used: bool


class TrainingSpeed(FrozenModel):
    """The speed of the last phase (all layers, full images), without the calls that compile.

    examples_per_second: the padding of an epoch's last batch counts. bottleneck compares step_ms, the mean step on
    real batches, with cached_step_ms, the median of a few calls on a cached one after the training; it is unclear if
    the ranges of both (of the epochs, of those calls) overlap, as they do on a busy machine.

    step_split_ms splits step_ms: input is what it waits for beyond a cached batch, all_reduce the sum of the gradients
    on its own, compute the rest; checkpoint is what the saving of the state adds to a step. checkpoint_write_seconds
    were spent beside the training on checkpoint_writes of them. all_reduce_ms: the time of a step's sum of the
    gradients over all replicas, on its own. input_workers: how many processes beside the training prepared its
    batches, 0 if it did so itself.
    """

    examples_per_second: float = 0.0
    bottleneck: Literal["input", "compute", "unclear"] = "unclear"
    step_ms: float = 0.0
    cached_step_ms: float = 0.0
    step_range_ms: list[float] = []
    cached_step_range_ms: list[float] = []
    step_split_ms: dict[str, float] = {}
    all_reduce_ms: float = 0.0
    checkpoint_writes: int = 0
    checkpoint_write_seconds: float = 0.0
    input_workers: int = 0

    @property
    def batch_size(self) -> int:
        """The examples in a step of all workers."""
        return round(self.examples_per_second * self.step_ms / 1000)


class Gang(FrozenModel):
    """The workers that trained, their replicas in all, and the bytes of gradients that a step sums.

    restarts: the breaks that it survived. stragglers: the workers that the others waited for (only TensorFlow on CPUs
    tells). Of an elastic gang: worker_counts are its numbers of workers in their order, and workers is the last.
    """

    workers: int = 1
    replicas: int = 1
    gradient_bytes: int = 0
    restarts: list[Restart] = []
    worker_counts: list[WorkerCount] = []
    stragglers: list[Straggler] = []


class Machine(FrozenModel):
    """The devices that trained by name, and what one of them is (`hardware`; a GPU's product name).

    cores: those of this worker. measured: the devices of the chief. versions: those of the engine and of what drives
    them.
    """

    devices: list[str] = []
    hardware: str = ""
    cores: int = 0
    measured: list[Device] = []
    engine: Literal["tensorflow", "jax"] = "tensorflow"
    versions: dict[str, str] = {}


class ExampleCosts(FrozenModel):
    """The costs of one example, for the planner. flops_per_example: the operations of the steps that step_ms measures.

    activations: the numbers that the layers put out; saved_activations: those of them that the backward pass
    reads. backbone_share: 1 if all layers learn in such a step, 0 if the last one alone does.
    """

    flops_per_example: float = 0.0
    activations_per_example: int = 0
    saved_activations_per_example: int = 0
    backbone_share: float = 1.0


class TrainingStart(FrozenModel):
    """The step that a training resumed from, and the weights it began with, as model.weights of the recipe.

    warm_start: the champion's version whose weights came first, '' if they were the model's own. teacher: the version
    whose answers were learned, '' if none.
    """

    resumed_from: int | None = None
    warm_start: str = ""
    weights: str = ""
    teacher: str = ""


class Goodput(FrozenModel):
    """The share of the wall time, all restarts included, that went into steps which count; `seconds` splits that time.

    Of a gang of pods it begins with the Job: queue is the wait for worker 0, meet that for the others.
    """

    share: float
    seconds: dict[str, float]


class Training(Document):
    """Output of train. The folder holds model.keras and tensorboard/ beside this document.

    The model takes a dict by feature name and gives logits (batch, classes), or for regression (batch, targets).

    selection: what chose the best epoch, the loss for a program of the recipe's own. seconds splits the wall time by
    what it was spent on. goodput: None if the steps of a program were not told. finished: ISO time. xla: whether XLA
    compiled the steps. command: the program of the recipe's own that trained, if one did. What it did not tell is 0
    then, or empty; the rest of what it left is in files/. With train.result: folder its folder is model/ instead of
    model.keras, and metrics is what it says of it.

    Of boosted_trees, epochs, steps and history count iterations of the boosting, and there is no
    examples_per_second.
    """

    file = "training.json"
    made_by = "train"

    model: str
    parameters: int
    steps: int
    epochs: int
    best_epoch: int
    selection: Selection = BY_LOSS
    precision: str
    history: list[Epoch]
    rollbacks: list[Rollback] = []
    seconds: dict[str, float]
    finished: str = ""
    xla: bool = False
    command: list[str] = []
    metrics: dict[str, float] = {}
    speed: TrainingSpeed
    gang: Gang = Gang()
    machine: Machine
    costs: ExampleCosts = ExampleCosts()
    start: TrainingStart = TrainingStart()
    goodput: Goodput | None = None

    @property
    def ranking(self) -> list[Epoch]:
        """The epochs by what chose the best one."""
        return best_first(self.history, self.selection)

    def chosen_by(self, epoch: Epoch) -> float:
        """Return the value by which `epoch` was compared with the others."""
        return epoch.eval_loss if epoch.selected is None else epoch.selected

    @property
    def is_trees(self) -> bool:
        """True if boosted trees were trained, by scikit-learn."""
        return self.model == TREES and not self.command


class Prediction(FrozenModel):
    """The predicted examples per second with their 80 % interval, made before the run."""

    low: float
    expected: float
    high: float

    def beside(self, measured: float) -> str:
        """Compare the prediction with the `measured` speed.

        >>> Prediction(low=80, expected=100, high=125).beside(130)
        'predicted 100 examples/s (80 – 125), measured 130 (1.30 of it, above the interval)'
        """
        verdict = "within the interval"
        if not self.low <= measured <= self.high:
            verdict = f"{'above' if measured > self.high else 'below'} the interval"
        return (
            f"predicted {self.expected:,.0f} examples/s ({self.low:,.0f} – {self.high:,.0f}), measured {measured:,.0f} "
            f"({measured / self.expected:.2f} of it, {verdict})"
        )
