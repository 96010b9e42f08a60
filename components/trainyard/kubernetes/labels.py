"""Names of labels and annotations, of Trainyard and of others."""

from __future__ import annotations

APPLICATION = "app.kubernetes.io/name"
STEP = "app.kubernetes.io/component"
INSTANCE = "app.kubernetes.io/instance"
POOL = "trainyard/pool"
USE = "trainyard/use"
"""'2' on pods of the second task of a step in one run, and so on; `INPUT` on those of a training's input workers."""
INPUT = "input"
LAUNCHES = "trainyard/launches"
"""'gang' on pods that launch one. k8s/components/step-accounts takes the launcher's rights from all others."""

RUN = "trainyard/run"
"""Annotation of a gang's Job: the run that it trains for."""
PLAN = "trainyard/plan"
"""Annotation of a gang's Job: the digest of its spec."""

JOB = "batch.kubernetes.io/job-name"
JOB_UID = "batch.kubernetes.io/controller-uid"
INDEX = "batch.kubernetes.io/job-completion-index"
QUEUE = "kueue.x-k8s.io/queue-name"
QUEUE_MINIMUM = "kueue.x-k8s.io/job-min-parallelism"
"""Annotation of Kueue: the fewest pods with which it may admit a Job."""
QUEUE_COMPLETIONS = "kueue.x-k8s.io/job-completions-equal-parallelism"
"""Annotation of Kueue: a Job that is admitted with fewer pods has fewer completions, too."""
POD_SECURITY = "pod-security.kubernetes.io/enforce"
HOST = "kubernetes.io/hostname"

NO_MESH = {
    "sidecar.istio.io/inject": "false",
    "istio.io/dataplane-mode": "none",
    "linkerd.io/inject": "disabled",
}
"""Labels and annotations of a pod outside of every service mesh.

A sidecar would keep a finished pod running, and Istio's ambient mesh would tunnel through a port that the gang's
NetworkPolicy closes. Sources: https://istio.io/latest/docs/reference/config/labels,
https://istio.io/latest/docs/ambient/usage/add-workloads, https://linkerd.io/2/reference/proxy-configuration
"""

KEPT = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations of a pod whose node is not removed to save money.

Sources: https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md,
https://karpenter.sh/docs/concepts/disruption/#pod-level-controls
"""

KUBEFLOW_RUN = "pipeline/runid"
WORKFLOW = "workflows.argoproj.io/workflow"
NODE_ID = "workflows.argoproj.io/node-id"
"""Annotation of Argo: the id of the Workflow's node that the pod is."""
NODE_NAME = "workflows.argoproj.io/node-name"
"""Annotation of Argo: the name of that node."""


def step_labels(step: str) -> dict[str, str]:
    """Return the labels of an object that works for `step`."""
    return {APPLICATION: "trainyard", STEP: step}
