"""The names of CloudEvents' headers, which the server sets on every answer."""

from enum import Enum
from typing import Optional

CLOUDEVENTS_HEADER_ID = "Ce-Id"
CLOUDEVENTS_HEADER_SPECVERSION = "Ce-Specversion"
CLOUDEVENTS_HEADER_SOURCE = "Ce-Source"
CLOUDEVENTS_HEADER_TYPE = "Ce-Type"
CLOUDEVENTS_HEADER_SPECVERSION_DEFAULT = "0.3"
CLOUDEVENTS_HEADER_REQUEST_ID = "Ce-Requestid"
CLOUDEVENTS_HEADER_MODEL_ID = "Ce-Modelid"
CLOUDEVENTS_HEADER_INFERENCE_SERVICE = "Ce-Inferenceservicename"
CLOUDEVENTS_HEADER_NAMESPACE = "Ce-Namespace"
CLOUDEVENTS_HEADER_ENDPOINT = "Ce-Endpoint"

_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


class CloudEventsTypes(Enum):
    """What an event tells of."""

    Request = "io.seldon.serving.inference.request"
    Response = "io.seldon.serving.inference.response"


def get_namespace() -> Optional[str]:
    """The namespace of the pod, None outside of one."""
    try:
        with open(_NAMESPACE, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return None
