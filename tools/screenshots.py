"""Takes the pictures of docs/images: the dashboard's views over recorded states, wide and narrow, light and dark.

    ./dev run python tools/screenshots.py [NAME...]

With ``--demo`` the moving picture: the job of the demo on a cluster of its own, from its start to its end.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402
from playwright.sync_api import expect  # noqa: E402

from elasticdl_core.ports.launcher import ProcessId, Role  # noqa: E402
from tests.browser.views import VIEWS, settle  # noqa: E402
from tests.browser.visits import DESKTOP, PHONE, Visit  # noqa: E402
from tests.e2e.local_cluster import Cluster, user_environment  # noqa: E402
from tests.fakes import recorded_states  # noqa: E402
from tests.fakes.browser import launched_chromium  # noqa: E402
from tests.fakes.recorded_cluster import RecordedCluster, recorded_cluster  # noqa: E402
from tests.fakes.recorded_story import STORY  # noqa: E402
from tests.integration.conftest import PostgresServer  # noqa: E402

IMAGES = ROOT / "docs" / "images"
SHOWN = ("cluster", "jobs", "job", "job-processes", "job-failed", "compare", "submit", "admin-tokens")
SIZES = {"desktop": DESKTOP, "phone": PHONE}
COLOURS = 256
MOST_BYTES = 150_000
MOST_FILM_BYTES = 1_500_000
FRAME_MS = 700
WIDE = (1200, 720)
SCALED = {8: 3, 26: 2}
"""Workers that the job of the film gets, by the frame: as many as that of the demo."""


def save(shot: bytes, path: Path) -> None:
    """Writes a picture with a palette, with fewer colours until it is small enough."""
    image = Image.open(io.BytesIO(shot)).convert("RGB")
    for colours in (COLOURS, COLOURS // 2, COLOURS // 4):
        small = image.quantize(colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        small.save(path, optimize=True)
        if path.stat().st_size <= MOST_BYTES:
            return
    raise SystemExit(f"{path} has more than {MOST_BYTES:,} bytes")


def pictures(names: list[str]) -> None:
    """Takes all pictures of some views."""
    IMAGES.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        cluster = stack.enter_context(recorded_cluster(server, recorded_states.everything, slots=1300))
        browser = stack.enter_context(launched_chromium())
        wait_somewhere(cluster)
        for name in names:
            for size_name, size in SIZES.items():
                for scheme in ("light", "dark"):
                    here = Visit(browser, cluster, path=VIEWS[name][0], size=size, scheme=scheme)
                    here.page.locator(VIEWS[name][1]).first.wait_for()
                    settle(here.page)
                    expect(here.page.locator(".life").get_by_text("Connecting")).to_have_count(0)
                    save(here.page.screenshot(), IMAGES / f"{name}-{size_name}-{scheme}.png")
                    here.close()
            print(name, flush=True)


def wait_somewhere(cluster: RecordedCluster) -> None:
    """Gives the story processes whose stacks can be taken."""
    workers = [ProcessId(STORY, Role.WORKER, index, 9) for index in range(6)]
    cluster.launch(*workers, *(ProcessId(STORY, Role.PS, index, 9) for index in range(2)))


def demo() -> None:
    """Films the job of the demo."""
    with tempfile.TemporaryDirectory(prefix="edl-film-", dir="/tmp") as name:
        directory = Path(name)
        cluster = Cluster(directory, user_environment(directory))
        cluster.cli("up", "--port", "0", "--slots", "4", "--policy", "fair", "--detach", timeout=240)
        try:
            cluster.cli("data", "generate", "digits", str(directory / "digits"))
            film(cluster, directory / "digits")
        finally:
            cluster.cli("down", timeout=120)


def film(cluster: Cluster, digits: Path) -> None:
    """Submits the job, scales it, and takes a frame a moment until it is over."""
    job = cluster.submit(
        *("--job_name", "digits", "--model_zoo", str(ROOT / "examples" / "digits" / "zoo")),
        *("--model_def", "digits.forward", "--training_data", str(digits / "train")),
        *("--validation_data", str(digits / "validation"), "--num_epochs", "60", "--minibatch_size", "32"),
        *("--num_ps_pods", "2", "--min_workers", "1", "--max_workers", "1", "--evaluation_steps", "2000"),
    )
    url = json.loads((cluster.data_dir / "cluster.json").read_text())["api_url"]
    shown = RecordedCluster(url, "", cluster.data_dir, None, cluster.token)  # type: ignore[arg-type]
    with launched_chromium() as browser:
        here = Visit(browser, shown, path=f"/#/jobs/{job}", size={"width": WIDE[0], "height": WIDE[1]})
        frames = list(frames_of(here.page, cluster, job))
        here.close()
    first, *rest = frames
    path = IMAGES / "demo.webp"
    for quality in (60, 40, 20):
        first.save(path, save_all=True, append_images=rest, duration=FRAME_MS, loop=0, quality=quality, method=4)
        if path.stat().st_size <= MOST_FILM_BYTES:
            break
    print(path, path.stat().st_size)


def frames_of(page: Any, cluster: Cluster, job: str) -> Any:
    """Frames until the job is over, and a little longer."""
    page.locator(".stats").wait_for()
    for number in range(90):
        yield Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        page.wait_for_timeout(FRAME_MS)
        if number in SCALED:
            count = str(SCALED[number])
            cluster.cli("jobs", "scale", job, "--min_workers", count, "--max_workers", count)
        if number % 4 == 0 and cluster.job(job)["finished_at"]:
            break
    page.wait_for_timeout(2000)
    for _ in range(4):
        yield Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*VIEWS, []], default=[])
    parser.add_argument("--demo", action="store_true", help="film the job of the demo instead")
    options = parser.parse_args()
    if options.demo:
        demo()
    else:
        pictures(options.names or list(SHOWN))
    return 0


if __name__ == "__main__":
    sys.exit(main())
