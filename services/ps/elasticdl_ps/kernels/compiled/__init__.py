"""The kernels compiled by numba, with LLVM's instructions where numba has none: prefetching, eight numbers at once.

All that knows numba's internals and LLVM is in here (``lanes``, ``intrinsics``). ``kernels.reference`` does the same
in plain numpy: it says what these kernels mean, is compared with them by the tests, and runs in their place with
``ELASTICDL_PS_KERNELS=numpy``. What they gain is in docs/adr/0020-fast-paths.md.
"""
