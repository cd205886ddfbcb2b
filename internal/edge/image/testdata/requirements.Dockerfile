# syntax=docker/dockerfile:1
# The image of iris, as "roundhouse build" builds it. By hand:
#   DOCKER_BUILDKIT=1 docker build --build-context roundhouse=DIR -t TAG .
# where DIR holds usr/local/bin/roundhouse-server for Linux; or leave --build-context
# out where there is an image called roundhouse that holds it.
ARG BASE_IMAGE=docker.io/library/python:3.12-slim

FROM ${BASE_IMAGE}
USER 0:0
# Group 0 may do what the owner may: any user id works with that group.
RUN mkdir -p /opt/mlserver /mnt/models && chown 1000:0 /opt/mlserver /mnt/models && chmod 0775 /opt/mlserver /mnt/models
WORKDIR /opt/mlserver
RUN --mount=type=cache,target=/root/.cache/pip python -m pip install numpy "pydantic>=2"
COPY requirements.txt ./
RUN --mount=type=cache,target=/root/.cache/pip python -m pip install -r requirements.txt
COPY --from=roundhouse /usr/local/bin/roundhouse-server /usr/local/bin/roundhouse-server

# Settings that variables and files from outside win over.
ENV HOME="/opt/mlserver" \
    MLSERVER_HOST="0.0.0.0" \
    MLSERVER_MODELS_DIR="/mnt/models" \
    PYTHONPATH="/opt/mlserver" \
    PYTHONUNBUFFERED="1" \
    MLSERVER_MODEL_EXTRA="{\"price\":\"\$5\",\"path\":\"a\\\\b\"}" \
    MLSERVER_MODEL_IMPLEMENTATION="models.M" \
    MLSERVER_MODEL_NAME="iris"

COPY --chown=1000:0 --chmod=0775 . .
RUN rm -f settings.json model-settings.json
USER 1000:0
EXPOSE 8080 8081 8082
ENTRYPOINT ["/usr/local/bin/roundhouse-server"]
