"""`trainyard pools`: list the pools of an environment with prices and nodes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainyard.errors import TrainyardError
from trainyard_control.cli.options import LOCAL, EnvironmentName, Output, OutputFormat, print_answer

if TYPE_CHECKING:
    from trainyard.kubernetes.client import Cluster
    from trainyard.spec.environment import Environment


def pools(
    environment: EnvironmentName = LOCAL,
    from_cluster: Annotated[
        bool, typer.Option("--from-cluster", help="Draft an environment from the cluster's nodes instead.")
    ] = False,
    context: Annotated[
        str, typer.Option(metavar="NAME", help="Context of the kubeconfig file. Default: the current one.")
    ] = "",
    output: OutputFormat = Output.TEXT,
) -> None:
    """List the pools of an environment, or draft them from a cluster.

    The list has prices and, if a cluster is configured, the matching nodes.
    """
    from trainyard_control.cluster import environments

    if from_cluster:
        from trainyard_control.cluster.drafting import draft

        sys.stdout.write(draft(_all(_cluster(context), "nodes")))
        return
    loaded = environments.load(environment)
    rows = _rows(loaded)
    if loaded.target == "kubeflow" and _has_cluster(context):
        try:
            _count_nodes(rows, loaded, _cluster(context))
        except TrainyardError as error:
            if context:
                raise
            print(f"! nodes are not counted: {error}", file=sys.stderr)
    print_answer(output, rows, lambda: _show(rows, loaded))


def _rows(environment: Environment) -> list[dict[str, Any]]:
    from trainyard.spec.hardware import machines

    rows = []
    for name, pool in environment.pools.items():
        price, machine = machines.price(pool, environment.platform), machines.machine_of(pool, environment.platform)
        rows.append(
            {
                "pool": name,
                "kind": pool.kind,
                "machine": machine[0] if machine else pool.machine,
                **{key: getattr(pool, key) for key in ("accelerator", "count", "topology", "workers", "spot")},
                "usd_per_hour": price.usd_per_hour if price else None,
                "price_region": price.region if price else None,
                "price_date": price.date if price else None,
                "nodes": None,
            }
        )
    return rows


def _count_nodes(rows: list[dict[str, Any]], environment: Environment, cluster: Cluster) -> None:
    """Add the cluster's node counts to the row of each pool."""
    from dataclasses import asdict

    from trainyard_control.cluster.scheduling import count_nodes

    nodes, pods = _all(cluster, "nodes"), _all(cluster, "pods")
    for row in rows:
        row["nodes"] = asdict(count_nodes(environment.pools[row["pool"]], environment.platform, nodes, pods))


def _cluster(context: str) -> Cluster:
    from trainyard.kubernetes import client

    return client.connect("default", context)


def _all(cluster: Cluster, kind: str) -> list[dict[str, Any]]:
    """Return the objects of `kind` in every namespace."""
    listed = cluster.get(f"/api/v1/{kind}")
    return list(listed["items"]) if listed else []


def _has_cluster(context: str) -> bool:
    """Return True if a cluster is configured for this process."""
    default = Path("~/.kube/config").expanduser()
    return bool(
        context or os.environ.get("KUBECONFIG") or os.environ.get("KUBERNETES_SERVICE_HOST") or default.exists()
    )


def _show(rows: list[dict[str, Any]], environment: Environment) -> None:
    from trainyard_control.api.drawing import plain_table, table_console

    if not rows:
        why = ": it trains on this machine" if environment.target == "local" else ""
        print(f"{environment.name} has no pools{why}. Name another with -e.")
        return
    console = table_console()
    counted = any(row["nodes"] for row in rows)
    columns = ("kind", "machine", "accelerators", "workers", "USD/h a node")
    table = plain_table("pool", *columns, *(("nodes", "ready", "with room") if counted else ()))
    for row in rows:
        accelerators = f"{row['count']} × {row['accelerator']}" if row["accelerator"] else "–"
        accelerators += f" {row['topology']}" if row["topology"] else ""
        usd = (
            "no price" if row["usd_per_hour"] is None else f"{row['usd_per_hour']:.4g}{' Spot' if row['spot'] else ''}"
        )
        nodes = [str(number) for number in (row["nodes"] or {}).values()]
        table.add_row(row["pool"], row["kind"], row["machine"] or "–", accelerators, str(row["workers"]), usd, *nodes)
    console.print(table)
    days: dict[str, set[str]] = {}
    for row in rows:
        if row["price_date"]:
            days.setdefault(row["price_region"], set()).add(row["price_date"])
    lists = [f"{region} as of {' and '.join(sorted(dates))}" for region, dates in sorted(days.items())]
    notes = [
        f"List prices of {', '.join(lists)}." if lists else "",
        "" if counted else "No nodes counted: no cluster is configured here.",
    ]
    console.print(" ".join(filter(None, notes)), style="dim", soft_wrap=True, markup=False)
