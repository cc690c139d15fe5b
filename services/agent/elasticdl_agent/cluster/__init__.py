"""The local cluster: Postgres, Redis, api, scheduler and agent of one machine under one supervisor.

``command`` is ``elasticdl up``; ``python -m elasticdl_agent.cluster`` is the supervisor as a process of its own. What
finds a cluster that runs is in ``elasticdl_runtime.cluster``.
"""
