"""Takes away from a forked process what the user's code that it will run must not have.

    python -I -S confinement.py <plan as JSON> <command> [<argument>...]

Standard library only, and little of it: it is loaded by its path into the shim, and runs between the fork and the
command. ``isolation`` decides what a plan says; this carries it out, in an order in which no step undoes another.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

MIN_ABI = 2
"""Of Landlock; the first one lets nobody move a file between folders."""
READ, WRITE, EVERYTHING = "read", "write", "everything"
"""What a plan allows with a path: read and run; also change what is there; also make and remove what lies below."""

_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 4, 24, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION = 0x20080522
_LAST_CAPABILITY = 63
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_ABI_VERSION = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _MAKE_BLOCK, _REFER, _TRUNCATE = 1, 2, 4, 8, 1 << 11, 1 << 13, 1 << 14
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_MAKING = 0b1_1111_1111_0000 & ~(1 << 6) & ~_MAKE_BLOCK  # all but devices
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3
_FIRST_ABI_WITH_SCOPES = 6

_PR_GET_SECCOMP, _PR_SET_SECCOMP, _FILTER_MODE = 21, 22, 2
_INSTRUCTION = struct.Struct("=HBBI")
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Where what the filter looks at has them; arguments have 8 bytes each, the lower half first."""
_EQUAL, _AT_LEAST, _ANY_BIT = 0x15, 0x35, 0x45
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS, _UNSUPPORTED, _NO_FAMILY = 1, 38, 95, 97
_MACHINES = {"x86_64": (0xC000003E, 0, 0x40000000), "aarch64": (0xC00000B7, 1, 0)}
"""By processor: its mark in the filter's data, its column below, and from where its numbers mean other calls."""
_NONE = 0xFFFFFFFF
"""The number of a call that a processor does not have."""
_REFUSED_CALLS = {
    # into other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "migrate_pages": (256, 238),
    # what outlives the process and is on no account: System V's memory, queues and semaphores, POSIX' queues
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "mq_open": (240, 180),
    # access lists of files, which stay when the job has gone; what happens in folders that it may not list
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "inotify_init": (253, _NONE),
    "inotify_init1": (294, 26),
    # into the kernel
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "syslog": (103, 116),
    "fanotify_init": (300, 262),
    "open_by_handle_at": (304, 265),
    # the machine's
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    # other views of files and machines
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "clone3": (435, 435),
}
"""System calls that no worker needs, by their numbers for each processor."""
_UNKNOWN_CALLS = frozenset({"clone3", "io_uring_setup", "io_uring_enter", "io_uring_register"})
"""Those that are said not to be there, so that libraries take the older way; of ``clone3`` nobody sees the flags."""
_UNSUPPORTED_CALLS = frozenset({"setxattr", "lsetxattr", "fsetxattr", "setxattrat"})
"""Those that file systems often do not have, so that libraries which copy files go on without."""
_AS_OWNER = 0o4000
"""Bit of a file's mode that has others run it as its owner. Folders are copied with that of groups."""
_NAMESPACES = 0x7E020000
"""Flags of ``clone`` and ``unshare`` for namespaces: mounts, cgroups, names, IPC, users, processes, network."""
_REFUSED_ARGUMENTS = (
    ((56, 220), 0, _ANY_BIT, (_NAMESPACES,), _EPERM),  # clone
    ((272, 97), 0, _ANY_BIT, (_NAMESPACES | 0x80,), _EPERM),  # unshare, also time
    ((16, 29), 1, _EQUAL, (0x5412, 0x541C), _EPERM),  # ioctl: letters put into a terminal's input
    ((41, 198), 0, _EQUAL, (38, 40), _NO_FAMILY),  # socket: the kernel's ciphers, the hypervisor
    ((90, _NONE), 1, _ANY_BIT, (_AS_OWNER,), _EPERM),  # chmod
    ((91, 52), 1, _ANY_BIT, (_AS_OWNER,), _EPERM),  # fchmod
    ((268, 53), 2, _ANY_BIT, (_AS_OWNER,), _EPERM),  # fchmodat
    ((452, 452), 2, _ANY_BIT, (_AS_OWNER,), _EPERM),  # fchmodat2
    ((85, _NONE), 1, _ANY_BIT, (_AS_OWNER,), _EPERM),  # creat
)
"""Calls of which some arguments are refused: numbers, which argument, the test, its values, the error."""
_ITSELF = -1
_OF_ONE_PROCESS = (
    ((302, 261), {0: _ITSELF}),  # prlimit64
    ((203, 122), {0: _ITSELF}),  # sched_setaffinity
    ((144, 119), {0: _ITSELF}),  # sched_setscheduler
    ((142, 118), {0: _ITSELF}),  # sched_setparam
    ((314, 274), {0: _ITSELF}),  # sched_setattr
    ((279, 239), {0: _ITSELF}),  # move_pages
    ((141, 140), {0: 0, 1: _ITSELF}),  # setpriority: of a process, not of a group or all of a user
    ((251, 30), {0: 1, 1: _ITSELF}),  # ioprio_set: the same
)
"""Calls that are for the caller alone: numbers, and values of arguments. Landlock scopes signals, but not these."""


def confine(plan: Mapping[str, Any]) -> None:
    """Carries out a plan; there is no way back.

    Args:
        plan: any of ``user`` (uid and gid to become), ``limits`` (by name of ``resource.RLIMIT_...``), ``umask``,
            ``capabilities`` (mask of those to keep), ``no_new_privileges``, ``fence`` (no signal and no look into a
            process outside), ``files`` (pairs of path and ``read``, ``write`` or ``everything``: all else is closed),
            ``calls`` (no system calls that have been ways out of a process; goes with ``no_new_privileges``).

    Raises:
        OSError: a step is not possible here; the process must not go on.
    """
    if not plan:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _limit(plan.get("limits", {}))
    if "umask" in plan:
        os.umask(int(plan["umask"]))
    files = plan.get("files")
    rules = _prepare_rules(libc, files, bool(plan.get("fence"))) if files is not None or plan.get("fence") else -1
    kept = plan.get("capabilities")
    if kept is not None:
        _close_bounding_set(libc, int(kept))
    if plan.get("user"):
        uid, gid = plan["user"]
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    if kept is not None:
        _drop_capabilities(libc, int(kept))
    if plan.get("no_new_privileges") or rules >= 0:
        _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if rules >= 0:
        _check(libc.syscall(_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
        os.close(rules)
    if plan.get("user"):
        # A process that has changed its user may not look into itself until it says so; it has no secret.
        _check(libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "dumpable")
    if plan.get("calls"):
        _filter_calls(libc)


def landlock_abi() -> int:
    """The version of Landlock that the kernel has; 0 for none."""
    if sys.platform != "linux":
        return 0
    version: int = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _ABI_VERSION)
    return max(0, version)


def filters_calls() -> bool:
    """Whether the kernel can filter system calls whose numbers are known here."""
    if sys.platform != "linux" or os.uname().machine not in _MACHINES:
        return False
    # Without a filter it says so; a kernel that has none does not know the question.
    answer: int = ctypes.CDLL(None, use_errno=True).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0)
    return answer >= 0


def _filter_calls(libc: ctypes.CDLL) -> None:
    """Has the kernel refuse system calls from now on, also to all that this process starts."""
    program = _program(os.uname().machine, os.getpid())
    code = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    filtering = Program(len(program) // _INSTRUCTION.size, ctypes.addressof(code))
    _check(libc.prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.byref(filtering), 0, 0), "seccomp")


def _program(machine: str, pid: int) -> bytes:
    """The filter for a processor and a process, as the kernel's virtual machine runs it: comparison after comparison.

    The numbers are compared, not what the calls are about, but for a few whose first arguments decide.
    """
    architecture, column, foreign = _MACHINES[machine]
    code = [_load(_ARCHITECTURE), _if(_EQUAL, architecture, 1, 0), _return(_KILL), _load(_NUMBER)]
    if foreign:  # the same calls under other numbers
        code += [_if(_AT_LEAST, foreign, 0, 1), _return(_ERROR | _ENOSYS)]
    for name, numbers in _REFUSED_CALLS.items():
        error = _ENOSYS if name in _UNKNOWN_CALLS else _UNSUPPORTED if name in _UNSUPPORTED_CALLS else _EPERM
        code += [_if(_EQUAL, numbers[column], 0, 1), _return(_ERROR | error)]
    for numbers, argument, test, values, error in _REFUSED_ARGUMENTS:
        code += [_if(_EQUAL, numbers[column], 0, 2 + 2 * len(values)), _load(_ARGUMENTS + 8 * argument)]
        for value in values:
            code += [_if(test, value, 0, 1), _return(_ERROR | error)]
        code += [_return(_ALLOW)]
    for numbers, wanted in _OF_ONE_PROCESS:
        block = []
        for argument, only in wanted.items():
            allowed = (0, pid) if only == _ITSELF else (only,)
            block.append(_load(_ARGUMENTS + 8 * argument))
            block += [_if(_EQUAL, one, len(allowed) - at, 0) for at, one in enumerate(allowed)]
            block.append(_return(_ERROR | _EPERM))
        code += [_if(_EQUAL, numbers[column], 0, len(block) + 1), *block, _return(_ALLOW)]
    return b"".join([*code, _return(_ALLOW)])


def _load(offset: int) -> bytes:
    return _INSTRUCTION.pack(0x20, 0, 0, offset)


def _if(test: int, value: int, then: int, otherwise: int) -> bytes:
    """Skips so many instructions if what was loaded passes the test, else so many."""
    return _INSTRUCTION.pack(test, then, otherwise, value)


def _return(action: int) -> bytes:
    return _INSTRUCTION.pack(0x06, 0, 0, action)


def _limit(limits: Mapping[str, int]) -> None:
    if not limits:
        return
    import resource

    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is None:
            continue
        soft, hard = resource.getrlimit(kind)
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (ceiling if soft == resource.RLIM_INFINITY else min(soft, ceiling), ceiling))


def _prepare_rules(libc: ctypes.CDLL, files: Sequence[Sequence[str]] | None, fence: bool) -> int:
    """Makes a ruleset while paths can still be opened."""
    abi = landlock_abi()
    if abi < MIN_ABI:
        raise OSError("this kernel has no Landlock, or an early one")
    changing = _WRITE_FILE | (_TRUNCATE if abi >= 3 else 0)
    making = changing | _MAKING | _REFER
    # There is no ruleset about nothing: one that is a fence only forbids to make block devices. To move files between
    # folders is forbidden by any ruleset that does not allow it.
    handled = _READING | making | _MAKE_BLOCK | (1 << 6) if files is not None else _MAKE_BLOCK | _REFER
    scoped = _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS if fence and abi >= _FIRST_ABI_WITH_SCOPES else 0
    attributes = struct.pack("=QQQ", handled, 0, scoped)
    size = 24 if abi >= _FIRST_ABI_WITH_SCOPES else 16 if abi >= 4 else 8
    rules = _check(libc.syscall(_CREATE_RULESET, attributes, size, 0), "landlock_create_ruleset")
    os.set_inheritable(rules, False)
    allowed = {READ: _READING, WRITE: _READING | changing, EVERYTHING: _READING | making}
    for path, access in files if files is not None else [("/", EVERYTHING)]:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # what is not there need not be opened
        try:
            folder = os.fstat(fd).st_mode & 0o170000 == 0o040000
            rights = allowed[access] & handled & (~0 if folder else _OF_FILES)
            rule = struct.pack("=Qi", rights, fd)
            _check(libc.syscall(_ADD_RULE, rules, _RULE_PATH_BENEATH, rule, 0), f"landlock_add_rule {path}")
        finally:
            os.close(fd)
    return rules


def _close_bounding_set(libc: ctypes.CDLL, kept: int) -> None:
    """Drops what no later program can get back; a process that may not close the set has little to lose."""
    for number in range(_LAST_CAPABILITY + 1):
        if not kept >> number & 1:
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)


def _drop_capabilities(libc: ctypes.CDLL, kept: int) -> None:
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, data = struct.pack("=Ii", _CAPABILITY_VERSION, 0), ctypes.create_string_buffer(24)
    _check(libc.capget(header, data), "capget")
    low, high = kept & 0xFFFFFFFF, kept >> 32
    effective, permitted, _, effective_high, permitted_high, _ = struct.unpack("=6I", data.raw)
    now = (effective & low, permitted & low, 0, effective_high & high, permitted_high & high, 0)
    _check(libc.capset(header, struct.pack("=6I", *now)), "capset")


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def main() -> None:
    """Confines itself and becomes the command."""
    import json

    confine(json.loads(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
