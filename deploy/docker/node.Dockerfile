# A node: the agent, and the masters, PS and workers that it runs as its processes.
# Build from the root of the repository:  docker build -f deploy/docker/node.Dockerfile -t elasticdl-node .
ARG PYTHON_IMAGE=docker.io/library/python:3.12-slim

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/elasticdl
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared shared
COPY sdk sdk
COPY services services
RUN /opt/elasticdl/bin/pip install -c constraints.txt ".[tensorflow]"

FROM ${PYTHON_IMAGE}
# The folders are mount points of volumes, which take over their owner.
RUN groupadd --gid 10001 elasticdl \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin elasticdl \
    && install -d -o elasticdl -g elasticdl -m 0700 /var/lib/elasticdl /run/elasticdl
COPY --from=build /opt/elasticdl /opt/elasticdl
COPY deploy/docker/entrypoint.sh deploy/docker/healthcheck.py /opt/elasticdl/
ENV PATH=/opt/elasticdl/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp ELASTICDL_DATA_DIR=/var/lib/elasticdl ELASTICDL_RUN_DIR=/run/elasticdl NUMBA_CACHE_DIR=/tmp/numba TF_CPP_MIN_LOG_LEVEL=2
USER 10001:10001
WORKDIR /var/lib/elasticdl
ENTRYPOINT ["/opt/elasticdl/entrypoint.sh"]
CMD ["python", "-P", "-m", "elasticdl_runtime.launch.process"]
