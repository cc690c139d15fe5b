"""Stands for a process of a job that can be asked what it does: does what the variable STUB says."""

import asyncio
import os
import re
import sys
import threading
import time
from pathlib import Path

from elasticdl_runtime.lifecycle import run_service
from elasticdl_runtime.telemetry.spans import span


def hold_the_loop() -> None:
    while True:
        time.sleep(60)


def hold_the_interpreter() -> None:
    re.match(r"(a+)+b", "a" * 60)


async def main(stop: asyncio.Event) -> int:
    behaviour = os.environ["STUB"]
    place = Path(os.environ["ELASTICDL_INSPECTION"])
    print("ready", flush=True)
    if behaviour == "hang":
        hold_the_loop()
    elif behaviour == "hold":
        hold_the_interpreter()
    elif behaviour == "stop":
        os.kill(os.getpid(), 19)
    elif behaviour == "pipe":
        place.unlink()
        os.mkfifo(place)
    elif behaviour == "link":
        place.unlink()
        place.symlink_to("/etc/passwd")
    elif behaviour == "flood":
        with place.open("ab") as file:
            while not stop.is_set():
                file.write(b'{"threads": [' * 10_000)
                file.flush()
                os.ftruncate(file.fileno(), 0)
                await asyncio.sleep(0)
    thread = threading.Thread(target=stop_later, name="training", args=(stop,), daemon=True)
    thread.start()
    with span("a step", "step"):
        await stop.wait()
    return 0


def stop_later(stop: asyncio.Event) -> None:
    while not stop.is_set():
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(run_service(main))
