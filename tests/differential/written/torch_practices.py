"""PyTorch modules by what people do in training: schedules, clipping, shared and frozen parts, losses, own state."""

from __future__ import annotations

from tests.differential.written.torch_modules import OF_CLASSES, OF_IDS

NET = """
def forward():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
"""
MODULES = {
    "warm_restarts": NET
    + """
def optimizer():
    restarts = functools.partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=3, T_mult=2)
    return functools.partial(optim.Adam, lr=0.03), restarts
""",
    "a_warm_up_and_then_a_decay": NET
    + """
def schedule(optimizer):
    warm = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=4)
    return lr_scheduler.SequentialLR(optimizer, [warm, lr_scheduler.ExponentialLR(optimizer, 0.8)], milestones=[4])


def optimizer():
    return functools.partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True), schedule
""",
    "gradients_clipped_by_value": NET
    + """
from elasticdl.callbacks import GradientClipping


def callbacks():
    return [GradientClipping(clip_value=0.02)]
""",
    "gradients_clipped_by_the_largest": NET
    + """
from elasticdl.callbacks import GradientClipping


def callbacks():
    return [GradientClipping(0.05, float("inf"))]
""",
    "a_decoder_that_is_the_encoder_turned": """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 3)
        self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.t(), self.bias)


forward = Tied


def feed(dataset, mode, metadata):
    for record in dataset:
        x, ids, y, c = columns(record)
        yield x if mode == "prediction" else (x, x)


def loss(labels, predictions):
    return F.smooth_l1_loss(predictions, labels, beta=0.3)


def optimizer():
    return functools.partial(optim.AdamW, lr=0.02, weight_decay=0.1)
""",
    "one_module_in_two_others": """
class Half(nn.Module):
    def __init__(self, common):
        super().__init__()
        self.common, self.own = common, nn.Linear(4, 4)

    def forward(self, x):
        return self.common(F.relu(self.own(x)))


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        common = nn.Linear(4, 2)
        self.halves = nn.ModuleDict({"left": Half(common), "right": Half(common)})
        self.scale = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        return (self.halves["left"](x) - self.scale * self.halves["right"](x.flip(-1))).sum(-1)


forward = Both


def optimizer():
    return functools.partial(optim.Adamax, lr=0.02)
""",
    "smoothed_classes_by_weight": OF_CLASSES
    + """
def forward():
    return nn.Sequential(nn.Linear(4, 6), nn.ELU(), nn.Linear(6, 3))


def loss(labels, predictions):
    weight = torch.tensor([1.0, 5.0, 20.0])
    return F.cross_entropy(predictions, labels, weight=weight, label_smoothing=0.1, ignore_index=1)
""",
    "positive_weights_of_several_labels": """
def forward():
    return nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 3))


def feed(dataset, mode, metadata):
    for record in dataset:
        x, ids, y, c = columns(record)
        yield x if mode == "prediction" else (x, F.one_hot(c, 3).float())


class Loss(nn.BCEWithLogitsLoss):
    def __init__(self):
        super().__init__(pos_weight=torch.tensor([1.0, 3.0, 9.0]))

    def forward(self, labels, predictions):
        return super().forward(predictions, labels)


loss = Loss()
""",
    "weights_of_records_in_the_labels": """
forward = lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU6(), nn.Linear(6, 1))


def feed(dataset, mode, metadata):
    for record in dataset:
        x, ids, y, c = columns(record)
        yield x if mode == "prediction" else (x, {"y": y, "weight": 1.0 + ids[0].float()})


def loss(labels, predictions):
    each = F.huber_loss(predictions.squeeze(-1), labels["y"], reduction="none")
    return (labels["weight"] * each).sum() / labels["weight"].sum()
""",
    "words_pooled_by_their_maximum": OF_IDS
    + """
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(60, 5, padding_idx=0)
        self.lstm = nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.first = nn.ParameterList([nn.Parameter(torch.zeros(4, 1, 4)), nn.Parameter(torch.zeros(4, 1, 4))])
        self.out = nn.Linear(8, 1)

    def forward(self, x, ids):
        states = tuple(one.expand(-1, len(ids), -1).contiguous() for one in self.first)
        found, _ = self.lstm(self.words(ids), states)
        found = found.masked_fill((ids == 0).unsqueeze(-1), -10.0)
        return self.out(found.max(1).values)


forward = Reader


def optimizer():
    return functools.partial(optim.RMSprop, lr=0.005, momentum=0.5, centered=True)
""",
    "a_centre_that_follows_its_inputs": """
class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 1)
        self.register_buffer("centre", torch.zeros(5))

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        found = self.last(hidden - self.centre)
        if self.training:
            with torch.no_grad():
                self.centre.mul_(0.9).add_(hidden.mean(0), alpha=0.1)
        return found


forward = Centred
""",
    "records_counted_by_kind": """
class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 1)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        if self.training:
            kind = (x.sum(1) > 0).long() + (x[:, 0] > 0).long()
            self.seen += torch.bincount(kind, minlength=3)
            self.steps += 1
        return self.last(x)


forward = Counting
""",
    "triplets_with_a_margin": """
class Triplets(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 6), nn.PReLU(), nn.Linear(6, 3))

    def forward(self, x):
        return self.net(x[:, :2]), self.net(x[:, 1:3]), self.net(x[:, 2:])


forward = Triplets


def loss(labels, predictions):
    return F.triplet_margin_loss(*predictions, margin=0.5)
""",
    "a_divergence_by_records": OF_CLASSES
    + """
def forward():
    return nn.Sequential(nn.Linear(4, 6), nn.SELU(), nn.Linear(6, 3), nn.LogSoftmax(-1))


def loss(labels, predictions):
    wanted = 0.8 * F.one_hot(labels, 3) + 0.2 / 3
    return F.kl_div(predictions, wanted, reduction="batchmean")
""",
    "quantiles": """
forward = lambda: nn.Sequential(nn.Linear(4, 8), nn.Hardswish(), nn.Linear(8, 3))


def loss(labels, predictions):
    at = torch.tensor([0.1, 0.5, 0.9])
    apart = labels.unsqueeze(-1) - predictions
    return torch.maximum(at * apart, (at - 1) * apart).mean()
""",
    "a_symmetric_parametrization": """
from torch.nn.utils import parametrize


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).transpose(-1, -2)


def forward():
    layer = nn.Linear(4, 4)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(4, 1))
""",
    "norms_of_each_record_and_frozen_statistics": """
class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 12)
        self.norm = nn.InstanceNorm1d(3, affine=True)
        self.frozen = nn.BatchNorm1d(12)
        self.last = nn.Linear(12, 1)
        self.frozen.weight.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x):
        hidden = self.frozen(self.up(x))
        return self.last(self.norm(hidden.view(-1, 3, 4)).flatten(1))


forward = Norms
""",
    "an_auxiliary_output_in_training_only": """
class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.aux, self.last = nn.Linear(4, 6), nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        found = self.last(hidden).squeeze(-1)
        return (found, self.aux(hidden).squeeze(-1)) if self.training else found


forward = Deep


def loss(labels, predictions):
    if isinstance(predictions, tuple):
        return F.mse_loss(predictions[0], labels) + 0.4 * F.mse_loss(predictions[1], labels)
    return F.mse_loss(predictions, labels)
""",
    "sixteen_bits_within": """
class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = torch.relu(self.first(x))
        return self.last(hidden.float())


forward = Halves
""",
    "a_step_that_passes_gradients_through": """
class Rounded(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x):
        code = torch.sigmoid(self.first(x))
        return self.last(code + (code.round() - code).detach())


forward = Rounded


def optimizer():
    return functools.partial(optim.NAdam, lr=0.02, momentum_decay=0.01)
""",
    "named_parameters_without_a_use": """
class Spare(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(4, 1), nn.Linear(4, 1)
        self.table = nn.ParameterDict({"a": nn.Parameter(torch.ones(1)), "b": nn.Parameter(torch.ones(1))})
        self.nothing = nn.Parameter(torch.empty(0))

    def forward(self, x):
        return self.used(x) * self.table["a"]


forward = Spare


def optimizer(model):
    decay = [one for name, one in model.named_parameters() if name.endswith("weight")]
    others = [one for name, one in model.named_parameters() if not name.endswith("weight")]
    return optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=0.01)
""",
    "bags_of_other_lengths": """
def feed(dataset, mode, metadata):
    for record in dataset:
        x, ids, y, c = columns(record)
        ids = ids[: 1 + int(c)]
        yield ids if mode == "prediction" else (ids, y)


def collate(samples):
    bags, labels = zip(*samples)
    return torch.nn.utils.rnn.pad_sequence(bags, batch_first=True, padding_value=0), torch.stack(labels)


class Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 4, mode="mean", padding_idx=0)
        self.last = nn.Linear(4, 1)

    def forward(self, ids):
        return self.last(self.bag(ids))


forward = Bags
""",
    "one_cycle": NET
    + """
def optimizer():
    cycle = functools.partial(lr_scheduler.OneCycleLR, max_lr=0.2, total_steps=12, cycle_momentum=False)
    return functools.partial(optim.SGD, lr=0.1, momentum=0.9), cycle
""",
    "schedules_in_a_chain": NET
    + """
def schedule(optimizer):
    both = lr_scheduler.ConstantLR(optimizer, 0.1, 4), lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.9)
    return lr_scheduler.ChainedScheduler(both)


def optimizer():
    return functools.partial(optim.AdamW, lr=0.05), schedule
""",
    "an_average_of_its_weights": """
class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)
        self.register_buffer("average", self.net.weight.detach().clone())

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.average.lerp_(self.net.weight, 0.1)
            return self.net(x)
        return F.linear(x, self.average, self.net.bias)


forward = Averaged
""",
    "a_penalty_on_gradients": """
class Smooth(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x):
        if not self.training:
            return self.net(x).squeeze(-1)
        x = x.detach().requires_grad_(True)
        found = self.net(x).squeeze(-1)
        (slopes,) = torch.autograd.grad(found.sum(), x, create_graph=True)
        return found, (slopes.norm(dim=1) - 1) ** 2


forward = Smooth


def loss(labels, predictions):
    if isinstance(predictions, tuple):
        return F.mse_loss(predictions[0], labels) + 0.1 * predictions[1].mean()
    return F.mse_loss(predictions, labels)
""",
    "a_scale_that_is_learned": """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.scale = nn.Linear(4, 1), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return {"mean": self.mean(x).squeeze(-1), "variance": (2 * self.scale).exp().expand(len(x))}


forward = Scaled


def loss(labels, predictions):
    return F.gaussian_nll_loss(predictions["mean"], labels, predictions["variance"])
""",
    "a_head_that_begins_later": """
class Later(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 1), nn.Linear(4, 1)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        found = self.first(x)
        if self.training:
            self.steps += 1
        return found + self.second(x) if self.steps > 4 else found


forward = Later


def optimizer():
    return functools.partial(optim.RAdam, lr=0.05)
""",
    "experts_that_are_balanced": """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 1) for _ in range(3))

    def forward(self, x):
        shares = self.gate(x).softmax(-1)
        chosen = shares.argmax(-1)
        each = [shares[:, n] * (chosen == n) * one(x).squeeze(-1) for n, one in enumerate(self.experts)]
        used = torch.stack([(chosen == n).float().mean() for n in range(3)])
        return sum(each), 3 * (used * shares.mean(0)).sum()


forward = Experts


def loss(labels, predictions):
    return F.mse_loss(predictions[0], labels) + 0.1 * predictions[1]
""",
}
REFUSED = {
    "sixty_four_bits": """
class Precise(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double()

    def forward(self, x):
        return self.net(x.double()).float()


forward = Precise
""",
    "complex_weights": """
class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, dtype=torch.cfloat))
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=4))


forward = Spectral
""",
}
