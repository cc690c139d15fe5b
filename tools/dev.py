"""The project's own commands. Standard library only: it makes the environment that everything else needs.

./dev demo      install, bring up a local cluster, train digits elastically, export, check the export, clean up
./dev test      install what the tests need and run them (--rotation N: whose turn it is; arguments go to pytest)
./dev check     lint (ruff), types (mypy strict), import contracts, generated code
./dev up|down|status   the local cluster (arguments go to elasticdl)
./dev bench     list the benchmarks; ./dev bench NAME runs one (arguments go to it)
./dev experiment list the experiments with real jobs; ./dev experiment NAME runs one
./dev slow      the slow suites: soak, fuzz, thousands of seeds, planted faults
./dev steady    the tests again and again in shuffled order, half of the times beside busy processes (--times, --load)
./dev kubernetes  the suites of the Kubernetes launcher on the real cluster that ELASTICDL_TEST_KUBECONFIG names
./dev containers  docker-compose.yml in a Docker engine: built, used, killed (--debian: where no registry is reached)
./dev machines  the commands on many kinds of machine, each made of this one by namespaces, limits and other users
./dev mutants   plant known faults in a copy of the source and see the tests notice (--list; names choose)
./dev protos    generate the wire protocols' code (--check compares)
./dev client    generate the blocking client from the asyncio client (--check compares)
./dev docs      generate the reference pages and the Helm chart (--check compares)
./dev format    format the code
./dev lock      write constraints.txt from the environment
./dev setup     make the environment only
./dev run ...   run a command inside the environment
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VENV = Path(os.environ.get("ELASTICDL_DEV_VENV", ROOT / ".venv"))
BIN = VENV / "bin"
RUN_EXTRAS = ("local",)
TEST_EXTRAS = (*RUN_EXTRAS, "dev", "torch-dev")
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INSTALL_TIMEOUT_S = 1800
APT_TIMEOUT_S = 300
_NO_SOLUTION = 1
"""Exit code of uv where no versions fit together; it is 2 where it could not ask."""
_CHILDREN: set[subprocess.Popen[Any]] = set()
_MISLEADING = {
    *("PYTHONHOME", "PYTHONDONTWRITEBYTECODE"),
    *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV"),
}
_UV_OPTIONS = {
    "find-links": "--find-links",
    "index-url": "--index-url",
    "extra-index-url": "--extra-index-url",
    "trusted-host": "--allow-insecure-host",
}
_PIP_LEVELS = "global user site install :env:"
"""Of pip's configuration; a later one precedes."""
_INDEXES_OF_UV = ("UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_EXTRA_INDEX_URL")


def say(text: str) -> None:
    """Prints one step."""
    print(f"dev: {text}", file=sys.stderr, flush=True)


def fail(message: str, fix: str) -> SystemExit:
    """An error that says what to do next."""
    return SystemExit(f"dev: error: {message}\n  fix: {fix}")


def run(command: Sequence[str | Path], *, timeout: float | None = None, env: dict[str, str] | None = None) -> int:
    """Runs a command in the project's root, which signals reach; returns its exit code.

    Raises:
        KeyboardInterrupt: the command ended by Ctrl-C.
    """
    process = subprocess.Popen([str(part) for part in command], cwd=ROOT, env={**environment(), **(env or {})})
    started, interrupted = time.monotonic(), False
    with started_here(process):
        while True:
            try:
                result = process.wait(timeout=timeout)
                break
            except KeyboardInterrupt:
                interrupted = True
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                print(f"dev: {command[0]} ran longer than {time.monotonic() - started:.0f} s", file=sys.stderr)
                return 124
    if interrupted and result:
        raise KeyboardInterrupt
    return result


@contextlib.contextmanager
def started_here(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Has a process told when this one is told to end."""
    _CHILDREN.add(process)
    try:
        yield
    finally:
        _CHILDREN.discard(process)


def pass_on(number: int, _: object) -> None:
    """Hands a signal to what runs; where nothing does, ends."""
    for process in tuple(_CHILDREN):
        process.send_signal(number)
    if not _CHILDREN:
        raise SystemExit(128 + number)


def environment() -> dict[str, str]:
    """The environment of every command: the virtual environment first, bytecode compiled once.

    Settings of pip that put packages elsewhere than into that environment are left out.
    """
    env = {key: value for key, value in os.environ.items() if key not in _MISLEADING}
    env["PIP_USER"] = "0"  # also where pip's configuration says otherwise
    env["VIRTUAL_ENV"] = str(VENV)
    env["PATH"] = f"{BIN}{os.pathsep}{env.get('PATH', '')}"
    env.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    return env


def ensure(extras: Sequence[str]) -> None:
    """Makes or updates the virtual environment when what it depends on has changed."""
    stamp = VENV / ".elasticdl-stamp"
    digest = hashlib.sha256()
    for name in ("constraints.txt", "pyproject.toml"):
        digest.update((ROOT / name).read_bytes())
    digest.update(str(ROOT).encode())
    held = stamp.read_text().split() if stamp.is_file() else []
    if held and held[0] == digest.hexdigest() and set(extras) <= set(held[1:]):
        return
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = sorted(set(extras) | (set(held[1:]) & set(known)))
    started = time.monotonic()
    if not held and (VENV / "pyvenv.cfg").exists() and quiet([BIN / "python", "-m", "pip", "--version"]) != 0:
        say(f"the environment {VENV} was not finished; it is made anew")
        shutil.rmtree(VENV)
    if not (BIN / "python").exists():
        say(f"making the environment {VENV}")
        try:
            make_venv()
        except BaseException:
            shutil.rmtree(VENV, ignore_errors=True)
            raise
    say(f"installing elasticdl[{','.join(wanted)}] (a few hundred MB the first time)")
    install(wanted)
    stamp.write_text(" ".join([digest.hexdigest(), *wanted]) + "\n")
    say(f"the environment is ready ({time.monotonic() - started:.0f} s)")
    if "dev" in wanted:
        ensure_chromium()


def ensure_chromium() -> None:
    """Installs the browser of the browser tests where that needs no question; without one they are skipped."""
    if quiet([BIN / "python", ROOT / "tests" / "fakes" / "browser.py"]) == 0:
        return
    if shutil.which("apt-get") is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        say("no Chromium is found: the browser tests are skipped until there is one (Debian: apt install chromium)")
        return
    say("installing chromium for the browser tests")
    install_chromium = ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"]
    for command in (["apt-get", "update"], install_chromium):
        try:
            quiet(command, timeout=APT_TIMEOUT_S, env={"DEBIAN_FRONTEND": "noninteractive"})
        except subprocess.TimeoutExpired:
            break
    if quiet([BIN / "python", ROOT / "tests" / "fakes" / "browser.py"]) != 0:
        say("chromium could not be installed: the browser tests are skipped")


def make_venv() -> None:
    """Makes the virtual environment with the standard library, or with uv where that part is missing."""
    made = subprocess.run(
        [sys.executable, "-m", "venv", str(VENV)],
        capture_output=True,
        text=True,
        timeout=INSTALL_TIMEOUT_S,
        check=False,
        env=environment(),
    )
    if made.returncode == 0:
        return
    shutil.rmtree(VENV, ignore_errors=True)
    if shutil.which("uv"):
        subprocess.run(["uv", "venv", "--seed", str(VENV)], check=True, timeout=INSTALL_TIMEOUT_S)
        return
    reason = (made.stdout + made.stderr).strip().splitlines()
    raise fail(
        f"cannot make a virtual environment: {reason[-1] if reason else 'no reason given'}",
        "install your system's python3-venv package, or uv, and run this again",
    )


def install(extras: Sequence[str]) -> None:
    """Installs the project and its extras: with uv, or with pip where uv does not work."""
    if any(extra.startswith("torch") for extra in extras) and not install_torch():
        say("no CPU build of PyTorch is at hand; what needs PyTorch is left out, and its tests are skipped")
        extras = [extra for extra in extras if not extra.startswith("torch")]
    target = ["--constraint", str(ROOT / "constraints.txt"), "--editable", f"{ROOT}[{','.join(extras)}]"]
    uv = shutil.which("uv") or (str(BIN / "uv") if (BIN / "uv").exists() else None)
    if uv is None and quiet([BIN / "python", "-m", "pip", "install", "--quiet", "uv"]) == 0:
        uv = str(BIN / "uv")
    if uv is not None:
        command = [
            uv,
            "pip",
            "install",
            "--python",
            str(BIN / "python"),
            "--compile-bytecode",
            *pip_settings(),
            *target,
        ]
        certificates = os.environ.get("PIP_CERT")
        env = {"SSL_CERT_FILE": certificates} if certificates and "SSL_CERT_FILE" not in os.environ else {}
        if (result := run(command, timeout=INSTALL_TIMEOUT_S, env=env)) == 0:
            return
        if result == _NO_SOLUTION:
            raise fail("no versions of the packages fit together", "read the message above")
        say("uv did not manage, trying pip")
    command = [str(BIN / "python"), "-m", "pip", "install", "--compile", "--disable-pip-version-check", *target]
    if run(command, timeout=INSTALL_TIMEOUT_S) != 0:
        raise fail("the packages could not be installed", "read the messages above; is the package index in reach?")


def install_torch() -> bool:
    """Installs PyTorch's CPU build: a plain ``torch`` would bring gigabytes of CUDA, which no test needs.

    It is taken from where pip is configured to look, else from PyTorch's own index. Only a wheel that is marked as a
    CPU build will do on Linux; elsewhere all are.
    """
    pinned = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    wanted = f"{pinned}+cpu" if sys.platform == "linux" else pinned
    command = [BIN / "python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:", "--compile", wanted]
    constraints = ["--constraint", ROOT / "constraints.txt"]
    places = ([], ["--extra-index-url", TORCH_CPU_INDEX, "--retries", "1", "--timeout", "15"])
    return any(quiet([*command, *constraints, *place]) == 0 for place in places)


def pip_settings() -> list[str]:
    """Options of uv for what pip is configured with and uv would ignore: places that hold packages."""
    shown = subprocess.run(
        [str(BIN / "python"), "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(),
    )
    return uv_options(shown.stdout, os.environ)


def uv_options(shown: str, env: Mapping[str, str]) -> list[str]:
    """Translates pip's configuration into options of uv.

    Args:
        shown: the output of ``pip config list``.
        env: of the process; indexes that it names for uv are left to it.
    """
    found: dict[str, list[str]] = {}
    for line in sorted(shown.splitlines(), key=lambda line: _PIP_LEVELS.find(line.split(".")[0])):
        key, _, value = line.partition("=")
        with contextlib.suppress(ValueError, SyntaxError):
            found[key.rpartition(".")[2]] = str(ast.literal_eval(value)).split()
    named_for_uv = any(env.get(name) for name in _INDEXES_OF_UV)
    options = [
        word
        for setting, option in _UV_OPTIONS.items()
        if not (named_for_uv and setting.endswith("index-url"))
        for value in found.get(setting, ())
        for word in (option, value)
    ]
    # As pip: the best version of all indexes, not whatever the first one has.
    return [*options, "--index-strategy", "unsafe-best-match"] if "--extra-index-url" in options else options


def quiet(
    command: Sequence[str | Path], *, timeout: float = INSTALL_TIMEOUT_S, env: dict[str, str] | None = None
) -> int:
    """Runs a command without its output; returns its exit code."""
    return subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=timeout,
        env={**environment(), **(env or {})},
        check=False,
    ).returncode


def demo(arguments: list[str]) -> int:
    """The main job, from nothing to a checked export."""
    ensure(RUN_EXTRAS)
    return run([BIN / "python", ROOT / "examples" / "digits" / "demo.py", *arguments])


def test(arguments: list[str]) -> int:
    """All tests but the slow suites; ``--rotation N`` says which of the cases that take turns."""
    ensure(TEST_EXTRAS)
    if arguments[:1] == ["--rotation"] and len(arguments) > 1:
        os.environ["TESTS_ROTATION"], arguments = arguments[1], arguments[2:]
    if arguments:
        return run([BIN / "python", "-m", "pytest", *arguments])
    return pytest_all("-m", "not slow")


TEST_PROCESSES = str(max(2, min(4, os.cpu_count() or 2)))
"""What needs no machine of its own is tested in so many processes at once; each imports TensorFlow."""
SIDE_BY_SIDE = ("tests/integration", "tests/contract", "tests/simulation", "tests/containers", "tests/unit")
"""The dearest first: a file that takes minutes is not to be the last one, with no other beside it."""
FILE_BY_FILE = ("-n", TEST_PROCESSES, "--dist", "loadfile", "--no-loadscope-reorder")
DIFFERENTIAL = ("tests/differential",)
BROWSER = ("tests/browser",)
_INTERRUPTED, _NO_TESTS = 2, 5
_REPORTING = threading.Lock()


def pytest_all(*options: str) -> int:
    """Every suite, in two lanes beside each other; all are run, and those that failed are named at the end.

    One lane has what touches only its own folders, sockets and servers, files side by side. Beside it the others
    follow one another: whole jobs, and faults in them, two files at a time, since a job waits more than it computes;
    the differential suite, which is apart because it sizes TensorFlow's pools as a worker does, its rows side by side
    but for those that share a cluster; and the browser tests, which share one browser and one api.
    """
    apart = [f"--ignore={folder}" for folder in (*SIDE_BY_SIDE, *DIFFERENTIAL, *BROWSER)]
    lanes: list[dict[str, list[str]]] = [
        {
            "e2e, chaos": ["-n", "2", "--dist", "loadfile", *apart],
            "differential": ["-n", TEST_PROCESSES, "--dist", "loadgroup", *DIFFERENTIAL],
            "browser": [*BROWSER],
        },
        {"unit, contract, simulation, integration": [*FILE_BY_FILE, *SIDE_BY_SIDE]},
    ]
    results: dict[str, int] = {}

    def follow(lane: dict[str, list[str]]) -> None:
        for number, (name, arguments) in enumerate(lane.items()):
            if number and _INTERRUPTED in results.values():  # the first ones begin together
                return
            result = pytest_round(name, [*options, *arguments])
            results[name] = 0 if result == _NO_TESTS else result

    threads = [threading.Thread(target=follow, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            with contextlib.suppress(KeyboardInterrupt):  # which pytest gets, too, and ends with
                thread.join()
    if failed := [name for name, result in results.items() if result]:
        say(f"failed: {'; '.join(failed)}")
    return max(results.values())


def pytest_round(name: str, arguments: Sequence[str]) -> int:
    """One run of pytest: its progress is shown as it comes, all else when it has ended; returns its exit code."""
    started = time.monotonic()
    say(f"tests: {name}")
    command = [str(BIN / "python"), "-m", "pytest", *arguments]
    kept = []
    with (
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
        started_here(process),
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.rstrip().endswith("%]") or line.startswith("rotation: "):
                print(f"{name}: {line}", end="", flush=True)
            else:
                kept.append(line)
    outcome = "passed" if process.returncode in {0, _NO_TESTS} else f"failed (exit code {process.returncode})"
    with _REPORTING:
        print("".join(kept), end="", flush=True)
        say(f"tests: {name}: {outcome} after {time.monotonic() - started:.0f} s")
    return process.returncode


def check(arguments: list[str]) -> int:
    """Lint, types, import contracts and generated files; names choose among them. Reports all that fail."""
    steps: dict[str, Callable[[], int]] = {
        "ruff check": lambda: run([BIN / "ruff", "check", "."]),
        "ruff format": lambda: run([BIN / "ruff", "format", "--check", "--quiet", "."]),
        "mypy": lambda: run([BIN / "mypy"]),
        "import contracts": lambda: run([BIN / "lint-imports"]),
        "names": lambda: run([BIN / "python", ROOT / "tools" / "check_names.py"]),
        "words": lambda: run([BIN / "python", ROOT / "tools" / "check_words.py"]),
        "generated code": lambda: protos(["--check"]),
        "blocking client": lambda: client(["--check"]),
        "reference pages": lambda: docs(["--check"]),
    }
    chosen = {name: step for name, step in steps.items() if not arguments or {name, name.split()[0]} & {*arguments}}
    known = {word for name in steps for word in (name, name.split()[0])}
    if unknown := [one for one in arguments if one not in known]:
        raise fail(f"there is no check {unknown[0]!r}", f"name some of: {', '.join(steps)}; or none, for all")
    ensure(TEST_EXTRAS)
    failed = []
    for name, step in chosen.items():
        say(name)
        if step() != 0:
            failed.append(name)
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def protos(arguments: list[str]) -> int:
    """Runs the generator in an environment of its own, because its pin conflicts with newer grpcio."""
    tools = VENV.parent / f"{VENV.name}-protos"
    if not (tools / "bin" / "python").exists():
        say("making the environment of the protocol generator")
        if subprocess.run(
            [sys.executable, "-m", "venv", str(tools)], timeout=INSTALL_TIMEOUT_S, check=False
        ).returncode:
            raise fail("cannot make a virtual environment", "install your system's python3-venv package")
        if quiet([tools / "bin" / "python", "-m", "pip", "install", "grpcio-tools==1.74.0", "setuptools<81"]):
            shutil.rmtree(tools, ignore_errors=True)
            raise fail("grpcio-tools could not be installed", "is the package index in reach?")
    return run([tools / "bin" / "python", ROOT / "tools" / "gen_protos.py", *arguments], timeout=300)


def client(arguments: list[str]) -> int:
    """Generates the blocking client from the asyncio client."""
    ensure(TEST_EXTRAS)
    return run([BIN / "python", ROOT / "tools" / "gen_blocking_client.py", *arguments], timeout=300)


def docs(arguments: list[str]) -> int:
    """Generates docs/cli.md, docs/honoured.md and the templates of the Helm chart."""
    ensure(RUN_EXTRAS)
    pages = ("gen_cli_docs.py", "gen_contract_docs.py", "gen_helm_chart.py")
    return max(run([BIN / "python", ROOT / "tools" / page, *arguments], timeout=300) for page in pages)


def format_code(arguments: list[str]) -> int:
    """Formats and sorts imports."""
    ensure(TEST_EXTRAS)
    targets = arguments or ["."]
    return run([BIN / "ruff", "check", "--fix", *targets]) or run([BIN / "ruff", "format", *targets])


def bench(arguments: list[str]) -> int:
    """Lists the benchmarks or runs one."""
    scripts = {
        path.stem: path for path in sorted((ROOT / "benchmarks").glob("*.py")) if not path.stem.startswith("_")
    }
    if not arguments or arguments[0] not in scripts:
        for name, path in scripts.items():
            print(f"  {name:<14} {path.read_text().split(chr(10))[0].strip(chr(34))}")
        return 0 if not arguments else 2
    ensure(TEST_EXTRAS)
    return run([BIN / "python", "-m", f"benchmarks.{arguments[0]}", *arguments[1:]])


def experiment(arguments: list[str]) -> int:
    """Lists the experiments or runs one."""
    scripts = {path.stem: path for path in sorted((ROOT / "experiments").glob("*.py"))}
    if not arguments or arguments[0] not in scripts:
        for name, path in scripts.items():
            print(f"  {name:<14} {path.read_text().split(chr(10))[0].strip(chr(34))}")
        return 0 if not arguments else 2
    ensure(TEST_EXTRAS)
    return run([BIN / "python", "-m", f"experiments.{arguments[0]}", *arguments[1:]])


def slow(arguments: list[str]) -> int:
    """The slow suites."""
    ensure(TEST_EXTRAS)
    if arguments:
        return run([BIN / "python", "-m", "pytest", "-m", "slow or hostile", "--timeout", "3600", *arguments])
    return pytest_all("-m", "slow or hostile", "--timeout", "3600") or mutants([])


def kubernetes(arguments: list[str]) -> int:
    """Tests on a real cluster: that its API is as the fake of the tests, the launcher's contract, and whole jobs."""
    if not os.environ.get("ELASTICDL_TEST_KUBECONFIG"):
        say("skipped: ELASTICDL_TEST_KUBECONFIG names no cluster (see tests/contract/launcher/real_cluster.py)")
        return 0
    ensure(TEST_EXTRAS)
    suites = ["tests/contract/kubernetes", "tests/contract/launcher", "tests/e2e/test_pods.py"]
    chosen = [] if name_tests(arguments) else suites
    return run([BIN / "python", "-m", "pytest", "-k", "real", *chosen, *arguments])


def name_tests(arguments: Sequence[str]) -> bool:
    """Whether arguments of pytest say which tests, beside options."""
    return any((ROOT / one.partition("::")[0]).exists() for one in arguments)


def containers(arguments: list[str]) -> int:
    """Tests in a Docker engine."""
    if shutil.which("docker") is None or quiet(["docker", "info"], timeout=60) != 0:
        say("skipped: no Docker engine answers (Debian: apt install docker.io docker-compose)")
        return 0
    ensure(TEST_EXTRAS)
    env = {}
    if "--debian" in arguments:
        arguments = [one for one in arguments if one != "--debian"]
        say("making images of Debian's packages")
        if result := run([ROOT / "tests" / "containers" / "debian" / "make-images.sh"], timeout=INSTALL_TIMEOUT_S):
            return result
        env = {
            f"{name.upper()}_IMAGE": f"elasticdl-test/{name}"
            for name in ("python", "postgres", "redis", "prometheus")
        }
    suites = [] if name_tests(arguments) else ["tests/containers"]
    return run([BIN / "python", "-m", "pytest", *suites, *arguments], env=env)


def machines(arguments: list[str]) -> int:
    """A row for each kind of machine: a job runs there, or `up` says what is missing; part of `./dev slow`."""
    ensure(TEST_EXTRAS)
    table = [] if name_tests(arguments) else ["tests/e2e/test_machines.py"]
    return run([BIN / "python", "-m", "pytest", "-m", "slow", "-v", "-rs", *table, *arguments])


def mutants(arguments: list[str]) -> int:
    """Faults that the tests must notice, planted one by one."""
    ensure(TEST_EXTRAS)
    return run([BIN / "python", ROOT / "tools" / "mutants.py", *arguments])


def steady(arguments: list[str]) -> int:
    """Tests that fail now and then."""
    ensure(TEST_EXTRAS)
    return run([BIN / "python", ROOT / "tools" / "steady.py", *arguments])


def lock(_: list[str]) -> int:
    """Writes constraints.txt from what is installed."""
    ensure(TEST_EXTRAS)
    frozen = subprocess.run(
        [
            str(BIN / "python"),
            "-m",
            "pip",
            "freeze",
            "--exclude-editable",
            "--exclude",
            "elasticdl-train",
            "--exclude",
            "uv",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    # Without what marks a build for one kind of machine, as in torch==2.13.0+cpu.
    lines = sorted((line.partition("+")[0] for line in frozen.stdout.splitlines() if "==" in line), key=str.lower)
    header = "# What elasticdl is tested with; written by ./dev lock.\n"
    (ROOT / "constraints.txt").write_text(header + "\n".join(lines) + "\n")
    say(f"constraints.txt holds {len(lines)} packages")
    return 0


def elasticdl(verb: str) -> Callable[[list[str]], int]:
    """A verb of the CLI inside the environment."""

    def command(arguments: list[str]) -> int:
        ensure(RUN_EXTRAS)
        return run([BIN / "elasticdl", verb, *arguments])

    return command


def setup(_: list[str]) -> int:
    """Makes the environment for everything."""
    ensure(TEST_EXTRAS)
    ensure_chromium()
    return 0


def run_inside(arguments: list[str]) -> int:
    """Runs any command inside the environment."""
    ensure(RUN_EXTRAS)
    return run(arguments) if arguments else 2


VERBS: dict[str, Callable[[list[str]], int]] = {
    "demo": demo,
    "test": test,
    "check": check,
    "up": elasticdl("up"),
    "down": elasticdl("down"),
    "status": elasticdl("status"),
    "bench": bench,
    "experiment": experiment,
    "slow": slow,
    "kubernetes": kubernetes,
    "containers": containers,
    "machines": machines,
    "mutants": mutants,
    "steady": steady,
    "protos": protos,
    "client": client,
    "docs": docs,
    "format": format_code,
    "lock": lock,
    "setup": setup,
    "run": run_inside,
}


_WITH_OWN_HELP = frozenset(
    ("demo", "up", "down", "status", "mutants", "steady", "protos", "client", "docs"),
)
"""Verbs whose program has a page of its own for ``--help``; of the others the lines above are shown."""
_WITHOUT_ARGUMENTS = frozenset(("lock", "setup"))


def help_of(verb: str) -> str:
    """The line about a verb at the top of this file, and what it says of itself."""
    line = next(line for line in (__doc__ or "").splitlines() if line.startswith(f"./dev {verb} "))
    return f"{line}\n  {VERBS[verb].__doc__}"


def main(arguments: list[str]) -> int:
    """Runs a verb; returns its exit code."""
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(__doc__)
        return 0
    verb, *rest = arguments
    if verb not in VERBS:
        import difflib

        near = difflib.get_close_matches(verb, VERBS, n=1)
        print(f"dev: there is no verb {verb!r}" + (f"; did you mean {near[0]}?" if near else ""), file=sys.stderr)
        return 2
    if rest[:1] in (["-h"], ["--help"]) and verb not in _WITH_OWN_HELP:
        print(help_of(verb))
        return 0
    if rest and verb in _WITHOUT_ARGUMENTS:
        print(f"dev: {verb} takes no arguments, and got {' '.join(rest)}", file=sys.stderr)
        return 2
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    try:
        result = VERBS[verb](rest)
    except KeyboardInterrupt:
        print("\ndev: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    return 128 - result if result < 0 else result  # ended by a signal, as shells say it


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
