"""FedMKD: clients of any architecture teach the server's student on public images, weighted sample by sample, and the
student makes each client's next target (Li et al. 2024, "Resource-aware federated self-supervised learning with global
class representations").

A round: a client's network up, its next momentum target down. A client trains BYOL from its own last model; its target
is what the server made of that model. On the public images the student minimises two losses: BYOL, and a contrast of
the teachers' mixture for a view against mixtures of earlier views. A learned attention mixes the teachers for each
view. Then the server trains a copy of each asked client's model towards the student, frozen: the client's next target.
Public images stay at the server.

Differs from the released code, mostly where it defeats its purpose: its query is the mixture and its key the student
without gradient, so that the distillation trains the attention alone. Here that term still trains the attention; a
second term, with the student as the query, trains the student. Teachers are in eval mode and get no gradient. A client
keeps the online network it has trained. All of a queue is replaced in turn, for any batch. The predictor goes up, too:
the alignment needs it.

Shape legend: N teachers, B rows (two views of a batch), D projection, H attention, K queue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from rayfed_ssl.base import optimizers
from rayfed_ssl.base.weights import Weights, pack, unpack
from rayfed_ssl.federated.client import EncoderClient
from rayfed_ssl.federated.cohort import Cohort
from rayfed_ssl.federated.federation import Federation, require_public
from rayfed_ssl.federated.method import ClientFootprint, Info, Method, only
from rayfed_ssl.federated.results import EvaluatedEncoder
from rayfed_ssl.federated.server import MethodServer
from rayfed_ssl.federated.steps import descend
from rayfed_ssl.federated.workload import Workload, local_batches
from rayfed_ssl.models.encoders import EncoderName
from rayfed_ssl.models.heads import HeadConfig, mlp
from rayfed_ssl.models.network import Network
from rayfed_ssl.objectives.base import full_precision, random_rows, target_modules
from rayfed_ssl.objectives.byol import BYOLConfig, ema_, regression
from rayfed_ssl.objectives.distillation import mixed_teacher, teacher_attention
from rayfed_ssl.objectives.moco import enqueued, queue_contrast
from rayfed_ssl.settings.blocks import MethodConfig, check_student
from rayfed_ssl.settings.run import RunSettings

Count = Annotated[int, Field(ge=1)]


class Config(MethodConfig):
    name: Literal["fedmkd"] = "fedmkd"
    student: EncoderName | None = None
    """The student's encoder; null: the clients' common one."""
    epochs: Count = 5
    """Epochs of the student on the public images, each round."""
    alignment_epochs: Count = 1
    """Epochs in which each client's copy is aligned with the student."""
    batch_size: Annotated[int, Field(ge=2)] = 128
    """Public images per step."""
    lr: Annotated[float, Field(gt=0)] = 0.032
    """Learning rate, constant, of the server's SGD: of the student and of the alignment."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Momentum of the server's SGD."""
    weight_decay: Annotated[float, Field(ge=0)] = 5e-4
    """Weight decay of the server's SGD."""
    self_weight: Annotated[float, Field(ge=0)] = 0.1
    """Weight of BYOL in the student's loss; its target keeps ``objective.decay`` of itself at each step."""
    distillation: Annotated[float, Field(ge=0)] = 0.9
    """Weight of the distillation in the student's loss."""
    temperature: Annotated[float, Field(gt=0)] = 0.1
    """Temperature of the distillation."""
    queue: Count = 1024
    """K, how many mixtures of earlier batches the distillation contrasts with."""
    attention_hidden: Count = 4096
    """Hidden width of the attention."""
    attention: Count = 10
    """H, width of the attention."""

    @property
    def needs_public(self) -> bool:
        return True

    @property
    def server_encoders(self) -> tuple[EncoderName, ...]:
        return () if self.student is None else (self.student,)


class Attention(nn.Module):
    """How much each teacher counts for each row, from a head that teachers and student share."""

    def __init__(self, dim: int, hidden: int, width: int) -> None:
        super().__init__()
        self.head = mlp(dim, HeadConfig(hidden=(hidden,), dim=width, batch_norm="hidden"))
        self.w_q, self.w_k = (nn.Parameter(torch.randn(width, width)) for _ in range(2))

    def forward(self, student: Tensor, teachers: Tensor) -> Tensor:
        """Student outputs (B, D), teacher outputs (N, B, D) -> (B, N), rows summing to 1."""
        keys = torch.stack([self.head(t) for t in teachers])
        return teacher_attention(self.head(student), keys, self.w_q, self.w_k)


def distillation(
    student: Tensor, mixed: Tensor, mixtures: Tensor, students: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """The student's term, with the student as the query, and the attention's, with the mixture as the query.

    Student outputs and mixtures (B, D); earlier mixtures and students (K, D), the negatives of the first and of the
    second term. Each term has gradients for its query only.
    """
    return (
        queue_contrast(student, mixed, mixtures, temperature),
        queue_contrast(mixed, student, students, temperature),
    )


def lesson(network: Network, teacher: Weights, views: Sequence[Tensor]) -> Tensor:
    """What a teacher makes of the views, each by itself, with its values loaded into ``network``: (B, D)."""
    unpack(teacher, network)
    return torch.cat([network.project(view) for view in views])


class Client(EncoderClient[Config]):
    def train(self) -> dict[str, Any]:
        """Local epochs from this client's own model and target; in its first round the target is a copy."""
        self.load_own()
        self.fit()
        self.keep_own()
        return {"weights": self.weights}

    def adopt(self, target: Weights) -> dict[str, Any]:
        """Keep the server's target for the next round."""
        self.state["target"] = target
        return {}


class Service(EncoderClient[Config]):
    """The server's own work, on public images."""

    @property
    def encoder(self) -> str:
        return student_encoder(self.config)

    def distil(self, state: dict[str, Any], teachers: Sequence[tuple[str, Mapping[str, Weights]]]) -> dict[str, Any]:
        """The student's state after epochs of BYOL and distillation from all teachers."""
        options, pixels = self.method, self.public_pixels()
        student, target, attention, queues = self.restored(state)
        asked = [self.teacher(encoder, sent["weights"]) for encoder, sent in teachers]
        optimizer = self.sgd([*student.parameters(), *attention.parameters()])
        draws, losses = self.generator("views"), []
        for rows in self.batches(len(pixels), options.epochs, options.batch_size):
            views = self.views(pixels[rows], draws, 2)
            with self.autocast():
                outputs = student.predict(torch.cat([student.project(view) for view in views]))  # (B, D)
                with torch.no_grad():
                    seen = torch.cat([target.project(view) for view in views[::-1]])
                    taught = torch.stack([lesson(*teacher, views) for teacher in asked]).float()  # (N, B, D)
                mixed = mixed_teacher(attention(full_precision(outputs.detach()), taught), taught)
            terms = distillation(outputs, mixed, *queues, options.temperature)
            byol = 2 * regression(outputs, seen)  # the mean over both halves, twice, is their sum
            descend(optimizer, options.self_weight * byol + options.distillation * (terms[0] + terms[1]))
            ema_(target, student, self.config.objective_as(BYOLConfig).decay)
            queues = enqueued(queues[0], mixed), enqueued(queues[1], full_precision(outputs))
            losses.append(torch.stack([byol.detach(), terms[0].detach()]))
        means = torch.stack(losses).mean(dim=0)
        self.metrics |= {"byol": float(means[0]), "distillation": float(means[1])}
        return {
            "student": pack(student),
            "target": pack(*target_modules(target)),
            "attention": pack(attention),
            "mixtures": queues[0].cpu().numpy(),
            "students": queues[1].cpu().numpy(),
        }

    def restored(self, state: dict[str, Any]) -> tuple[Network, Network, Attention, tuple[Tensor, Tensor]]:
        """Student, its momentum target, the attention, and both queues (K, D): those of the last round, or fresh."""
        options, dim = self.method, self.config.projection_dim
        self.load(state["student"])
        student, target = self.network.train(), self.context.network(self.encoder, "target").train()
        unpack(state.get("target") or pack(*target_modules(student)), *target_modules(target))
        attention = Attention(dim, options.attention_hidden, options.attention).to(self.context.device)
        if "attention" in state:
            unpack(state["attention"], attention)
        draws = self.generator("queues")
        queues = [random_rows(options.queue, dim, draws) for _ in range(2)]
        if "mixtures" in state:
            queues = [torch.tensor(state[name], device=self.context.device) for name in ("mixtures", "students")]
        return student, target, attention, (queues[0], queues[1])

    def align(self, encoder: str, sent: Mapping[str, Weights], student: Weights) -> dict[str, Any]:
        """A client's model after epochs of BYOL towards the frozen student: its next target."""
        options, pixels = self.method, self.public_pixels()
        anchor, model = self.context.network(self.encoder, "anchor").eval(), self.context.network(encoder).train()
        unpack(student, anchor)
        unpack(sent["weights"], model)
        optimizer, draws = self.sgd(list(model.parameters())), self.generator("views")
        for rows in self.batches(len(pixels), options.alignment_epochs, options.batch_size):
            views = self.views(pixels[rows], draws, 2)
            with self.autocast():
                p_a, p_b = (model.predict(model.project(view)) for view in views)
                with torch.no_grad():
                    z_a, z_b = (anchor.project(view) for view in views)
            descend(optimizer, regression(p_a, z_b) + regression(p_b, z_a))
        return {"target": pack(*target_modules(model))}

    def teacher(self, encoder: str, weights: Weights) -> tuple[Network, Weights]:
        """The module of a teacher's architecture, which all teachers that have it share: in eval mode, no gradient
        reaches it. And the teacher's values, where they lie on the device.
        """
        network = self.context.network(encoder, "teacher").eval()
        unpack(weights, network)
        return network, pack(network)

    def sgd(self, parameters: list[nn.Parameter]) -> optimizers.SGD:
        options = self.method
        return optimizers.SGD(parameters, options.lr, options.momentum, weight_decay=options.weight_decay)


class Server(MethodServer[Config]):
    def start(self, cohort: Cohort) -> None:
        self.state["student"] = {"student": self.setup.initial(student_encoder(self.config))}

    def round(self, t: int, cohort: Cohort) -> None:
        teachers = {r.client: (self.config.clients.encoder(r.client), r.fields) for r in cohort.gather("train")}
        state = dict(cohort.serve("distil", state=self.state["student"], teachers=list(teachers.values())).fields)
        self.state["student"] = state

        def own(client: int) -> dict[str, Any]:
            encoder, sent = teachers[client]
            return {"encoder": encoder, "sent": sent}

        aligned = cohort.serve_all("align", teachers, own, call=lambda client: client, student=state["student"])
        targets = {client: dict(reply.fields) for client, reply in aligned.items()}
        cohort.tell("adopt", clients=list(teachers), each=targets.__getitem__)

    def evaluated_encoders(self) -> list[EvaluatedEncoder]:
        student = EvaluatedEncoder(None, student_encoder(self.config), self.state["student"]["student"])
        return [student, *self.own_encoders()]

    # -- costs ---------------------------------------------------------------------------------------------------------

    def workload(self, operation: str, client: int) -> Workload | None:
        """Local epochs; to adopt a target costs nothing but its download."""
        if operation == "adopt":
            return Workload(0)
        return self.fitting(client, **self.setup.network_sizes(self.config.clients.encoder(client)))

    def sends(self, t: int, client: int, met: Collection[int]) -> Mapping[str, object] | None:
        """The next target, to adopt."""
        return {"target": self.setup.target_size(self.config.clients.encoder(client), "down")}

    def server_images(self, t: int, clients: Sequence[int]) -> int | None:
        """The student's epochs on the public images, and those of each client's copy. All teachers look at one batch,
        which is read once.
        """
        method, public = self.method, len(self.setup.federation.public_images)
        student, aligned = (
            local_batches(self.config, public, epochs, method.batch_size).images
            for epochs in (method.epochs, method.alignment_epochs)
        )
        return student + len(clients) * aligned if t else 0


def student_encoder(config: RunSettings) -> str:
    """The architecture of the student."""
    return config.method_as(Config).student or config.clients.encoder(0)


def check(config: RunSettings) -> None:
    """Refuse a student without a name where clients differ, and a target that the server's would not replace. Raises
    ValueError.
    """
    check_student(config.method_as(Config).student, config.clients)
    if (found := config.objective_as(BYOLConfig).target) != "local":
        raise ValueError(f"objective.target: found '{found}'; fedmkd sends each client its target; allowed: local")


def check_federation(config: RunSettings, federation: Federation) -> None:
    """Refuse fewer than two public images. Raises UserError."""
    require_public(federation, 2, "fedmkd")


FEDMKD = Method(
    Config,
    Client,
    Server,
    Info("FedMKD (Li 2024)", "weights up, momentum target down", stateful=True, heterogeneous=True, public_data=True),
    objective="byol",
    accepts=only("byol"),
    service=Service,
    second_view=True,
    check=check,
    check_federation=check_federation,
    footprint=lambda config, images: ClientFootprint(models=1),
)
