# The gateway. No torch, no compiler, no pip. Built from the root of the repository, as README.md beside this file says.
#
# The base may be any image with Python 3.11 or newer and apt. It is named by a tag that does not move.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS builder
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# Where apt or pip need settings of their own, they are secrets of the build: there for a command, and in no layer.
ENV APT_CONFIG=/run/secrets/apt.conf \
    PIP_CONFIG_FILE=/run/secrets/pip.conf \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PATH=/opt/installer/bin:$PATH
# Debian's Python has the module for environments in a package of its own.
RUN --mount=type=secret,id=apt.conf \
    if ! python3 -c 'import ensurepip' 2>/dev/null; then \
        apt-get update -qq && \
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv && \
        rm -rf /var/lib/apt/lists/*; \
    fi

# What installs stays here: the environment that the image gets has no pip.
WORKDIR /build
COPY constraints.txt ./
RUN --mount=type=secret,id=pip.conf \
    python3 -m venv /opt/installer && \
    python3 -m venv --without-pip /opt/radixgate && \
    pip install --quiet -c constraints.txt hatchling
COPY pyproject.toml deploy/docker/requirements.py ./
RUN --mount=type=secret,id=pip.conf \
    python3 requirements.py gateway otel > requirements.txt && \
    pip --python /opt/radixgate/bin/python install --quiet -c constraints.txt -r requirements.txt

COPY LICENSE README.md hatch_build.py ./
COPY cli cli
COPY gateway gateway
COPY hicache hicache
COPY metrics metrics
COPY proto/radixgate proto/radixgate
COPY tracing tracing
COPY transport transport
COPY worker worker
RUN pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist . && \
    pip --python /opt/radixgate/bin/python install --quiet --no-index --no-deps dist/*.whl && \
    pip --python /opt/radixgate/bin/python check

FROM ${PYTHON_IMAGE} AS runtime
# Debian's images of Python come with pip, which nothing here uses.
RUN if python3 -c 'import pip' 2>/dev/null; then \
        python3 -m pip uninstall --quiet --yes --root-user-action ignore pip; \
    fi && \
    groupadd --gid 65532 radixgate && \
    useradd --key UID_MAX=65532 --uid 65532 --gid 65532 --shell /usr/sbin/nologin \
        --home-dir /var/lib/radixgate --no-create-home radixgate && \
    install -d -o 65532 -g 65532 -m 0750 /var/lib/radixgate && \
    install -d /etc/radixgate && \
    rm -rf /var/log/*.log /var/cache/ldconfig
COPY --from=builder /opt/radixgate /opt/radixgate
# The root may be read-only: nothing is written but to /tmp and /var/lib/radixgate.
ENV PATH=/opt/radixgate/bin:$PATH \
    HOME=/var/lib/radixgate \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/radixgate
USER 65532:65532
# gRPC, HTTP, metrics.
EXPOSE 50051 8000 9464
STOPSIGNAL SIGTERM
ENTRYPOINT ["radixgate"]
CMD ["gateway", "--config", "/etc/radixgate/radixgate.toml"]

ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE=https://github.com/radixgate/radixgate
LABEL org.opencontainers.image.title="radixgate gateway" \
      org.opencontainers.image.description="Multi-tenant LLM serving: the gateway" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
