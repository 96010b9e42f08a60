"""The check of `doctor` that NetworkPolicies let the pods of steps reach the storage, as a pure function."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from urllib.parse import urlsplit

from trainyard.kubernetes.client import Manifest
from trainyard.kubernetes.diagnosis import name_of
from trainyard_control.cluster.checks import Check, bad, good, unknown
from trainyard_control.cluster.scheduling import selects

_LABEL = "way to the storage"


def way(endpoint: str, namespace: str, policies: list[Manifest], pod_labels: dict[str, str]) -> Check:
    """Check that `policies` let pods with these labels connect to the URL `endpoint`.

    A name with at most one dot, or `.svc`, may be a Service, whose pods may listen on another port. namespaceSelectors
    are not read.
    """
    url = urlsplit(endpoint)
    host, port = url.hostname or "", url.port or (80 if url.scheme == "http" else 443)
    own = [one for one in policies if _restricts(one) and selects(one["spec"].get("podSelector") or {}, pod_labels)]
    rules = [rule for policy in own for rule in policy["spec"].get("egress") or []]
    if not own or any(_takes(rule, port) and _leads(rule, host, namespace) for rule in rules):
        return good(_LABEL, f"no NetworkPolicy of {namespace} keeps the pods of steps from port {port} of {host}")
    names = ", ".join(sorted(name_of(policy) for policy in own))
    sentence = (
        f"NetworkPolicies of {namespace} ({names}) allow no port {port} of {host}. A new pod may reach it for a "
        "moment, then its connections time out. Add an egress rule"
    )
    if _address(host) or (host.count(".") > 1 and ".svc" not in host):
        return bad(_LABEL, sentence)
    return unknown(_LABEL, f"{sentence}, unless the Service's pods listen on a port that is allowed")


def _restricts(policy: Manifest) -> bool:
    spec = policy["spec"]
    return "Egress" in spec.get("policyTypes", ["Egress"] if "egress" in spec else [])


def _takes(rule: Manifest, port: int) -> bool:
    """Return True if the rule is of this TCP port. A port with a name may be any."""
    ports = [one for one in rule.get("ports") or [] if one.get("protocol", "TCP") == "TCP"]
    if not rule.get("ports"):
        return True
    return any(
        not isinstance(first := one.get("port"), int) or first <= port <= one.get("endPort", first) for one in ports
    )


def _leads(rule: Manifest, host: str, namespace: str) -> bool:
    """Return True if the rule may lead to `host`."""
    peers, address = rule.get("to") or [], _address(host)
    is_own = "." not in host or host.split(".")[1] == namespace
    for peer in peers:
        if block := peer.get("ipBlock"):
            excepted = any(address in ipaddress.ip_network(one) for one in block.get("except") or [] if address)
            if not address or (address in ipaddress.ip_network(block["cidr"]) and not excepted):
                return True
        elif not address and ("namespaceSelector" in peer or is_own):
            return True
    return not peers


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None
