"""A classifier, and losses of every kind: with denominators of their own, sums, and what parts cannot make."""

import functools

import torch
from torch import nn
from torch.nn import functional

WEIGHTS = torch.tensor([1.0, 20.0, 3.0])


def net():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))


def heads():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 3), nn.Linear(8, 3)

        def forward(self, x):
            hidden = torch.tanh(self.body(x))
            return {"first": self.first(hidden), "second": self.second(hidden), "size": hidden.square().mean()}

    return Heads()


class Judging(nn.Module):
    """Computes the loss itself, beside its outputs, as models of libraries do; its label is made of a feature."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.body, self.norm = nn.Linear(3, 8), nn.LayerNorm(8)
        self.drop, self.out = nn.Dropout(0.0), nn.Linear(8, 3)

    def forward(self, x):
        logits = self.out(self.drop(self.norm(torch.tanh(self.body(x)))))
        labels = torch.bucketize(x[:, 0].contiguous(), torch.tensor([0.3, 1.2], dtype=x.dtype))
        found = functional.cross_entropy
        if self.how == "weighed":
            loss = found(logits, labels, weight=WEIGHTS.to(logits.dtype))
        elif self.how == "ignoring":
            loss = found(logits, labels, ignore_index=0)
        elif self.how == "added":
            loss = 0.01 * found(logits, labels, reduction="sum")
        elif self.how == "root":
            loss = found(logits, labels).sqrt()
        elif self.how == "narrow":  # insists on 32 bits
            loss = found(logits.float(), labels, weight=WEIGHTS)
        else:
            loss = found(logits, labels)
        return loss, logits


def judging(how="mean"):
    return Judging(how)


def own(labels, predictions):
    return predictions[0]


def own_and_ours(labels, predictions):
    return predictions[0] + 0.1 * functional.mse_loss(predictions[1][:, 0], labels.float())


class ByTime(nn.Module):
    """Gives what it makes of each moment, by time, then by record."""

    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(1, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.rnn(x.T[:, :, None])[0])


def by_time():
    return ByTime()


def moments(labels, predictions):
    """Of the last moment alone, of three."""
    assert predictions.shape[0] == 3
    return functional.cross_entropy(predictions[-1], labels, weight=WEIGHTS.to(predictions.dtype))


def each_moment(labels, predictions):
    assert predictions.shape[0] == 3
    return functional.cross_entropy(predictions.permute(1, 2, 0), labels[:, None].expand(-1, 3), ignore_index=0)


def optimizer():
    return functools.partial(torch.optim.SGD, lr=0.1)


def feed(dataset, mode, metadata):
    """The class by the first number; 7 of 8 of the first records are of one class."""
    for record in dataset:
        values = torch.tensor([float(record[name]) for name in metadata.column_names])
        yield values[1:], torch.bucketize(values[0], torch.tensor([0.3, 1.2]))


def mean(labels, predictions):
    return functional.cross_entropy(predictions, labels)


def each(labels, predictions):
    return functional.cross_entropy(predictions, labels, reduction="none")


def weighed(labels, predictions):
    return functional.cross_entropy(predictions, labels, weight=WEIGHTS)


def ignoring(labels, predictions):
    return functional.cross_entropy(predictions, labels, ignore_index=0)


def added(labels, predictions):
    return 0.01 * functional.cross_entropy(predictions, labels, reduction="sum")


def masked(labels, predictions):
    mask = (labels > 0).float()
    return (functional.cross_entropy(predictions, labels, reduction="none") * mask).sum() / mask.sum().clamp(min=1)


def in_place(labels, predictions):
    labels -= 1
    return functional.cross_entropy(predictions.mul_(2.0), labels, ignore_index=-1)


def contrastive(labels, predictions):
    own = functional.normalize(predictions)
    return functional.cross_entropy(own @ own.T * 5, torch.arange(len(own)))


def pairs(labels, predictions):
    return (predictions[:, None, 0] - predictions[None, :, 0] - 1).square().mean()


def root(labels, predictions):
    return functional.mse_loss(predictions[:, 0], labels.float()).sqrt()


def largest(labels, predictions):
    return nn.functional.cross_entropy(predictions, labels, reduction="none").max()


def standardised(labels, predictions):
    return functional.mse_loss(
        (predictions[:, 0] - predictions[:, 0].mean()) / predictions[:, 0].std(), labels.float()
    )


def added_and_regularised(labels, predictions):
    return functional.cross_entropy(predictions, labels, reduction="sum") + 3.0


def drawing(labels, predictions):
    return (functional.cross_entropy(predictions, labels, reduction="none") * torch.rand(len(labels))).mean()


def two_heads(labels, predictions):
    return mean(labels, predictions["first"]) + ignoring(labels, predictions["second"])


def alike_heads(labels, predictions):
    return ignoring(labels, predictions["first"]) + ignoring(labels, predictions["second"])


def size(labels, predictions):
    return predictions["size"]


def clamped():
    model = net()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return model


def clamped_afterwards():
    def clamp(parameter):
        parameter.grad.clamp_(-0.01, 0.01)

    model = net()
    model[0].weight.register_post_accumulate_grad_hook(clamp)
    return model


def clamped_between():
    class Clamped(nn.Sequential):
        def forward(self, x):
            hidden = super().forward(x)
            if hidden.requires_grad:
                hidden.register_hook(lambda gradient: gradient / (gradient.norm() + 1e-6))
            return hidden

    return Clamped(*net())


def some_frozen():
    model, kept = net(), torch.ones(8, 3)
    kept[0] = 0.0
    model[0].weight.register_hook(lambda gradient: gradient * kept)
    return model
