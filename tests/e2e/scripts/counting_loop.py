"""A training loop of one's own whose model says how often each record was trained on."""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elasticdl.torch


class Numbers(Dataset):
    """The number of each record, and features that follow from it."""

    def __init__(self, records):
        self.records = records

    def __len__(self):
        return self.records

    def __getitem__(self, number):
        return number, torch.sin(torch.arange(1, 9) * (0.1 + number))


def main():
    """Trains; a minibatch takes as long as the file of the pace says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int)
    parser.add_argument("--batch", type=int, help="records of an update")
    parser.add_argument("--pace", type=Path)
    parser.add_argument("--commit_only", action="store_true")
    parser.add_argument("--bad", type=int, nargs="*", default=[], help="records whose batch the loop goes on from")
    parser.add_argument("--overflow", type=int, nargs="*", default=[], help="records whose batch has no finite loss")
    args = parser.parse_args()

    torch.manual_seed(3)
    counts = nn.Parameter(torch.zeros(args.records))
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
    dataset = elasticdl.torch.ElasticDataset(Numbers(args.records))
    loader = DataLoader(dataset, batch_size=dataset.batch_size)
    seen = []
    if not args.commit_only:
        # A record's entry is 1 larger with each of its gradients, which are the means of the batch of all workers.
        groups = [{"params": [counts], "lr": args.batch, "momentum": 0.0}, {"params": net.parameters()}]
        optimizer = elasticdl.torch.distributed_optimizer(torch.optim.SGD(groups, lr=0.05, momentum=0.9))

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=bool(args.overflow))
    bad, overflow = torch.tensor(args.bad), torch.tensor(args.overflow)

    def train():
        for numbers, features in loader:
            time.sleep(float(args.pace.read_text()))
            seen.extend(numbers.tolist())
            if args.commit_only:
                dataset.commit()
                continue
            if torch.isin(numbers, bad).any():
                continue
            optimizer.zero_grad()
            loss = net(features).pow(2).mean() - counts[numbers].mean()
            if torch.isin(numbers, overflow).any():
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    elasticdl.torch.run(train)
    found = {"counts": counts.detach(), "seen": torch.tensor(seen)}
    found |= {f"net.{name}": value for name, value in net.state_dict().items()}
    torch.save(found, elasticdl.torch.output_dir() / "found.pt")


if __name__ == "__main__":
    main()
