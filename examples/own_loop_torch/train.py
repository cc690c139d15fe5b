"""Handwritten digits with a training loop of one's own: plain PyTorch, and four lines that make it elastic."""

import argparse

import torch
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader

import elasticdl.torch
from elasticdl.data import create_data_reader, decode_example


def parse(record):
    """An image and its label, of a serialized ``tf.train.Example``."""
    features = decode_example(record)
    return torch.tensor(features["image"]).reshape(1, 8, 8) / 16.0, features["label"][0]


def accuracy(model, path):
    """The share of the records of a directory that the model gets right."""
    reader = create_data_reader(path)
    samples = [parse(record) for shard in reader.create_shards() for record in reader.read_records(shard)]
    images, labels = torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])
    with torch.no_grad():
        return (model(images).argmax(1) == labels).float().mean().item()


def main():
    """Trains, evaluates, saves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--validation_data")
    args = parser.parse_args()

    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 3 * 3, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    dataset = elasticdl.torch.ElasticDataset(transform=parse)
    loader = DataLoader(dataset, batch_size=dataset.batch_size)
    optimizer = elasticdl.torch.distributed_optimizer(torch.optim.Adam(model.parameters(), lr=args.lr), model=model)

    def train():
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    elasticdl.torch.run(train)

    model.eval()
    if args.validation_data:
        print(f"accuracy {accuracy(model, args.validation_data):.4f}")
    save_file(model.state_dict(), elasticdl.torch.output_dir() / "model.safetensors")


if __name__ == "__main__":
    main()
