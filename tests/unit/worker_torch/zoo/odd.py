"""Models that change themselves while they train, and models of which PyTorch would decide how they are computed."""

import functools

import torch
from grouped import feed, loss  # noqa: F401
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.out = nn.Linear(3, 1)

    def forward(self, x):
        if self.training:
            self.before()
        return self.out(self.body(x)).squeeze(-1)

    def before(self):
        pass


class Clamps(Net):
    def before(self):
        with torch.no_grad():
            self.out.weight.clamp_(-0.1, 0.1)


class ClampsData(Net):
    def before(self):
        self.out.weight.data = self.out.weight.data.clamp(-0.1, 0.1)


class Replaces(Net):
    def before(self):
        self.out.weight = nn.Parameter(self.out.weight.detach() * 0.5)


class Unfreezes(Net):
    def __init__(self):
        super().__init__()
        self.body.requires_grad_(False)
        self.steps = 0

    def before(self):
        self.steps += 1
        self.body.requires_grad_(self.steps > 2)


class Grows(Net):
    def before(self):
        self.more = nn.Linear(1, 1)


class MakesBuffer(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", None)

    def before(self):
        self.mean = torch.zeros(3)


class UpdatesInBackward(Net):
    def __init__(self):
        super().__init__()
        own = torch.optim.SGD([self.out.weight], lr=0.1)
        self.out.weight.register_post_accumulate_grad_hook(lambda weight: own.step())


class Averages(Net):
    def __init__(self):
        super().__init__()
        self.average = AveragedModel(self.out, avg_fn=lambda mean, value, count: 0.9 * mean + 0.1 * value)

    def before(self):
        self.average.update_parameters(self.out)


class Lazy(Net):
    def __init__(self):
        super().__init__()
        self.head = nn.LazyLinear(1)


class Wraps(Net):
    def forward(self, x):
        return {"out": super().forward(x).sum().item()}


def elsewhere():
    net = Net()
    net.far = nn.Parameter(torch.zeros(3, device="meta"))
    return net


def scripted():
    return torch.jit.script(nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)))


def compiled():
    return nn.Sequential(torch.compile(nn.Linear(3, 1), backend="eager"), nn.Flatten(0))


def parallel():
    return nn.DataParallel(Net())


def synchronised():
    return nn.Sequential(nn.Linear(3, 4), nn.SyncBatchNorm(4), nn.Linear(4, 1), nn.Flatten(0))


SCALE = nn.Parameter(torch.ones(()))


class InList(Net):
    """The classic mistake: layers in a list and a dict, of which PyTorch does not know."""

    def __init__(self):
        super().__init__()
        self.layers = [nn.Identity(), {"first": nn.Identity(), "second": nn.Linear(3, 3)}]

    def forward(self, x):
        return super().forward(self.layers[1]["second"](x))


class OfTheFile(Net):
    def forward(self, x):
        return super().forward(x) * SCALE


class Learns(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, labels, predictions):
        return loss(labels, predictions * self.scale)


learns = Learns()


class Teacher(Net):
    """Layers that are hidden on purpose: one is used without gradients, one has none."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        weights = torch.randn(2, 3, 3, generator=generator)
        self.teachers = [nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False).requires_grad_(False)]
        for layer, weight in zip(self.teachers, weights, strict=True):
            layer.weight.data.copy_(weight)

    def forward(self, x):
        x = x.clone().requires_grad_() if self.training else x
        with torch.no_grad():
            told = self.teachers[0](x)
        return super().forward(self.teachers[1](x) + told)


class Plain(Net):
    """A weight that is not contiguous, one in another memory format, weight and spectral norms, a hook."""

    def __init__(self):
        super().__init__()
        self.turned = nn.Parameter(torch.randn(3, 5).t())
        self.image = nn.Conv2d(2, 3, 3, padding=1).to(memory_format=torch.channels_last)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
        self.lazy = nn.LazyLinear(3)
        self.body.weight.register_hook(lambda gradient: gradient * 0.5)

    def forward(self, x):
        pixels = x[:, None, :, None].expand(-1, 2, 3, 3).contiguous(memory_format=torch.channels_last)
        x = self.normed(nn.functional.linear(x, self.turned)) + self.image(pixels).mean((2, 3))
        return super().forward(self.lazy(self.body(self.spectral(x))))


class Expanded(Net):
    """A buffer whose rows are one row of memory; or a view of another buffer."""

    def __init__(self, of_another=False):
        super().__init__()
        row = torch.full((1, 3), 0.5)
        if of_another:
            self.register_buffer("row", row)
        self.register_buffer("scale", row.expand(4, 3))

    def forward(self, x):
        return super().forward(x * self.scale.sum(0))


class ExpandsAnother(Expanded):
    def __init__(self):
        super().__init__(of_another=True)


class Checkpointed(Net):
    """Runs its embedding, and its dropout if it has one, again in the backward pass."""

    def __init__(self, reentrant=False, dropout=0.0):
        super().__init__()
        self.rows = nn.Embedding(50, 3)
        self.dropout = nn.Dropout(dropout)
        self.reentrant = reentrant

    def inner(self, x):
        rows = self.rows((x[:, 0].abs() * 3).long())
        return self.rows((x[:, 1].abs() * 3).long()) * self.dropout(rows) + x

    def forward(self, x):
        return super().forward(checkpoint(self.inner, x.requires_grad_(), use_reentrant=self.reentrant))


class Whole(Checkpointed):
    """The same without checkpoints."""

    def forward(self, x):
        return Net.forward(self, self.inner(x))


class Roots(Net):
    """A gradient that is not finite where the loss is."""

    def forward(self, x):
        return super().forward(x) + (self.out.weight.sum() * 0.0).abs().sqrt()


MODELS = {kind.__name__: kind for kind in [Net, *Net.__subclasses__()]} | {
    kind.__name__: kind for kind in (Whole, ExpandsAnother)
}


def model(kind, **options):
    return MODELS[kind](**options)


def optimizer():
    return functools.partial(torch.optim.SGD, lr=0.05)
