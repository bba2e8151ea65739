# The command `receiver` as an image: docs/operations.md has how to build and run it.
ARG PYTHON=3.13

# All wheels are built here, so the image below needs neither a compiler nor a network.
FROM python:${PYTHON}-slim AS build
# A compiler for the library that speaks AMQP: it comes as source, and has no TLS without the headers of OpenSSL.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libssl-dev pkg-config tini \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml README.md LICENSE settings.yaml ./
COPY migrations migrations
COPY receiver receiver
COPY spark_jobs spark_jobs
ARG EXTRAS=bridge,kafka,postgres,metrics
RUN pip wheel --no-cache-dir --wheel-dir /wheels ".[${EXTRAS}]"

FROM python:${PYTHON}-slim
ARG EXTRAS=bridge,kafka,postgres,metrics
COPY --from=build /usr/bin/tini-static /usr/local/bin/tini
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels "reliable-receiver[${EXTRAS}]" \
    && useradd --uid 10001 --user-group --home-dir /data --no-create-home receiver \
    && install --directory --owner receiver --group receiver /data
# For stores and files; mount a volume here to keep them.
WORKDIR /data
USER 10001:10001
# Linux drops a signal to process 1 that it doesn't handle, such as SIGTERM to a command that still opens its store. So tini
# is process 1, and passes signals on.
ENTRYPOINT ["tini", "--", "receiver"]
