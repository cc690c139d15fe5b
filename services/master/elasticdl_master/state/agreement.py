"""Whether the queue holds what the machine believes that it holds, as far as that is cheap to see each second.

Between two changes of a job both must agree. Where they do not nothing might ever happen again: the job would run
with nothing queued, nothing leased and records left.
"""

from __future__ import annotations

from elasticdl_master.queue.port import Contents, Counts
from elasticdl_master.state import events as ev
from elasticdl_master.state.machine import JobMachine


def contradiction(machine: JobMachine, counts: Counts) -> str:
    """In what the two contradict each other; empty if it shows in nothing."""
    if machine.lifecycle.ending:
        return ""
    held = machine.workers.count_leases()
    if counts.doing != held:
        return f"{counts.doing} tasks are leased in the queue, and {held} are in the hands of workers"
    if not counts.todo and not counts.doing:
        waiting = len(machine.contents().todo)
        if waiting:
            return f"nothing is queued and nothing is leased, and {waiting} tasks are to do"
    return ""


def news_in(machine: JobMachine, contents: Contents) -> list[ev.Event]:
    """Events that the queue knows and the machine has missed: tasks that are done, leases of workers that live."""
    holders = {token: worker.owner for worker, token, _ in machine.workers.leases()}
    news: list[ev.Event] = [
        ev.TaskReported(task, holders.get(token, ""), token, contents.results.get(task, b""))
        for task, token in contents.done.items()
        if machine.lacks(task)
    ]
    done = {event.task for event in news if isinstance(event, ev.TaskReported)}
    leases = [
        lease
        for lease in contents.doing
        if str(lease.token) not in holders
        and lease.task not in done
        and machine.lacks(lease.task)
        and machine.workers.is_living(lease.owner)
    ]
    return [*news, ev.TasksLeased(leases)] if leases else news
