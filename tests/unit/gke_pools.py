"""What the environments of these tests have in common: a cluster on GKE that nobody asks, and the room of a pod."""

CLUSTER = """
target: kubeflow
platform: gke
storage: gs://bucket/runs
images: {cpu: "registry.example/cpu:1", gpu: "registry.example/gpu:1"}
kubeflow: {endpoint: "http://127.0.0.1:1"}
"""
ROOM = '{requests: {cpu: "1", memory: 1Gi}, limits: {memory: 1Gi}}'
