"""Training in a group (AllReduce), without input or output: who is in it, which step comes next, and who does what.

``rendezvous`` is the master's part, ``member`` that of each member; both are state machines that a runner, or a
simulation, drives. ``steps`` cuts tasks into steps and steps into microbatches, and deals them.
"""
