# The images of all services: one file, and an argument says what goes into the environment.
#
#   docker build --tag elasticdl-services --build-arg EXTRAS=api,scheduler .     what needs no framework
#   docker build --tag elasticdl-node .                                          the agent and what jobs run
#   docker build --tag elasticdl-node --build-arg EXTRAS=agent,master,ps,worker,torch .
#
# EXTRAS are those of pyproject.toml. The base may be any image with glibc, python3 3.11 to 3.13 with its venv, and
# setpriv: `--build-arg PYTHON_IMAGE=...`. Settings of pip (another index, say) come as a secret, which no image keeps:
# `--secret id=pip,src=$HOME/.config/pip/pip.conf`.
ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim

# What the extras need. It is made anew only where these two files or the argument change, not with every line of code.
FROM ${PYTHON_IMAGE} AS environment
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_CONFIG_FILE=/run/secrets/pip
RUN command -v setpriv >/dev/null || { echo "error: the base image has no setpriv" >&2; echo "  fix: take one with util-linux" >&2; exit 1; } \
    && python3 -m venv /opt/elasticdl
WORKDIR /src
COPY pyproject.toml constraints.txt deploy/docker/requirements.py ./
ARG EXTRAS=agent,master,ps,worker,tensorflow
RUN --mount=type=secret,id=pip \
    python3 requirements.py "$EXTRAS" >requirements.txt \
    && /opt/elasticdl/bin/pip install --constraint constraints.txt --requirement requirements.txt

FROM ${PYTHON_IMAGE} AS wheel
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_CONFIG_FILE=/run/secrets/pip
RUN python3 -m venv /opt/build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY shared shared
COPY sdk sdk
COPY services services
RUN --mount=type=secret,id=pip /opt/build/bin/pip wheel --no-deps --wheel-dir /wheels .

FROM ${PYTHON_IMAGE}
# By hand, as not every base has useradd. The folders are mount points of volumes, which take over their owner.
RUN echo 'elasticdl:x:10001:' >>/etc/group \
    && echo 'elasticdl:x:10001:10001::/tmp:/usr/sbin/nologin' >>/etc/passwd \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/elasticdl /run/elasticdl
COPY --from=environment /opt/elasticdl /opt/elasticdl
COPY deploy/docker/entrypoint.sh deploy/docker/healthcheck.py /opt/elasticdl/
RUN --mount=from=wheel,source=/wheels,target=/wheels \
    /opt/elasticdl/bin/pip install --no-deps --no-index --no-cache-dir --disable-pip-version-check /wheels/*.whl
ENV PATH=/opt/elasticdl/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp \
    ELASTICDL_DATA_DIR=/var/lib/elasticdl ELASTICDL_RUN_DIR=/run/elasticdl \
    NUMBA_CACHE_DIR=/tmp/numba TF_CPP_MIN_LOG_LEVEL=2
USER 10001:10001
WORKDIR /var/lib/elasticdl
# The command says which service it is: python -P -m elasticdl_api, elasticdl_scheduler, elasticdl_agent ...
ENTRYPOINT ["/opt/elasticdl/entrypoint.sh"]
