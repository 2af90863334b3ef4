# A node, from the wheel.
#
#   docker build -t hubsub .
#   docker run -p 127.0.0.1:3221:3221 -p 127.0.0.1:3220:3220 -v hubsub-data:/data hubsub
#
# Arguments after the image's name are those of `hubsub serve`, or another command of `hubsub` in place of it.

ARG RUST=1.95
ARG PYTHON=3.11

FROM rust:${RUST}-slim-bookworm AS build
# Only builds with it, so the release's newest is right.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python3 -m venv /maturin && /maturin/bin/pip install --no-cache-dir "maturin>=1.9.4,<2"
COPY Cargo.toml Cargo.lock pyproject.toml constraints.txt README.md LICENSE ./
COPY crates crates
COPY python python
# The wheel is abi3: one for every Python from 3.11 on.
RUN /maturin/bin/maturin build --release --locked --out /wheels

FROM python:${PYTHON}-slim-bookworm
COPY --from=build /wheels /wheels
COPY --from=build /src/constraints.txt /wheels/
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt /wheels/hubsub-*.whl \
    && rm -r /wheels \
    && groupadd --system --gid 10001 hubsub \
    && useradd --system --uid 10001 --gid 10001 --home-dir /data --shell /usr/sbin/nologin hubsub \
    && install -d -o hubsub -g hubsub -m 0750 /data
# By number, so that a cluster can see that it is not root.
USER 10001:10001
WORKDIR /data
VOLUME /data
# Inside its own network a container's listeners must be open to be reached at all; publish ports on loopback, or
# in a network of your own, for there are no users yet.
ENV HUBSUB_DATA=/data \
    HUBSUB_REDIS=0.0.0.0:3221 \
    HUBSUB_HTTP=0.0.0.0:3220 \
    HUBSUB_INSECURE_OPEN=true \
    HUBSUB_LOG_FORMAT=json \
    PYTHONUNBUFFERED=1
# Redis clients, REST and metrics, other nodes.
EXPOSE 3221 3220 3222 3224
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:3220/readyz', timeout=4)"]
ENTRYPOINT ["hubsub"]
CMD ["serve"]
