"""PyTorch modules in situations that people ask about in public: losses, masks, states and layers of their own."""

from __future__ import annotations

from tests.differential.written.torch_modules import OF_CLASSES, OF_IDS

OF_TOKENS = """
def feed(dataset, mode, metadata):
    for record in dataset:
        x, ids, y, c = columns(record)
        tokens = torch.cat([ids % 12, torch.zeros(2, dtype=torch.int64)])
        after = torch.cat([tokens[1:], tokens[:1]]) * (tokens != 0)
        yield tokens if mode == "prediction" else (tokens, after)
"""
MODULES = {
    "siamese_twins_and_a_margin": """
class Twins(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x):
        left, right = self.encoder(x[:, :2]), self.encoder(x[:, 2:])
        return F.pairwise_distance(left, right)


forward = Twins


def feed(dataset, mode, metadata):
    for record in dataset:
        x, ids, y, c = columns(record)
        yield x if mode == "prediction" else (x, (c > 0).float())


def loss(labels, predictions):
    apart = F.relu(0.8 - predictions)
    return (labels * predictions.pow(2) + (1 - labels) * apart.pow(2)).mean()


def optimizer():
    return functools.partial(optim.Adadelta, lr=0.5)
""",
    "an_autoencoder_with_two_losses": """
from typing import NamedTuple


class Coded(NamedTuple):
    again: torch.Tensor
    code: torch.Tensor


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 6), nn.Mish(), nn.Linear(6, 2))
        self.decoder = nn.Sequential(nn.Linear(2, 6), nn.Mish(), nn.Linear(6, 4))

    def forward(self, x):
        code = self.encoder(x)
        return Coded(self.decoder(code), code)


forward = Autoencoder


def feed(dataset, mode, metadata):
    for record in dataset:
        x, ids, y, c = columns(record)
        yield x if mode == "prediction" else (x, x)


def loss(labels, predictions):
    return F.mse_loss(predictions.again, labels) + 0.05 * predictions.code.abs().sum(1).mean()


def optimizer():
    return functools.partial(optim.NAdam, lr=0.02)
""",
    "a_gru_that_packs_padded_words": OF_TOKENS
    + """
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(12, 6, padding_idx=0)
        self.gru = nn.GRU(6, 5, batch_first=True)
        self.out = nn.Linear(5, 12)

    def forward(self, tokens):
        lengths = tokens.ne(0).sum(1).clamp(min=1).cpu()
        packed = pack_padded_sequence(self.words(tokens), lengths, batch_first=True, enforce_sorted=False)
        hidden, last = self.gru(packed)
        hidden, lengths = pad_packed_sequence(hidden, batch_first=True, total_length=tokens.shape[1])
        return self.out(hidden)


forward = Language


def loss(labels, predictions):
    return F.cross_entropy(predictions.transpose(1, 2), labels, ignore_index=0)


def optimizer():
    return functools.partial(optim.Adam, lr=0.02)
""",
    "heads_weighted_by_what_they_learn": """
class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU())
        self.value, self.kind = nn.Linear(8, 1), nn.Linear(8, 3)
        self.noise = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        hidden = self.trunk(x)
        return {
            "value": self.value(hidden).squeeze(-1),
            "kind": self.kind(hidden),
            "noise": self.noise.expand(len(x), 2),
        }


forward = Weighted


def feed(dataset, mode, metadata):
    for record in dataset:
        x, ids, y, c = columns(record)
        yield x if mode == "prediction" else (x, {"value": y, "kind": c})


def loss(labels, predictions):
    value = F.mse_loss(predictions["value"], labels["value"], reduction="none")
    kind = F.cross_entropy(predictions["kind"], labels["kind"], reduction="none")
    both, noise = torch.stack([value, kind], 1), predictions["noise"]
    return (torch.exp(-noise) * both + noise).sum(1).mean()
""",
    "a_residual_net_with_batch_norm": OF_CLASSES
    + """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return F.relu(x + self.body(x), inplace=True)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 1)
        self.blocks = nn.Sequential(Block(4), Block(4))
        self.fc = nn.Linear(4, 3)
        for one in self.modules():
            if isinstance(one, nn.Conv2d):
                nn.init.kaiming_normal_(one.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.blocks[-1].body[-1].weight)

    def forward(self, x):
        image = x.view(-1, 1, 2, 2).to(memory_format=torch.channels_last)
        if self.training:
            image = image.flip(-1) + 0.1
        return self.fc(self.blocks(self.stem(image)).mean((2, 3)))


forward = Residual


def loss(labels, predictions):
    return F.cross_entropy(predictions, labels, label_smoothing=0.1)


def optimizer():
    return functools.partial(optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-4)
""",
    "spectral_norm": """
from torch.nn.utils.parametrizations import spectral_norm


def forward():
    return nn.Sequential(spectral_norm(nn.Linear(4, 6)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(6, 1)))


def loss(labels, predictions):
    return F.softplus(-labels * predictions.squeeze(-1)).mean()
""",
    "a_decoder_of_transposed_convolutions": """
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(4, 16)
        self.up = nn.ConvTranspose2d(4, 8, 4, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 8)
        self.shuffle = nn.PixelShuffle(2)
        self.last = nn.ConvTranspose2d(2, 1, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x):
        image = self.project(x).unflatten(1, (4, 2, 2))
        image = F.interpolate(F.silu(self.norm(self.up(image))), scale_factor=0.5, mode="bilinear")
        return torch.sigmoid(self.last(self.shuffle(image))).flatten(1).mean(1)


forward = Decoder


def optimizer():
    return functools.partial(optim.RAdam, lr=0.02)
""",
    "attention_that_leaves_padding_out": OF_TOKENS
    + """
class Attending(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.words = nn.Embedding(12, width)
        self.query = nn.Parameter(torch.randn(1, 1, width))
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True, add_zero_attn=True)
        self.out = nn.Linear(width, 1)

    def forward(self, tokens):
        keys = self.words(tokens)
        query = self.query.expand(tokens.size(0), -1, -1)
        pooled, _ = self.attention(query, keys, keys, key_padding_mask=tokens == 0, need_weights=False)
        return self.out(pooled.squeeze(1))


forward = Attending


def loss(labels, predictions):
    return F.binary_cross_entropy_with_logits(predictions.squeeze(-1), (labels[:, 0] > 4).float())


def optimizer():
    return functools.partial(optim.AdamW, lr=0.02)
""",
    "wide_and_deep_with_weighted_bags": OF_IDS
    + """
class WideAndDeep(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.EmbeddingBag(50, 1, mode="sum")
        self.deep = nn.EmbeddingBag(50, 4, mode="sum")
        self.top = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1))

    def forward(self, x, ids):
        weights = torch.softmax(x[:, :3], -1)
        offsets = torch.arange(0, ids.numel(), ids.size(1), device=ids.device)
        bag = self.deep(ids.reshape(-1), offsets, per_sample_weights=weights.reshape(-1))
        return self.wide(ids) + self.top(torch.cat([bag, x], 1))


forward = WideAndDeep


def optimizer():
    return functools.partial(optim.Adagrad, lr=0.05)
""",
    "gradients_clipped_by_hooks": """
def forward():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: torch.clamp(gradient, -0.05, 0.05))
    return model
""",
    "a_low_rank_addition_to_frozen_layers": """
class LoRA(nn.Module):
    def __init__(self, base, rank=2, alpha=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.empty(rank, base.in_features))
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + (x @ self.a.T @ self.b.T) * self.scale


def forward():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
    for name, layer in list(model.named_children()):
        if isinstance(layer, nn.Linear):
            setattr(model, name, LoRA(layer))
    return model


def optimizer(model):
    return optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=0.02, weight_decay=0.0)
""",
    "activations_that_are_computed_again": """
from torch.utils.checkpoint import checkpoint


class Frugal(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))
        self.cell = nn.LSTMCell(1, 4)

    def forward(self, x):
        hidden = cell = x.new_zeros(x.size(0), 4)
        for step in range(x.size(1)):
            hidden, cell = self.cell(x[:, step : step + 1], (hidden, cell))
        for layer in self.layers:
            hidden = hidden + checkpoint(layer, hidden, use_reentrant=False)
        return hidden.mean(1)


forward = Frugal
""",
}
