# A service of agents: `docker build -t repertory .`, then see deploy/compose.yaml.
# Other extras: `docker build --build-arg EXTRAS="serve s3 postgres peers bedrock" .`

ARG PYTHON=3.13
# A tag may be moved. A release names the bytes: --build-arg BASE=python:3.13-slim@sha256:...
ARG BASE=python:${PYTHON}-slim

FROM ${BASE} AS build
WORKDIR /build
ARG EXTRAS="serve postgres peers uvloop telemetry encryption mcp anthropic openai"
COPY pyproject.toml requirements.lock ./
COPY scripts/locked.py scripts/
# First what the lock names, with its digests: this layer stays while the lock stays.
RUN python scripts/locked.py ${EXTRAS} > needs.txt \
    && python scripts/locked.py --package hatchling > builder.txt \
    && python -m venv /opt/repertory \
    && python -m venv builder \
    && /opt/repertory/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r needs.txt \
    && builder/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r builder.txt
COPY README.md LICENSE ./
COPY repertory repertory
RUN builder/bin/python -m hatchling build -t wheel -d wheel \
    && /opt/repertory/bin/pip install --no-cache-dir --no-deps --no-index wheel/*.whl \
    && /opt/repertory/bin/pip uninstall --yes pip

FROM ${BASE}
RUN useradd --uid 10001 --home-dir /var/lib/repertory --create-home --shell /usr/sbin/nologin repertory
COPY --from=build /opt/repertory /opt/repertory
ENV PATH=/opt/repertory/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/repertory
USER 10001
EXPOSE 8000
# Answers while the process does. /readyz says besides whether it takes new turns.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
# Turns in flight end and are stored, sessions are released. Give it longer than `drain_timeout_s` and 5 seconds.
STOPSIGNAL SIGTERM
ENTRYPOINT ["repertory"]
CMD ["serve", "--config", "/etc/repertory/repertory.toml", "--host", "0.0.0.0", "--port", "8000"]
