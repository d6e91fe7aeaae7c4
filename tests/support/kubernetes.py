"""JSON schemas of the Kubernetes objects in deploy/: every field that is used, and no other."""

from typing import Any

NAME = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}
TEXT = {"type": "string", "minLength": 1}
FLAG = {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 0}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
LABELS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}}
QUANTITIES = {
    "type": "object",
    "propertyNames": {"enum": ["cpu", "memory", "ephemeral-storage"]},
    "additionalProperties": {"type": ["string", "integer"], "pattern": r"^\d+(\.\d+)?(m|[kMGT]i?)?$"},
}


def record(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    """Return the schema of an object with these fields and no other."""
    properties = {**required, **optional}
    return {
        "type": "object",
        "required": [*required],
        "properties": properties,
        "additionalProperties": False,
    }


def many(items: dict[str, Any], least: int = 1) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "minItems": least, "items": items}


def _kind(version: str, kind: str, **fields: Any) -> dict[str, Any]:
    metadata = record({"name": NAME, "labels": LABELS}, annotations=LABELS)
    return record({"apiVersion": {"const": version}, "kind": {"const": kind}, "metadata": metadata, **fields})


_SELECTOR = record({"matchLabels": LABELS})
_PROBE = record(
    {
        "httpGet": record(
            {"path": {"type": "string", "pattern": "^/"}, "port": NAME}, scheme={"enum": ["HTTP", "HTTPS"]}
        )
    },
    **dict.fromkeys(("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold"), COUNT),
)
_CONTAINER = record(
    {
        "name": NAME,
        "image": TEXT,
        "args": many(TEXT),
        "envFrom": many(record({"configMapRef": record({"name": NAME})})),
        "volumeMounts": many(
            record({"name": NAME, "mountPath": {"type": "string", "pattern": "^/"}}, readOnly=FLAG)
        ),
        "ports": many(record({"name": NAME, "containerPort": PORT})),
        "livenessProbe": _PROBE,
        "resources": record({}, requests=QUANTITIES, limits=QUANTITIES),
        "securityContext": record(
            {"allowPrivilegeEscalation": {"const": False}, "readOnlyRootFilesystem": {"const": True}},
            capabilities=record({"drop": {"const": ["ALL"]}}),
        ),
    },
    imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    env=many(record({"name": TEXT, "value": {"type": "string"}}), least=0),
    startupProbe=_PROBE,
    readinessProbe=_PROBE,
)
_POD = record(
    {
        "terminationGracePeriodSeconds": COUNT,
        "securityContext": record(
            {"runAsNonRoot": {"const": True}, "runAsUser": {"type": "integer", "minimum": 1}},
            runAsGroup=COUNT,
            fsGroup=COUNT,
            seccompProfile=record({"type": {"const": "RuntimeDefault"}}),
        ),
        "containers": many(_CONTAINER),
        "volumes": many(record({"name": NAME}, secret=record({"secretName": NAME}), emptyDir=record({}))),
    },
    automountServiceAccountToken=FLAG,
)
_PEERS = many({"type": "object", "minProperties": 1})
_POLICY_PORTS = many(record({"port": PORT, "protocol": {"enum": ["TCP", "UDP"]}}))

KINDS = {
    "ConfigMap": _kind("v1", "ConfigMap", data=LABELS),
    "Deployment": _kind(
        "apps/v1",
        "Deployment",
        spec=record(
            {
                "replicas": COUNT,
                "selector": _SELECTOR,
                "template": record(
                    {"metadata": record({"labels": LABELS}, annotations=LABELS), "spec": _POD}
                ),
            },
            strategy=record({"type": {"enum": ["Recreate", "RollingUpdate"]}}),
        ),
    ),
    "Service": _kind(
        "v1",
        "Service",
        spec=record(
            {"selector": LABELS, "ports": many(record({"name": NAME, "port": PORT, "targetPort": NAME}))},
            type={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
            clusterIP={"const": "None"},
            sessionAffinity={"enum": ["None", "ClientIP"]},
        ),
    ),
    "PodDisruptionBudget": _kind(
        "policy/v1",
        "PodDisruptionBudget",
        spec=record({"maxUnavailable": {"const": 1}, "selector": _SELECTOR}),
    ),
    "NetworkPolicy": _kind(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        spec=record(
            {
                "podSelector": _SELECTOR,
                "policyTypes": {"const": ["Ingress", "Egress"]},
                "ingress": many(record({"ports": _POLICY_PORTS}, **{"from": _PEERS})),
                "egress": many(record({"ports": _POLICY_PORTS}, to=_PEERS)),
            }
        ),
    ),
}
