"""A worker that attacks: does what the variable ATTACK names, and prints one line of JSON about what came of it.

``refused`` with the error, or ``done`` with whatever it got hold of. Standard library only.
"""

# The plainest calls, as an attacker makes them:
# ruff: noqa: PTH101, PTH104, PTH108, PTH115, PTH123, PTH208, PTH211

import contextlib
import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

PLACE = json.loads(os.environ.get("PLACE", "{}"))
LIBC = ctypes.CDLL(None, use_errno=True)
DATA, RUN, JOB, OTHER = (Path(PLACE.get(name, "/nowhere")) for name in ("data", "run", "job", "other"))
NUMBERS = {
    "x86_64": {"add_key": 248, "userfaultfd": 323, "perf_event_open": 298, "io_uring_setup": 425, "clone": 56}
    | {"sched_setattr": 314, "ioprio_set": 251, "mq_open": 240},
    "aarch64": {"add_key": 217, "userfaultfd": 282, "perf_event_open": 241, "io_uring_setup": 425, "clone": 220}
    | {"sched_setattr": 274, "ioprio_set": 30, "mq_open": 180},
}[os.uname().machine]
"""Of system calls that Python does not have."""
ATTACKS: dict[str, Callable[[], object]] = {}


def attack(function: Callable[[], object]) -> Callable[[], object]:
    ATTACKS[function.__name__] = function
    return function


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def read(path: Path | str) -> str:
    with open(path, "rb") as file:
        return file.read(1 << 20).decode(errors="replace")


def write(path: Path | str) -> str:
    with open(path, "wb") as file:
        file.write(b"mine now")
    return str(path)


def names(path: Path | str) -> list[str]:
    return sorted(os.listdir(path))


# -- reading ---------------------------------------------------------------------------------------------------------


@attack
def read_token() -> object:
    return read(DATA / "token")


@attack
def read_secret() -> object:
    return read(DATA / "secret")


@attack
def read_journal() -> object:
    return read(DATA / "agent" / "processes.jsonl")


@attack
def read_service_log() -> object:
    return read(DATA / "logs" / "agent.log")


@attack
def list_data_directory() -> object:
    return names(DATA)


@attack
def list_jobs() -> object:
    return names(DATA / "jobs")


@attack
def list_run_directory() -> object:
    return names(RUN)


@attack
def list_other_job() -> object:
    return names(OTHER)


@attack
def read_other_artifact() -> object:
    return read(OTHER / "artifacts" / "model.keras")


@attack
def read_other_log() -> object:
    return read(OTHER / "logs" / "worker-0.1.log")


@attack
def list_other_sockets() -> object:
    return names(RUN / OTHER.name)


@attack
def read_master_environment() -> object:
    return read(f"/proc/{PLACE['master']}/environ")


@attack
def read_master_memory() -> object:
    with open(f"/proc/{PLACE['master']}/mem", "rb") as file:
        return file.fileno()


@attack
def list_master_descriptors() -> object:
    folder = f"/proc/{PLACE['master']}/fd"
    return [os.readlink(f"{folder}/{name}") for name in names(folder)]


@attack
def read_other_worker_environment() -> object:
    return read(f"/proc/{PLACE['neighbour']}/environ")


@attack
def read_agent_environment() -> object:
    return read(f"/proc/{PLACE['agent']}/environ")


@attack
def read_shim_memory() -> object:
    with open(f"/proc/{os.getppid()}/mem", "rb") as file:
        return file.fileno()


@attack
def read_everybodys_environment() -> object:
    found = []
    own = {os.getpid(), *(int(name) for name in os.listdir("/proc/self/task"))}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in own:
            try:
                found.append(read(f"/proc/{name}/environ"))
            except OSError:
                continue
    if not any(found):
        raise PermissionError("nobody's environment can be read")
    return found


@attack
def read_shadow() -> object:
    return read("/etc/shadow")


@attack
def read_kernel_memory() -> object:
    return read("/proc/kcore")[:10]


@attack
def trace_master() -> object:
    return checked(LIBC.ptrace(16, PLACE["master"], 0, 0))


@attack
def copy_master_memory() -> object:
    buffer = ctypes.create_string_buffer(64)
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 64)
    return checked(LIBC.process_vm_readv(PLACE["master"], vector, 1, vector, 1, 0))


# -- writing ---------------------------------------------------------------------------------------------------------


@attack
def write_token() -> object:
    return write(DATA / "token")


@attack
def write_journal() -> object:
    return write(DATA / "agent" / "processes.jsonl")


@attack
def write_bundle() -> object:
    return write(DATA / "bundles" / "planted.zip")


@attack
def write_other_artifact() -> object:
    return write(OTHER / "artifacts" / "model.keras")


@attack
def write_own_code() -> object:
    return write(JOB / "code" / "model.py")


@attack
def write_own_checkpoints() -> object:
    return write(JOB / "checkpoints" / "manifest.json")


@attack
def write_beside_own_folders() -> object:
    return write(JOB / ".bundle.zip")


@attack
def plant_pipe_among_logs() -> object:
    return os.mkfifo(JOB / "logs" / "worker-0.9.log")


@attack
def plant_link_among_logs() -> object:
    return os.symlink(DATA / "token", JOB / "logs" / "worker-0.9.log")


@attack
def replace_masters_socket() -> object:
    return os.unlink(RUN / JOB.name / "master-0.sock")


@attack
def write_system() -> object:
    return write("/etc/elasticdl-was-here"), write("/usr/elasticdl-was-here")


@attack
def open_the_data_directory() -> object:
    return os.chmod(DATA, 0o777)


@attack
def link_token_into_artifacts() -> object:
    os.symlink(DATA / "token", JOB / "artifacts" / "link")
    return read(JOB / "artifacts" / "link")


@attack
def second_name_for_token() -> object:
    os.link(DATA / "token", JOB / "artifacts" / "hard")
    return read(JOB / "artifacts" / "hard")


@attack
def move_own_file() -> object:
    write(JOB / "work" / "one")
    (JOB / "artifacts" / "folder").mkdir()
    return os.rename(JOB / "work" / "one", JOB / "artifacts" / "folder" / "two")


@attack
def move_between_folders() -> object:
    write(DATA / "one")
    return os.rename(DATA / "one", DATA / "bundles" / "two")


# -- escaping --------------------------------------------------------------------------------------------------------


@attack
def become_root() -> object:
    os.setgroups([0])
    os.setresuid(0, 0, 0)
    return read(DATA / "token")


@attack
def become_another_tenant() -> object:
    os.setresuid(PLACE["other_uid"], PLACE["other_uid"], PLACE["other_uid"])
    return os.getuid()


@attack
def run_setuid_program() -> object:
    if "NoNewPrivs:\t1" in read("/proc/self/status"):
        raise PermissionError("no new privileges")
    return "new privileges"


@attack
def make_device() -> object:
    os.mknod(JOB / "work" / "memory", 0o20666, os.makedev(1, 1))
    return read(JOB / "work" / "memory")[:1]


@attack
def mount_over() -> object:
    return checked(LIBC.mount(b"none", str(JOB / "work").encode(), b"tmpfs", 0, None))


@attack
def be_root_in_a_namespace_of_users() -> object:
    checked(LIBC.unshare(0x10000000 | 0x00020000))
    return read(DATA / "token")


@attack
def leave_root() -> object:
    return os.chroot(JOB / "work")


@attack
def enter_masters_namespaces() -> object:
    with open(f"/proc/{PLACE['master']}/ns/mnt") as file:
        return checked(LIBC.setns(file.fileno(), 0))


@attack
def load_program_into_kernel() -> object:
    attributes = ctypes.create_string_buffer(128)
    return checked(LIBC.syscall(321, 5, attributes, 128))


@attack
def signal_agent() -> object:
    return os.kill(PLACE["agent"], 0)


@attack
def signal_shim() -> object:
    return os.kill(os.getppid(), signal.SIGSTOP)


@attack
def signal_master() -> object:
    return os.kill(PLACE["master"], 0)


@attack
def signal_other_worker() -> object:
    return os.kill(PLACE["neighbour"], 0)


@attack
def be_spared_when_memory_runs_out() -> object:
    return Path("/proc/self/oom_score_adj").write_text("-1000")


@attack
def go_before_all_others() -> object:
    return os.setpriority(os.PRIO_PROCESS, 0, -20)


@attack
def raise_limits() -> object:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))


@attack
def dump_memory() -> object:
    return resource.setrlimit(resource.RLIMIT_CORE, (1, 1))


@attack
def trace_own_child() -> object:
    """As an attacker who looks for a way around what a tracer changes in it."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        return checked(LIBC.ptrace(16, child, 0, 0))
    finally:
        os.kill(child, signal.SIGKILL)


@attack
def make_key() -> object:
    return checked(LIBC.syscall(NUMBERS["add_key"], b"user", b"mine", b"secret", 6, -3))


@attack
def handle_page_faults() -> object:
    return checked(LIBC.syscall(NUMBERS["userfaultfd"], 1 | os.O_CLOEXEC))


@attack
def count_performance() -> object:
    attributes = (ctypes.c_uint32 * 28)(1, 112)
    attributes[10] = 1 << 5 | 1 << 6  # user space alone
    return checked(LIBC.syscall(NUMBERS["perf_event_open"], attributes, 0, -1, -1, 0))


@attack
def make_ring_of_calls() -> object:
    return checked(LIBC.syscall(NUMBERS["io_uring_setup"], 4, ctypes.create_string_buffer(120)))


@attack
def fork_into_namespaces() -> object:
    child = checked(LIBC.syscall(NUMBERS["clone"], 0x10000000 | 0x20000000 | signal.SIGCHLD, 0, 0, 0, 0))
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)


@attack
def call_the_hypervisor() -> object:
    with socket.socket(40, socket.SOCK_STREAM) as made:
        return made.fileno()


@attack
def use_the_kernels_ciphers() -> object:
    with socket.socket(38, socket.SOCK_SEQPACKET) as made:
        return made.fileno()


def give_the_same_limit(pid: int) -> object:
    return resource.prlimit(pid, resource.RLIMIT_CPU, resource.getrlimit(resource.RLIMIT_CPU))


@attack
def limit_other_worker() -> object:
    return give_the_same_limit(PLACE["neighbour"])


@attack
def limit_agent() -> object:
    return give_the_same_limit(PLACE["agent"])


@attack
def read_limits_of_agent() -> object:
    return resource.prlimit(PLACE["agent"], resource.RLIMIT_NOFILE)


@attack
def choose_cores_of_other_worker() -> object:
    return os.sched_setaffinity(PLACE["neighbour"], os.sched_getaffinity(0))


@attack
def schedule_other_worker() -> object:
    return os.sched_setscheduler(PLACE["neighbour"], os.SCHED_BATCH, os.sched_param(0))


@attack
def describe_schedule_of_other_worker() -> object:
    attributes = (ctypes.c_uint32 * 12)(48, os.SCHED_BATCH)
    return checked(LIBC.syscall(NUMBERS["sched_setattr"], PLACE["neighbour"], attributes, 0))


@attack
def put_other_worker_last() -> object:
    return os.setpriority(os.PRIO_PROCESS, PLACE["neighbour"], 0)


@attack
def put_all_of_a_user_last() -> object:
    return os.setpriority(os.PRIO_USER, 0, 0)


@attack
def let_disks_of_other_worker_wait() -> object:
    return checked(LIBC.syscall(NUMBERS["ioprio_set"], 1, PLACE["neighbour"], 2 << 13 | 4))


@attack
def leave_shared_memory() -> object:
    return checked(LIBC.shmget(0, 4096, 0o1600))


@attack
def leave_queue() -> object:
    return checked(LIBC.msgget(0, 0o1600))


@attack
def leave_semaphores() -> object:
    return checked(LIBC.semget(0, 1, 0o1600))


@attack
def leave_posix_queue() -> object:
    return checked(LIBC.syscall(NUMBERS["mq_open"], b"mine", os.O_CREAT | os.O_RDWR, 0o600, None))


@attack
def let_others_run_own_file_as_its_owner() -> object:
    path = JOB / "work" / "as-me"
    path.write_text("")
    return os.chmod(path, 0o4755)


@attack
def let_others_run_open_file_as_its_owner() -> object:
    with open(JOB / "work" / "as-me-too", "wb") as file:
        return os.fchmod(file.fileno(), 0o4755)


@attack
def give_an_access_list() -> object:
    path = JOB / "work" / "listed"
    path.write_text("")
    return os.setxattr(path, "user.list", b"everybody")


@attack
def watch_others() -> object:
    return checked(LIBC.inotify_init1(os.O_CLOEXEC))


@attack
def do_ordinary_things() -> object:
    """Not an attack: what libraries do has to go on working."""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", "print(7)"], capture_output=True, check=True)
    threads = [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared = os.memfd_create("mine")
    os.ftruncate(shared, 1 << 20)
    with mmap.mmap(shared, 1 << 20) as memory:
        child = os.fork()
        if child == 0:
            memory[0] = 42
            os._exit(0)
        os.close(os.pidfd_open(child))
        os.waitpid(child, 0)
        written = memory[0]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [shared])
        _, passed, _, _ = socket.recv_fds(theirs, 1, 1)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        server.accept()[0].close()
    names_of_cards = socket.if_nameindex()
    for own in (0, os.getpid()):
        resource.prlimit(own, resource.RLIMIT_CORE, (0, 0))
        os.sched_setaffinity(own, os.sched_getaffinity(own))
        os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own))
    os.chmod(JOB / "work", 0o2770)
    return [done.stdout, written, len(passed), bool(names_of_cards), os.sched_getaffinity(0) != set()]


@attack
def call_agent_without_credentials() -> object:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(RUN / "agent.sock"))
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        return connection.recv(1000).decode(errors="replace")


# -- exhausting, freezing, staying -----------------------------------------------------------------------------------


@attack
def open_files_without_end() -> object:
    kept = []
    while True:
        kept.append(os.open("/dev/null", os.O_RDONLY))


@attack
def one_endless_file() -> object:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with open(JOB / "artifacts" / "endless", "wb") as file:
        return file.truncate(1 << 45)


@attack
def fork_without_end() -> object:
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    for _ in range(400):
        if os.fork() == 0:
            signal.pause()
    return limit


@attack
def fork_and_stay() -> object:
    fork_without_end()
    time.sleep(600)
    return "stayed"


@attack
def memory_without_end() -> object:
    kept = bytearray(os.urandom(1 << 20) * 4000)
    return len(kept)


@attack
def log_without_end() -> object:
    line = b"y" * 1023 + b"\n"
    for _ in range(80 << 10):
        os.write(2, line)
    return "logged"


@attack
def leave_a_daemon() -> object:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid() if os.getpid() != os.getsid(0) else None
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        os._exit(0)
    os.wait()
    return "left"


@attack
def stop_itself() -> object:
    print(json.dumps({"outcome": "ready"}), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    return "went on"


@attack
def listen_to_no_signal() -> object:
    for number in signal.valid_signals():
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    print(json.dumps({"outcome": "ready"}), flush=True)
    time.sleep(600)
    return "went on"


@attack
def close_all_descriptors() -> object:
    print(json.dumps({"outcome": "ready"}), flush=True)
    os.closerange(0, 4096)
    time.sleep(600)
    return "went on"


@attack
def many_children_that_ignore() -> object:
    program = "import signal, time; signal.signal(15, 1); time.sleep(600)"
    for _ in range(10):
        subprocess.Popen([sys.executable, "-I", "-S", "-c", program], start_new_session=True)
    print(json.dumps({"outcome": "ready"}), flush=True)
    time.sleep(600)
    return "went on"


def main() -> int:
    name = os.environ.get("ATTACK", "")
    if name == "":
        print(json.dumps({"outcome": "ready"}), flush=True)  # a victim, which waits
        time.sleep(600)
    try:
        found = ATTACKS[name]()
        line = {"outcome": "done", "detail": repr(found)}
    except (OSError, ValueError) as error:
        line = {"outcome": "refused", "detail": str(error)}
    os.write(1, json.dumps(line).encode() + b"\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
